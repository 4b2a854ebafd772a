"""The users: they follow the plan of their generator, and everything they send is checked and recorded."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, ClassVar

import gevent
import gevent.event
import gevent.pool
from locust import FastHttpUser, task

from locustfiles.answers import Ask, Judged
from locustfiles.arrivals import Phase, poisson, rhythm
from locustfiles.attacks import Attack
from locustfiles.generator import Generator
from locustfiles.samples import ERROR, FAILURES, OK, Label
from locustfiles.session import Session
from locustfiles.target import credentials
from locustfiles.uploads import upload

MOST_OUT = 1000  # requests one user may have out at once; an arrival beyond that counts as not sent


class VisionUser(FastHttpUser):
    """Base of all users. A scenario file sets ``session``; side traffic overrides ``act``."""

    abstract = True
    concurrency = MOST_OUT
    network_timeout = 30.0
    connection_timeout = 10.0
    follows_plan = True  # and shares in its rates
    session: ClassVar[Session]

    def on_start(self) -> None:
        """Waits until the generator has learned the right answers."""
        self._group = gevent.pool.Group()
        self.dice = random.Random(id(self) ^ time.time_ns())
        self.generator: Generator = self.session.generator
        self.generator.users += self.follows_plan
        self.generator.ready.wait()

    def on_stop(self) -> None:
        """Gives up what is still out."""
        self.generator.users -= self.follows_plan
        self._group.kill(block=False)

    @task
    def play(self) -> None:
        """Does what this kind of user does, once, then waits to be stopped."""
        self.act()
        gevent.event.Event().wait()

    def act(self) -> None:
        """Plays every phase of the plan."""
        for phase, begin, end in self.generator.timeline():
            getattr(self, f"_{phase.model}")(phase, begin, end)

    def _idle(self, phase: Phase, begin: float, end: float) -> None:
        self.generator.sleep_until(end)

    def _closed(self, phase: Phase, begin: float, end: float) -> None:
        while self.generator.now() < end:
            self.ask(self.generator.next_ask(), phase.name)
        self.generator.close(phase)

    def _paced(self, phase: Phase, begin: float, end: float) -> None:
        rate = self.generator.rate_of(phase) / self.generator.users
        for due in rhythm(self.dice, begin, end, rate):
            self.generator.ledger.intend(phase.name)
            if self.generator.now() < end:
                self.generator.sleep_until(due)
                self.ask(self.generator.next_ask(), phase.name)
        self.generator.sleep_until(end)

    def _open(self, phase: Phase, begin: float, end: float) -> None:
        rate = self.generator.rate_of(phase) / self.generator.users
        for due in poisson(self.dice, begin, end, rate):
            self.generator.ledger.intend(phase.name)
            if self.generator.now() < end:
                self.generator.sleep_until(due)
                if len(self._group) < MOST_OUT:
                    self._group.spawn(self.ask, self.generator.next_ask(), phase.name, due)
        self.generator.sleep_until(end)

    def ask(self, ask: Ask, phase: str, intended_s: float | None = None, *, arm: str = "good", host: str = "") -> Judged:
        """Sends one question, checks the answer and records both. Latency counts from ``intended_s`` where it is given."""
        generator = self.generator
        body, content_type = upload(ask.picture, ask.form)
        generator.out += 1
        begun_s = generator.now()
        with self.client.post(
            f"{host}/v1/{ask.operator.path}",
            data=body,  # type: ignore[arg-type]  # the stubs forget bytes
            headers=credentials() | {"Content-Type": content_type},
            name=ask.operator.path,
            catch_response=True,
        ) as response:
            ended_s = generator.now()
            generator.out -= 1
            started_s = begun_s if intended_s is None else intended_s
            response.request_meta["response_time"] = (ended_s - started_s) * 1e3
            judged = self._judge(ask, response)
            if judged.outcome in FAILURES:
                response.failure(f"{judged.outcome}: {judged.complaint}")
                generator.ledger.complain(f"{ask.operator.path}, {ask.picture.name}, {phase}: {judged.complaint}")
            else:
                response.success()
        label = Label(arm, ask.operator.path, ask.picture.size, ask.form, phase, judged.outcome, judged.code)
        latency_ms, service_ms = (ended_s - started_s) * 1e3, (ended_s - begun_s) * 1e3
        generator.ledger.samples.add(label, started_s, latency_ms, service_ms, judged.batch)
        generator.answered(phase, judged.outcome)
        return judged

    def _judge(self, ask: Ask, response: Any) -> Judged:
        if not response.status_code:
            return Judged(ERROR, type(response.error).__name__, complaint=f"no answer: {response.error!r}")
        return self.generator.book.judge(ask, response.status_code, response.headers, response.content or b"")


class SideUser(VisionUser):
    """Base of users beside the good traffic, with a rhythm of their own."""

    abstract = True
    follows_plan = False

    def side(self, arm: str, do: Callable[[], Judged]) -> None:
        """Does something and records how it went and how long it took."""
        generator = self.generator
        begun_s = generator.now()
        judged = do()
        ended_s = generator.now()
        phase, spent_ms = generator.phase_at(ended_s), (ended_s - begun_s) * 1e3
        if judged.complaint:
            generator.ledger.complain(judged.complaint)
        generator.ledger.samples.add(Label(arm, "", "", "", phase, judged.outcome, judged.code), begun_s, spent_ms, spent_ms)

    def send(self, path: str, name: str, judge: Callable[[int, Any, bytes], Judged], **request: Any) -> Judged:
        """Any request, judged by ``judge(status, headers, body)``."""
        method = request.pop("method", "GET")
        with self.client.request(method, path, name=name, catch_response=True, **request) as response:
            if not response.status_code:
                judged = Judged(ERROR, type(response.error).__name__, complaint=f"{name}: no answer: {response.error!r}")
            else:
                judged = judge(response.status_code, response.headers, response.content or b"")
            response.failure(judged.complaint) if judged.outcome in FAILURES else response.success()
        return judged

    def probe(self, path: str, arm: str) -> None:
        """Asks a path that must answer 200."""

        def judge(status: int, headers: Any, body: bytes) -> Judged:
            wrong = None if status == 200 else f"{path} answers {status}"
            return Judged(ERROR if wrong else OK, str(status), complaint=wrong)

        self.side(arm, lambda: self.send(path, path, judge))


class Attacker(SideUser):
    """Base of users that send bad requests."""

    abstract = True

    def attack(self, attack: Attack) -> None:
        """Sends one and checks that it gets its problem."""
        headers = credentials() | {"Content-Type": attack.content_type, "Accept": attack.accept}
        self.side(
            "hostile",
            lambda: self.send(attack.path, attack.name, attack.judge, method=attack.method, data=attack.body, headers=headers),
        )
