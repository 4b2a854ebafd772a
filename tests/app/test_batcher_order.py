"""Who goes first: deadlines between keys, fair shares between clients, priorities that age."""

from __future__ import annotations

from collections import Counter

from batching import Bench, job

from app.jobs import Limits

MP = 1_000_000


async def test_between_keys_the_earliest_deadline_goes_first() -> None:
    bench = Bench()
    now = bench.clock.now
    await bench.submit(job("busy"))
    await bench.submit(job("late", key="a", deadline=now + 9.0), job("soon", key="b", deadline=now + 3.0), job("never", key="c"))
    await bench.finish_all()
    assert bench.ran[1:] == [["soon"], ["late"], ["never"]]


async def test_within_a_key_the_earliest_deadline_goes_first_when_not_all_fit() -> None:
    bench = Bench(limits=Limits(batch_count=2))
    now = bench.clock.now
    await bench.submit(job("busy", key="other"))
    await bench.submit(*(job(seconds, deadline=now + seconds) for seconds in (5, 2, 9, 1)))
    await bench.finish_all()
    assert bench.ran[1:] == [[1, 2], [5, 9]]


async def test_an_urgent_job_passes_its_own_clients_backlog() -> None:
    bench = Bench(limits=Limits(batch_count=1, batch_pixels=2 * MP))
    now = bench.clock.now
    await bench.submit(job("busy"))
    await bench.submit(*(job(i, deadline=now + 10.0) for i in range(50)))
    await bench.submit(job("urgent", deadline=now + 0.5))
    await bench.finish()
    assert bench.ran[1] == ["urgent"]


async def test_a_newcomer_does_not_wait_behind_a_heavy_clients_backlog() -> None:
    bench = Bench(limits=Limits(batch_count=4, batch_pixels=4 * MP))
    await bench.submit(job("busy", client="heavy"))
    await bench.submit(*(job(f"heavy {i}", client="heavy") for i in range(100)))
    for _ in range(5):
        await bench.finish()
    await bench.submit(job("light", client="light"))
    ahead = len(bench.ran)
    while ["light"] not in [[p for p in payloads if p == "light"] for payloads in bench.ran]:
        await bench.finish()
    assert len(bench.ran) - ahead <= 2, "at most one batch of what the heavy client had ahead"


async def test_clients_share_by_weight_whatever_they_send() -> None:
    bench = Bench(limits=Limits(batch_count=4, batch_pixels=4 * MP))
    served: Counter[str] = Counter()
    await bench.submit(job("busy", client="other"))
    for client, weight, cost, key in (("one", 1.0, MP, "a"), ("two", 2.0, 2 * MP, "b"), ("three", 1.0, MP // 2, "a")):
        amount = 60 * MP // cost
        await bench.submit(*(job((client, cost), cost, key, client=client, weight=weight) for _ in range(amount)))
    assert bench.seen.drops == {}
    while sum(served.values()) < 80 * MP:
        await bench.finish()
        for client, cost in bench.executor.started[-1].payloads:
            served[client] += cost
    shares = {client: served[client] / sum(served.values()) for client in served}
    assert abs(shares["one"] - 0.25) < 0.07, shares
    assert abs(shares["two"] - 0.50) < 0.10, shares
    assert abs(shares["three"] - 0.25) < 0.07, shares


async def test_many_connections_of_one_client_get_one_share() -> None:
    """Eleven clients, one with 50 jobs always waiting and ten with one each: the ten are served in every round."""
    bench = Bench(slots=2, share=True, limits=Limits(batch_count=8, share_pixels=4 * MP))
    served: Counter[str] = Counter()
    waiting = {f"light {i}": 1 for i in range(10)} | {"heavy": 50}
    for client, connections in waiting.items():
        bench.queue(*(job(client, MP, client=client) for _ in range(connections)))
    await bench.settle()
    for _ in range(200):
        run = bench.executor.running[0]
        served.update(run.payloads)
        bench.clock.advance(0.004)
        run.finish()
        bench.queue(*(job(client, MP, client=client) for client in run.payloads))
        await bench.settle()
    total = sum(served.values())
    for i in range(10):
        assert served[f"light {i}"] >= 0.9 * total / 11, served


async def test_urgent_deadlines_do_not_buy_more_than_a_fair_share() -> None:
    bench = Bench(limits=Limits(batch_count=1, batch_pixels=2 * MP))
    served: Counter[str] = Counter()
    await bench.submit(job("busy", client="other"))
    now = bench.clock.now
    await bench.submit(*(job("patient", key="a", client="patient") for _ in range(100)))
    await bench.submit(*(job("pushy", key="b", client="pushy", deadline=now + 1.0) for _ in range(100)))
    for _ in range(80):
        await bench.finish()
        served.update(bench.executor.started[-1].payloads)
    assert abs(served["patient"] - served["pushy"]) <= 4, "equal but for one batch of slack"


async def test_a_higher_priority_goes_first_until_the_lower_one_has_waited() -> None:
    bench = Bench(limits=Limits(batch_count=1, age_s=1.0))
    await bench.submit(job("busy"))
    await bench.submit(job("low", priority=-2))
    served = []
    for i in range(8):
        await bench.submit(job(i, priority=0))
        await bench.advance(0.5)
        await bench.finish()
        served.append(bench.executor.started[-1].payloads[0])
    assert served == [0, 1, 2, 3, "low", 4, 5, 6], "two classes are made up for by two seconds"


async def test_an_idle_time_makes_everyone_equal_again() -> None:
    bench = Bench(limits=Limits(batch_count=1, batch_pixels=2 * MP))
    await bench.submit(*(job("a", client="a") for _ in range(40)))
    await bench.finish_all()
    await bench.submit(job("busy", client="c"))
    await bench.submit(job("a", client="a"), job("b", client="b"), job("a", client="a"), job("b", client="b"))
    bench.executor.started.clear()
    await bench.finish_all()
    assert bench.ran == [["a"], ["b"], ["a"], ["b"]], "what was used before is forgotten"
