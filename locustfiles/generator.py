"""One load-generating process: what it asks, its clock, and whether it kept up itself."""

from __future__ import annotations

import itertools
import logging
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import gevent
import gevent.event
import psutil
from geventhttpclient import HTTPClient

from locustfiles import control, oracles
from locustfiles.answers import AnswerBook, Ask, refusal
from locustfiles.arrivals import Phase
from locustfiles.decks import Deck
from locustfiles.images import pictures
from locustfiles.ledger import Health, Ledger
from locustfiles.samples import OK, Label, percentile
from locustfiles.slo import QUANTILES, ScenarioSlo
from locustfiles.target import Reply, Target, Unreachable
from locustfiles.uploads import upload

Plan = Callable[[ScenarioSlo, float], list[Phase]]

logger = logging.getLogger(__name__)

MOST_TRIES, PAUSE_S = 10, 0.3  # to get one answer before the load
PULSE_S = 0.02
GRACE_S = 15.0  # for answers that are still out when the plan ends; the service's own deadline is shorter


@dataclass
class Generator:
    """Prepares, keeps the time and gathers the samples of one process. Users wait for ``ready`` and follow ``phases``."""

    host: str
    slo: ScenarioSlo
    deck_of: Deck
    plan: Plan
    generators: int = 1
    ledger: Ledger = field(default_factory=Ledger)
    book: AnswerBook = field(default_factory=AnswerBook)
    ready: gevent.event.Event = field(default_factory=gevent.event.Event)
    ended: gevent.event.Event = field(default_factory=gevent.event.Event)
    phases: list[Phase] = field(default_factory=list)
    users: int = 0  # of this process that follow the plan
    out: int = 0  # requests sent and not yet answered
    deck_size: int = 0
    receive_timeout_s: float = 15.0  # the service's limit, where it states one
    capacity: float = 0.0  # answers per second of this process in its last closed phase
    _cut: gevent.event.Event = field(default_factory=gevent.event.Event)
    _deck: Iterator[Ask] = field(default_factory=lambda: iter(()))
    _began: float = 0.0
    _answered: dict[str, int] = field(default_factory=dict)
    _late_ms: list[tuple[float, float]] = field(default_factory=list)
    _busy_s: list[tuple[float, float]] = field(default_factory=list)

    # -- the clock ---------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds since the plan began."""
        return time.perf_counter() - self._began

    def sleep_until(self, at_s: float) -> None:
        """Waits for an instant of the plan."""
        gevent.sleep(max(0.0, at_s - self.now()))

    def is_over(self) -> bool:
        """Whether the plan has ended."""
        return self.now() >= self._end_s

    def end_now(self) -> None:
        """Cuts the current phase, and with it the plan, short."""
        now = self.now()
        kept = [replace(phase, seconds=min(phase.seconds, now - begin)) for phase, begin, _ in self.timeline() if begin < now]
        self.phases = self.ledger.phases = kept
        self._cut.set()

    @property
    def _end_s(self) -> float:
        return sum(phase.seconds for phase in self.phases)

    def timeline(self) -> Iterator[tuple[Phase, float, float]]:
        """Each phase with its begin and end."""
        begin = 0.0
        for phase in self.phases:
            yield phase, begin, begin + phase.seconds
            begin += phase.seconds

    def phase_at(self, at_s: float) -> str:
        """Name of the phase an instant falls into; what ends after the plan belongs to the last."""
        return next((phase.name for phase, _, end in self.timeline() if at_s < end), self.phases[-1].name)

    def rate_of(self, phase: Phase) -> float:
        """This process's part of a phase's rate, in requests per second."""
        return phase.rate * self.capacity if phase.of_capacity else phase.rate / self.generators

    # -- one run -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Prepares, lets the users go, and returns when the plan has ended and its answers are in."""
        try:
            with control.running() if control.available() else _nothing() as address:
                self._prepare()
                self._began = time.perf_counter()
                self.ledger.began.append(time.time())
                side = [gevent.spawn(self._pulse)] + ([gevent.spawn(self._ask_control, address)] if address else [])
                self.ready.set()
                self._await_end()
                gevent.killall(side)
            self.ledger.health.append(self._health())
        except Unreachable as error:
            self.ledger.invalid.append(str(error))
        except Exception as error:
            logger.exception("the generator failed")
            self.ledger.invalid.append(f"the generator failed: {error!r}")
        finally:
            self.ledger.finished += 1
            self.ended.set()

    def hand_over(self) -> dict[str, Any]:
        """What was gathered since the last time, for a message to the master."""
        gathered, self.ledger = self.ledger, Ledger(phases=self.phases)
        return gathered.to_wire()

    def next_ask(self) -> Ask:
        """The next question of the deck."""
        return next(self._deck)

    def answered(self, phase: str, outcome: str) -> None:
        """Counts right answers; what the closed phase achieved becomes the capacity."""
        if outcome == OK:
            self._answered[phase] = self._answered.get(phase, 0) + 1

    def close(self, phase: Phase) -> None:
        """Ends a closed phase: its rate of right answers is the capacity that later rates are multiples of."""
        if not self.capacity:
            self.capacity = self._answered.get(phase.name, 0) / phase.seconds
            self.ledger.capacity = self.capacity

    def _prepare(self) -> None:
        target = Target(self.host)
        deck = self.deck_of(target.operators(), self.slo)
        spent_ms = {}
        for ask in {ask.key: ask for ask in deck}.values():
            spent_ms[ask.key] = self._learn(target, ask)
            gevent.sleep(0)  # heartbeats and the web UI go on
        library_ms = statistics.mean(spent_ms[ask.key] for ask in deck)
        self.ledger.library_ms.append(library_ms)
        self.ledger.connect_ms.append(_connect_ms(self.host))
        self.ledger.by_first_answer = {ask.operator.path for ask in deck} - self.book.checked_by_oracle()
        rate = self._offered(library_ms)
        self.phases = self.ledger.phases = self.plan(self._long_enough(deck, rate), rate)
        for ask in deck:
            upload(ask.picture, ask.form)
        self._deck, self.deck_size = itertools.cycle(deck), len(deck)
        self.receive_timeout_s = target.limit("receive_timeout_s", self.receive_timeout_s)

    def _learn(self, target: Target, ask: Ask) -> float:
        """Asks once, alone, and checks the answer. Returns what the direct library call takes, in milliseconds."""
        spent, check = [0.0], None
        if control.available():
            spent = []
            for _ in range(1 if ask.picture.size == "large" else 3):
                begun = time.perf_counter()
                check = oracles.oracle(ask.operator.path, ask.picture.data)
                spent.append((time.perf_counter() - begun) * 1e3)
        reply = self._asked_alone(target, ask)
        if reply.status != 200:
            raise Unreachable(f"{ask.operator.path} answers {reply.status} before any load: {reply.body[:200]!r}")
        if complaint := self.book.learn(ask, reply.body, check):
            self.ledger.complain(f"{ask.operator.path}, {ask.picture.name}, alone: {complaint}")
        return min(spent)

    def _asked_alone(self, target: Target, ask: Ask) -> Reply:
        """The answer given before the load. A refusal is counted, and after its pause the question is asked again."""
        body, content_type = upload(ask.picture, "raw")
        for _ in range(MOST_TRIES):
            reply = target.fetch(f"/v1/{ask.operator.path}", body, {"Content-Type": content_type})
            refused = refusal(reply.status, reply.headers, reply.body)
            if refused is None:
                break
            label = Label("good", ask.operator.path, ask.picture.size, "raw", "alone", refused.outcome, refused.code)
            self.ledger.samples.add(label, 0.0, 0.0, 0.0)
            if refused.complaint:
                self.ledger.complain(f"{ask.operator.path}, alone: {refused.complaint}")
            gevent.sleep(PAUSE_S)
        return reply

    def _offered(self, library_ms: float) -> float:
        """Requests per second to offer: as the file says, else what keeps ``load`` cores busy with direct calls."""
        if self.slo.rate_per_s is not None:
            return self.slo.rate_per_s
        return 1000 * self.slo.load / library_ms if self.slo.load and library_ms else 0.0

    def _long_enough(self, deck: list[Ask], rate: float) -> ScenarioSlo:
        """The objectives with the judged time drawn out, at most to the double, until every group has its samples."""
        if not rate:
            return self.slo
        needed = float(self.slo.required_samples())
        for path in {ask.operator.path for ask in deck}:
            if (limits := self.slo.operators.get(path, self.slo.operators.get("each"))) is not None:
                dealt = sum(ask.operator.path == path and ask.picture.size == "small" for ask in deck)
                needed = max(needed, limits.required_samples() * len(deck) / max(dealt, 1))
        seconds = max(self.slo.duration_s, min(1.1 * needed / rate, 2 * self.slo.duration_s))
        return self.slo.model_copy(update={"duration_s": seconds})

    def _await_end(self) -> None:
        self._cut.wait(timeout=self._end_s - self.now())
        end = self._end_s
        while self.out and self.now() < end + GRACE_S:
            gevent.sleep(0.02)
        for _ in range(self.out):
            self.ledger.samples.add(Label("good", "", "", "", "unanswered", "error", "no-answer"), end, 1e3 * GRACE_S, 1e3 * GRACE_S)

    # -- whether the generator kept up ---------------------------------------------------------------------------------

    def _pulse(self) -> None:
        process = psutil.Process()
        while True:
            due = self.now() + PULSE_S
            gevent.sleep(PULSE_S)
            now = self.now()
            # As a request would have met it that was due in each pulse that was missed meanwhile, not only in the first.
            missed = range(int((now - due) / PULSE_S) + 1)
            self._late_ms += [(now, (now - due - number * PULSE_S) * 1e3) for number in missed]
            times = process.cpu_times()
            self._busy_s.append((now, times.user + times.system))

    def _health(self) -> Health:
        judged = [(begin, end) for phase, begin, end in self.timeline() if phase.judged]
        late = sorted(ms for at, ms in self._late_ms if any(begin <= at < end for begin, end in judged))
        busy = wall = 0.0
        for begin, end in judged:
            inside = [(at, seconds) for at, seconds in self._busy_s if begin <= at < end]
            if len(inside) > 1:
                busy += inside[-1][1] - inside[0][1]
                wall += inside[-1][0] - inside[0][0]
        return Health(
            cpu=busy / wall if wall else 1.0,
            lag_ms={name: percentile(late, quantile) if late else 1e3 for name, quantile in QUANTILES.items()},
        )

    def _ask_control(self, address: str) -> None:
        picture = pictures("small")[0]
        with_keepalive = HTTPClient.from_url(address, concurrency=1, network_timeout=GRACE_S)
        while True:
            begun = time.perf_counter()
            library_ms = float(with_keepalive.post("/", body=picture.data).read())
            spent_ms = (time.perf_counter() - begun) * 1e3
            now = self.now()
            label = Label("control", "", picture.size, "raw", self.phase_at(now), OK, "")
            self.ledger.samples.add(label, now, spent_ms, library_ms)
            gevent.sleep(control.EVERY_S)


class _nothing:  # noqa: N801 (used as a function)
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _connect_ms(host: str) -> float:
    """Median time of a TCP handshake: the distance, which no limit should hold against the service."""
    parts = urlsplit(host)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    spent = []
    for _ in range(5):
        begun = time.perf_counter()
        try:
            socket.create_connection((parts.hostname or "", port), timeout=5).close()
        except OSError as error:
            raise Unreachable(f"{host} cannot be connected to: {error}") from error
        spent.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(spent)
