"""Many appointments on one timer."""

from __future__ import annotations

from batching import FakeClock

from app.alarms import Alarms


class Item:
    def __init__(self, name: str) -> None:
        self.name = name
        self.live = True


class Board:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.rung: list[tuple[float, list[str]]] = []
        self.alarms = Alarms[Item](self.clock, lambda item: item.live, self.ring)

    def ring(self, items: list[Item]) -> None:
        self.rung.append((round(self.clock.now - 1000.0, 6), [item.name for item in items]))

    def add(self, name: str, after: float) -> Item:
        item = Item(name)
        self.alarms.add(self.clock.now + after, item)
        return item


def test_each_item_rings_at_its_time_on_one_timer() -> None:
    board = Board()
    for after in (3, 1, 2):
        board.add(str(after), after)
    assert board.clock.pending() == 1
    board.clock.advance(10.0)
    assert board.rung == [(1.0, ["1"]), (2.0, ["2"]), (3.0, ["3"])]
    assert board.clock.pending() == 0


def test_what_is_due_together_rings_together() -> None:
    board = Board()
    board.add("a", 1.0)
    board.add("b", 1.0)
    board.add("c", 1.5)
    board.clock.now += 1.2  # the loop was late
    board.clock.advance(0.0)
    assert board.rung == [(1.2, ["a", "b"])]


def test_a_dead_item_is_silent() -> None:
    board = Board()
    first, _ = board.add("a", 1.0), board.add("b", 2.0)
    first.live = False
    board.clock.advance(5.0)
    assert board.rung == [(2.0, ["b"])]


def test_a_timer_that_fires_early_is_set_again_without_spinning() -> None:
    board = Board()
    board.add("a", 1.0)
    timer = board.clock.timers[0]
    board.clock.now += 0.9999
    board.clock.timers.clear()
    timer[3]()  # uvloop rounds to milliseconds
    assert board.rung == []
    assert board.clock.timers[0][0] - board.clock.now > 0.0009
    board.clock.advance(0.001)
    assert [names for _, names in board.rung] == [["a"]]


def test_dead_items_do_not_pile_up() -> None:
    board = Board()
    for i in range(10_000):
        board.add(str(i), 10.0).live = False
    assert len(board.alarms._items) < 200
