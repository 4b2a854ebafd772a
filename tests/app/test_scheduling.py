"""The fair queue alone: its order against an obvious model, its shares, and that its heaps stay small."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from app.scheduling import Account, FairQueue, Order, Ticket

SLACK = 10


class Source:
    """Makes numbered tickets for a queue."""

    def __init__(self, slack: float = SLACK) -> None:
        self.queue: FairQueue[Ticket] = FairQueue(slack)
        self.made = 0

    def ticket(
        self, client: str = "c", cost: int = 1, due: float = 0.0, key: str = "k", weight: float = 1.0, large: bool = False
    ) -> Ticket:
        self.made += 1
        return Ticket(key, cost, due, large, self.queue.account(client, weight), self.made, seconds=cost / 100)

    def add(self, *args: object, **more: object) -> Ticket:
        ticket = self.ticket(*args, **more)
        self.queue.add(ticket)
        return ticket

    def serve(self) -> Ticket | None:
        ticket = self.queue.lead(large=True)
        if ticket is not None:
            self.queue.take(ticket)
        return ticket


def test_an_empty_queue_has_nobody_to_lead_or_ride() -> None:
    queue = Source().queue
    assert queue.lead(large=True) is None
    assert queue.rider("k") is None
    assert (queue.count, queue.pixels, list(queue)) == (0, 0, [])


def test_due_times_decide_among_clients_that_are_level() -> None:
    source = Source()
    for client, due in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        source.add(client, due=due)
    assert [source.serve().account.name for _ in range(3)] == ["b", "c", "a"]


def test_equal_due_times_keep_the_order_of_arrival() -> None:
    source = Source(slack=1000)
    tickets = [source.add(str(i % 3)) for i in range(30)]
    assert [source.serve() for _ in range(30)] == tickets


def test_nobody_gets_further_ahead_than_the_slack() -> None:
    source = Source()
    for _ in range(200):
        source.add("pushy", due=-1.0)
        source.add("patient", due=1.0)
    served = {"pushy": 0, "patient": 0}
    for _ in range(300):
        ticket = source.serve()
        assert ticket is not None
        served[ticket.account.name] += ticket.cost
        if served["pushy"] < 200:
            assert served["pushy"] - served["patient"] <= SLACK + 1
    assert served["patient"] >= 100


def test_shares_follow_the_weights_over_keys_and_costs() -> None:
    source, rng = Source(), random.Random(1)
    weights = {"a": 1.0, "b": 3.0, "c": 0.5}
    for _ in range(3000):
        client = rng.choice(list(weights))
        source.add(client, rng.randint(1, 5), rng.random(), rng.choice("xyz"), weights[client])
    served = dict.fromkeys(weights, 0)
    for _ in range(900):
        ticket = source.serve()
        assert ticket is not None
        served[ticket.account.name] += ticket.cost
    level = {client: served[client] / weights[client] for client in weights}
    assert max(level.values()) - min(level.values()) <= SLACK + 5 / 0.5


def test_a_newcomer_starts_level_and_a_returning_client_has_no_credit() -> None:
    source = Source(slack=0)
    for _ in range(100):
        source.add("old")
    source.add("was here")
    for _ in range(50):
        source.serve()
    for client in ("was here", "new") * 5:
        source.add(client)
    first = sorted(source.serve().account.name for _ in range(9))
    assert first == sorted(["old", "was here", "new"] * 3), "in turns: the absent ones saved nothing up"


def test_large_tickets_wait_apart() -> None:
    source = Source()
    large = source.add(cost=50, due=0.0, large=True)
    small = source.add(due=1.0)
    assert source.queue.rider("k") is small
    assert source.queue.lead(large=False) is small
    assert source.queue.lead(large=True) is large
    source.queue.take(small)
    assert source.queue.lead(large=False) is None
    assert source.queue.waiting("k") == (0, 0)


def test_a_held_key_rides_but_does_not_lead_until_it_is_released() -> None:
    source = Source()
    source.queue.hold("k")
    ticket = source.add()
    assert source.queue.lead(large=True) is None
    assert source.queue.rider("k") is ticket
    source.queue.release("k")
    assert source.queue.lead(large=True) is ticket


def test_a_held_key_whose_tickets_all_left_is_not_held_any_more() -> None:
    source = Source()
    source.queue.hold("k")
    source.queue.remove(source.add())
    assert not source.queue.held("k")
    assert source.queue.lead(large=True) is None
    ticket = source.add()
    assert source.queue.lead(large=True) is ticket


def test_heaps_do_not_grow_with_what_has_left() -> None:
    source = Source()
    for i in range(20_000):
        ticket = source.add(str(i % 7), due=float(-i if i % 2 else i), key=str(i % 5))
        (source.queue.take if i % 3 else source.queue.remove)(ticket)
    order = source.queue._ordinary
    assert source.queue.count == 0
    for heap in (order._ready, order._tags, order._parked):
        assert len(heap) < 200
    assert sum(len(flow.tickets) for flow in order._flows.values()) < 200
    assert source.queue._lanes == {}


def test_accounts_of_clients_that_left_are_forgotten() -> None:
    source = Source()
    for i in range(20_000):  # never idle, and each one a newcomer
        source.add(f"client {i}")
        source.serve()
    assert source.queue.clients < 2500


def test_the_heaviest_clients_are_remembered_longest() -> None:
    source = Source(slack=100)
    source.add("patient", due=9.0)
    for client in ["heavy"] * 50 + [f"client {i}" for i in range(20_000)]:
        source.add(client)
        source.serve()
    assert source.queue.account("heavy", 1.0).tag == 50.0
    assert source.queue.account("client 0", 1.0).tag == 0.0


@dataclass
class _Model:
    """The documented rule, the slow way."""

    queue: list[Ticket]

    def lead(self, slack: float) -> Ticket | None:
        if not self.queue:
            return None
        floor = min(ticket.account.tag for ticket in self.queue)
        near = [ticket for ticket in self.queue if ticket.account.tag <= floor + slack]
        return min(near, key=lambda ticket: (ticket.due, ticket.number))


@pytest.mark.parametrize("seed", range(25))
def test_the_order_is_that_of_the_rule(seed: int) -> None:
    rng, source, model = random.Random(seed), Source(), _Model([])
    arrivals = rng.choice([2, 4, 8])  # a queue that is often empty, hovers, or grows
    for _ in range(300):
        step = rng.choices(["add", "lead", "lead small", "ride", "remove", "settle"], [arrivals, 1, 1, 1, 1, 1])[0]
        expected = None
        if step == "add":
            client, key, large = rng.choice("abcd"), rng.choice("xy"), rng.random() < 0.2
            weight, cost, due = rng.choice([0.5, 1.0, 2.0]), rng.randint(1, 12), float(rng.randint(0, 20))
            model.queue.append(source.add(client, cost, due, key, weight, large))
        elif step == "lead":
            expected = model.lead(SLACK)
            assert source.queue.lead(large=True) is expected
        elif step == "lead small":
            expected = _Model([ticket for ticket in model.queue if not ticket.large]).lead(SLACK)
            assert source.queue.lead(large=False) is expected
        elif step == "ride":
            key = rng.choice("xy")
            lane = [ticket for ticket in model.queue if ticket.key == key and not ticket.large]
            assert source.queue.waiting(key) == (len(lane), sum(ticket.cost for ticket in lane))
            expected = _Model(lane).lead(SLACK)
            assert source.queue.rider(key) is expected
        elif step == "remove" and model.queue:
            source.queue.remove(model.queue.pop(rng.randrange(len(model.queue))))
        elif step == "settle" and not model.queue:
            source.queue.settle()
        if expected is not None and rng.random() < 0.8:
            serve(source, model, expected)
        assert source.queue.count == len(model.queue)
        assert source.queue.pixels == sum(ticket.cost for ticket in model.queue)
        assert source.queue.seconds == pytest.approx(sum(ticket.seconds for ticket in model.queue))
        names = {ticket.account.name: ticket.account.weight for ticket in model.queue}
        assert source.queue.weight == pytest.approx(sum(names.values()))
        assert set(source.queue) == set(model.queue)


def serve(source: Source, model: _Model, ticket: Ticket) -> None:
    tag = ticket.account.tag
    source.queue.take(ticket)
    model.queue.remove(ticket)
    assert ticket.account.tag == tag + ticket.cost / ticket.account.weight


def test_taking_is_logarithmic() -> None:
    """Work per served ticket, counted in comparisons, grows far slower than the queue."""

    class Due(float):
        compared = 0

        def __lt__(self, other: float) -> bool:
            Due.compared += 1
            return float(self) < float(other)

    counts = []
    for size in (200, 3200):
        source, rng = Source(), random.Random(2)
        for i in range(size):
            source.add(str(i % 50), 1, Due(rng.random()), str(i % 10))
        Due.compared = 0
        for _ in range(100):
            source.serve()
        counts.append(Due.compared)
    assert counts[1] < 4 * counts[0], counts


def test_an_order_can_be_used_alone() -> None:
    order: Order[Ticket] = Order()
    assert order.floor() is None
    ticket = Ticket("k", 3, 1.0, False, Account("a", 1.0, tag=7.0), 1, queued=True)
    order.add(ticket)
    assert order.floor() == 7.0
    assert order.head(6.9) is None
    assert order.head(7.0) is ticket
