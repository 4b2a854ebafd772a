"""The order of waiting work: fair between clients, earliest due first among those that are not ahead of their share.

Every client has a tag: the cost dispatched for it so far, divided by its weight (start-time fair queueing). A client is
eligible while its tag is within one batch (`slack`) of the client that is furthest behind; among the eligible clients'
tickets the earliest due one goes first. A due time is fixed on arrival (deadline, moved by the priority), so whatever
waits long enough becomes the most urgent: a priority ages by itself and starves nobody, and an urgent deadline only
reorders work inside the fair share of whoever sent it.

Tickets wait in two orders at once, the one of everything (who leads the next batch?) and the one of their batch key
(who rides along?). Both are heaps with lazy deletion: adding, taking and removing are O(log n).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from typing import Generic, TypeVar

_SPARE = 64  # dead entries that are always tolerated before a heap is rebuilt
_MOST_IDLE = 1000  # clients with nothing waiting whose use is remembered


@dataclass(slots=True, eq=False)
class Account:
    """A client's place in virtual time; `tag` only grows. `seconds` is the predicted work that it has waiting."""

    name: str
    weight: float
    tag: float = 0.0
    waiting: int = 0
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Ticket:
    """One job's place in the queue. `cost` is in pixels, `due` in seconds of the batcher's clock."""

    key: Hashable
    cost: int
    due: float
    large: bool
    account: Account
    number: int
    seconds: float = 0.0
    queued: bool = False


T = TypeVar("T", bound=Ticket)


@dataclass(slots=True, eq=False)
class _Flow(Generic[T]):
    """One account's tickets within one order. `shown` is the number of the ticket that stands for it in the ready heap."""

    account: Account
    tickets: list[tuple[float, int, T]] = field(default_factory=list)
    shown: int = -1
    parked: bool = False

    def top(self) -> T | None:
        """The earliest due ticket that still waits."""
        tickets = self.tickets
        while tickets:
            ticket = tickets[0][2]
            if ticket.queued:
                return ticket
            heappop(tickets)
        return None


class Order(Generic[T]):
    """Tickets by due time among the clients near the floor, which is the smallest tag of a client that has a ticket here."""

    def __init__(self) -> None:
        self.count = 0
        self.pixels = 0
        self._stored = 0
        self._flows: dict[Account, _Flow[T]] = {}
        self._tags: list[tuple[float, int, _Flow[T]]] = []  # every flow, by a tag that may be stale (too small)
        self._ready: list[tuple[float, int, _Flow[T]]] = []  # eligible flows, by the due time of their first ticket
        self._parked: list[tuple[float, int, _Flow[T]]] = []  # flows ahead of their share, by tag

    def __iter__(self) -> Iterator[T]:
        return (ticket for flow in self._flows.values() for _, _, ticket in flow.tickets if ticket.queued)

    def add(self, ticket: T) -> None:
        """Let the ticket wait here."""
        self.count += 1
        self.pixels += ticket.cost
        self._stored += 1
        flow = self._flows.get(ticket.account)
        if flow is None:
            flow = self._flows[ticket.account] = _Flow(ticket.account)
            heappush(self._tags, (ticket.account.tag, ticket.number, flow))
        heappush(flow.tickets, (ticket.due, ticket.number, ticket))
        if not flow.parked and flow.tickets[0][1] == ticket.number:
            self._show(flow, ticket)

    def forget(self, ticket: T) -> None:
        """Count the ticket out; it must no longer be `queued`, and its entry goes when it surfaces."""
        self.count -= 1
        self.pixels -= ticket.cost
        if self._stored > 2 * self.count + _SPARE:
            self._rebuild()

    def floor(self) -> float | None:
        """The smallest tag of a client with a ticket here; None when there is none."""
        tags = self._tags
        while tags:
            tag, number, flow = tags[0]
            if flow.top() is None:
                heappop(tags)
                self._flows.pop(flow.account, None)
                flow.shown = -1
            elif flow.account.tag > tag:
                heapreplace(tags, (flow.account.tag, number, flow))
            else:
                return tag
        return None

    def head(self, limit: float) -> T | None:
        """The earliest due ticket of a client whose tag is at most `limit`."""
        parked, ready = self._parked, self._ready
        while parked and parked[0][0] <= limit:
            flow = heappop(parked)[2]  # its tag may have grown since; if so it is parked again below
            flow.parked = False
            ticket = flow.top()
            if ticket is not None:
                self._show(flow, ticket)
        while ready:
            _, number, flow = ready[0]
            ticket = flow.top() if flow.shown == number else None
            if ticket is None:  # a flow that is empty, or an entry that an earlier due ticket replaced
                heappop(ready)
                if flow.shown == number:
                    flow.shown = -1
            elif ticket.number != number:
                flow.shown = ticket.number
                heapreplace(ready, (ticket.due, ticket.number, flow))
            elif flow.account.tag > limit:
                heappop(ready)
                flow.shown = -1
                flow.parked = True
                heappush(parked, (flow.account.tag, number, flow))
            else:
                return ticket
        return None

    def _show(self, flow: _Flow[T], ticket: T) -> None:
        flow.shown = ticket.number
        heappush(self._ready, (ticket.due, ticket.number, flow))

    def _rebuild(self) -> None:
        """Leave every dead entry behind; what is parked is found again by the next `head`."""
        self._ready.clear()
        self._parked.clear()
        self._tags.clear()
        for account, flow in list(self._flows.items()):
            flow.tickets = [entry for entry in flow.tickets if entry[2].queued]
            flow.parked = False
            if not flow.tickets:
                del self._flows[account]
                continue
            heapify(flow.tickets)
            self._tags.append((account.tag, flow.tickets[0][1], flow))
            self._show(flow, flow.tickets[0][2])
        heapify(self._tags)
        self._stored = self.count


class FairQueue(Generic[T]):
    """All waiting tickets. Ordinary ones may share a batch with others of their key; large ones always go alone."""

    def __init__(self, slack: float = 0.0) -> None:
        self.slack = slack
        self.count = 0
        self.pixels = 0
        self.seconds = 0.0
        self.weight = 0.0  # of the clients that have something waiting
        self._virtual = 0.0  # the floor when work was last dispatched: where newcomers start
        self._newest = 0.0  # the largest tag
        self._accounts: dict[str, Account] = {}
        self._sweep_at = 2 * _SPARE
        self._ordinary = Order[T]()
        self._large = Order[T]()
        self._lanes: dict[Hashable, Order[T]] = {}
        self._held: set[Hashable] = set()

    def __iter__(self) -> Iterator[T]:
        return chain(self._large, *self._lanes.values())

    @property
    def clients(self) -> int:
        """Clients that are remembered."""
        return len(self._accounts)

    def account(self, client: str, weight: float) -> Account:
        """The client's account; a new or returning client starts level with those who wait, never behind them."""
        account = self._accounts.get(client)
        if account is None:
            if len(self._accounts) >= self._sweep_at:
                self._sweep()
            account = self._accounts[client] = Account(client, weight, self._virtual)
        if not account.waiting:
            account.weight = weight
            account.tag = max(account.tag, self._virtual)
        return account

    def add(self, ticket: T) -> None:
        """Let the ticket wait."""
        ticket.queued = True
        account = ticket.account
        if not account.waiting:
            self.weight += account.weight
        account.waiting += 1
        account.seconds += ticket.seconds
        self.count += 1
        self.pixels += ticket.cost
        self.seconds += ticket.seconds
        if ticket.large:
            self._large.add(ticket)
            return
        lane = self._lanes.get(ticket.key)
        if lane is None:
            lane = self._lanes[ticket.key] = Order[T]()
        lane.add(ticket)
        if ticket.key not in self._held:
            self._ordinary.add(ticket)

    def remove(self, ticket: T) -> None:
        """Let the ticket wait no longer, without having been served."""
        ticket.queued = False
        account = ticket.account
        account.waiting -= 1
        account.seconds = account.seconds - ticket.seconds if account.waiting else 0.0
        if not account.waiting:
            self.weight -= account.weight
        self.count -= 1
        self.pixels -= ticket.cost
        self.seconds = self.seconds - ticket.seconds if self.count else 0.0
        self.weight = self.weight if self.count else 0.0
        if ticket.large:
            self._large.forget(ticket)
            return
        lane = self._lanes[ticket.key]
        if ticket.key not in self._held:
            self._ordinary.forget(ticket)
        lane.forget(ticket)
        if not lane.count:
            del self._lanes[ticket.key]
            self._held.discard(ticket.key)

    def take(self, ticket: T) -> None:
        """Serve the ticket: remove it and charge its client."""
        self.remove(ticket)
        account = ticket.account
        account.tag += max(1, ticket.cost) / account.weight
        self._newest = max(self._newest, account.tag)

    def settle(self) -> None:
        """Nothing waits and nothing runs: whoever comes next starts level, whatever was used before."""
        self._virtual = self._newest

    def lead(self, *, large: bool) -> T | None:
        """The ticket that the next batch is formed around; large ones only where they may run now."""
        orders = (self._ordinary, self._large) if large else (self._ordinary,)
        floors = [floor for floor in (order.floor() for order in orders) if floor is not None]
        if not floors:
            return None
        self._virtual = max(self._virtual, min(floors))
        heads = [ticket for ticket in (order.head(min(floors) + self.slack) for order in orders) if ticket is not None]
        return min(heads, key=lambda ticket: (ticket.due, ticket.number))

    def rider(self, key: Hashable) -> T | None:
        """The ticket of that key that goes along next."""
        lane = self._lanes.get(key)
        floor = lane.floor() if lane is not None else None
        return lane.head(floor + self.slack) if lane is not None and floor is not None else None

    def waiting(self, key: Hashable) -> tuple[int, int]:
        """Ordinary tickets of that key, and their pixels."""
        lane = self._lanes.get(key)
        return (lane.count, lane.pixels) if lane is not None else (0, 0)

    def hold(self, key: Hashable) -> None:
        """Keep a key that has nothing waiting out of `lead` until it is released."""
        self._held.add(key)

    def release(self, key: Hashable) -> None:
        """Let a held key's tickets lead."""
        if key in self._held:
            self._held.discard(key)
            for ticket in self._lanes.get(key, ()):
                self._ordinary.add(ticket)

    def held(self, key: Hashable) -> bool:
        """Whether the key waits for more jobs."""
        return key in self._held

    def _sweep(self) -> None:
        """Forget clients that have nothing waiting: first those for which it changes nothing, then those least ahead."""
        idle = [account for account in self._accounts.values() if not account.waiting and account.tag > self._virtual]
        idle.sort(key=lambda account: account.tag)
        kept = [account for account in self._accounts.values() if account.waiting] + idle[-_MOST_IDLE:]
        self._accounts = {account.name: account for account in kept}
        self._sweep_at = 2 * len(kept) + 2 * _SPARE
