"""Ties one scenario to Locust: one run on one machine or many, headless or with the web UI, ends in one verdict."""

from __future__ import annotations

import os
import platform
from argparse import Namespace
from datetime import datetime
from pathlib import Path
from typing import Any

import gevent
from locust import events
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from locustfiles import report
from locustfiles.decks import Deck
from locustfiles.generator import Generator, Plan
from locustfiles.ledger import Ledger
from locustfiles.observer import Observer
from locustfiles.slo import SLO_FILE, ScenarioSlo, SloFile, load_slo
from locustfiles.target import Unreachable
from locustfiles.verdict import Verdict, judge

_WIRE = "visionbatch"  # our part of Locust's report messages


class Session:
    """Made once by each scenario file; ``generator`` is what its users work for."""

    generator: Generator
    _runner: Any  # of Locust: local, master or worker

    def __init__(self, name: str, deck: Deck, plan: Plan, *, second_host: bool = False) -> None:
        self.name = name
        self._deck = deck
        self._plan = plan
        self._second_host = second_host
        self._verdict: Verdict | None = None
        events.init_command_line_parser.add_listener(_add_options)
        events.init.add_listener(self._on_init)
        events.test_start.add_listener(self._on_start)
        events.test_stop.add_listener(self._on_stop)
        events.quitting.add_listener(self._on_quitting)
        events.user_error.add_listener(self._on_user_error)

    @property
    def limits(self) -> ScenarioSlo:
        """This scenario's objectives under the chosen profile."""
        return self._file.scenarios[self.name]

    @property
    def unbatched_host(self) -> str:
        """Address of the second service, for the scenario that compares two."""
        return str(self._options.unbatched_host)

    def _on_init(self, environment: Environment, **_: Any) -> None:
        self._environment = environment
        options = self._options = environment.parsed_options or Namespace()
        self._read_objectives()
        options.num_users = options.num_users or self.limits.users
        options.spawn_rate = options.spawn_rate or options.num_users
        runner = self._runner = environment.runner
        self._is_worker = isinstance(runner, WorkerRunner)
        self._is_master = isinstance(runner, MasterRunner)
        if self._is_worker:
            environment.events.report_to_master.add_listener(self._report_to_master)
        if self._is_master:
            environment.events.worker_report.add_listener(self._take_report)
            self._runner.register_message(_WIRE, lambda msg, **_: self._ledger.merge(msg.data))
        if environment.web_ui is not None and environment.web_ui.app is not None:
            environment.web_ui.app.add_url_rule("/verdict", "verdict", self._page)

    def _read_objectives(self) -> None:
        """For each run anew: the web UI may have changed the options, and somebody the file."""
        self._file: SloFile = load_slo(Path(self._options.slo_file), self._options.slo_profile)
        if self._options.offered_rate:
            scenario = self.limits.model_copy(update={"rate_per_s": float(self._options.offered_rate)})
            self._file = self._file.model_copy(update={"scenarios": {**self._file.scenarios, self.name: scenario}})

    def _on_start(self, environment: Environment, **_: Any) -> None:
        host = environment.host or ""
        self._verdict = None
        self._read_objectives()
        self._ledger = Ledger()
        if self._is_master:  # the workers learn it with the message that starts them
            self._options.generators = self._runner.worker_count
        if not self._is_master:
            generators = getattr(environment.parsed_options, "generators", 1)
            self.generator = Generator(host, self.limits, self._deck, self._plan, generators, self._ledger)
            if self._second_host and not self.unbatched_host:
                self._ledger.invalid.append("--unbatched-host is needed: the same service that batches nothing")
            gevent.spawn(self.generator.run)
        if self._is_worker:
            gevent.spawn(self._report_the_end)
        if not self._is_worker:
            gevent.spawn(self._end_when_done)
            try:
                self._observer = Observer(host, self._options.server_pid)
            except Unreachable as error:
                self._ledger.invalid.append(str(error))
                self._observer = Observer(host)
            self._observer.start()

    def _on_user_error(self, exception: Exception, **_: Any) -> None:
        """A defect of ours, or of a worker's: what it hides cannot be judged."""
        if not self._is_master:
            self.generator.ledger.invalid.append(f"a user failed: {exception!r}")

    def _end_when_done(self) -> None:
        """Ends the run once every generator has ended its plan: there is no --run-time to get wrong."""
        if self._is_master:
            while self._ledger.finished < self._options.generators:
                gevent.sleep(0.1)
                if self._runner.worker_count < self._options.generators:
                    self._ledger.invalid.append("a worker was lost")
                    break
        else:
            self.generator.ended.wait()
        if self._options.headless:
            self._runner.quit()
        else:
            self._runner.stop()

    def _report_to_master(self, data: dict[str, Any], **_: Any) -> None:
        if hasattr(self, "generator"):
            data[_WIRE] = self.generator.hand_over()

    def _report_the_end(self) -> None:
        """At once: Locust's own reports leave every three seconds."""
        self.generator.ended.wait()
        self._runner.send_message(_WIRE, self.generator.hand_over())

    def _take_report(self, data: dict[str, Any], **_: Any) -> None:
        if _WIRE in data:
            self._ledger.merge(data[_WIRE])

    def _on_stop(self, **_: Any) -> None:
        if not self._is_worker and not self._options.headless:
            self._conclude()

    def _on_quitting(self, environment: Environment, **_: Any) -> None:
        if self._is_worker or not hasattr(self, "_ledger"):
            return
        if self._verdict is None:
            self._conclude()
        assert self._verdict is not None
        environment.process_exit_code = self._verdict.exit_code

    def _conclude(self) -> None:
        ledger = self._ledger if self._is_master else self.generator.ledger
        observed = self._observer.stop()
        self._verdict = judge(self.name, self._file, ledger, observed, os.environ.get("VISION_MACHINE"))
        now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
        generator = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
        self._verdict.where = f"{now}, {self._environment.host}, asked from {generator}"
        print(report.terminal([self._verdict]))
        report.write([self._verdict], Path(self._options.slo_out))

    def _page(self) -> str:
        return report.page([self._verdict]) if self._verdict else "No run has ended yet."


def _add_options(parser: LocustArgumentParser, **_: Any) -> None:
    parser.add_argument("--slo-file", default=str(SLO_FILE), help="the objectives", include_in_web_ui=False)
    parser.add_argument("--slo-profile", default="full", help="full | short | quick: how long, and what is judged")
    parser.add_argument("--slo-out", default="results/slo", help="folder for the reports", include_in_web_ui=False)
    parser.add_argument("--offered-rate", type=float, default=0.0, help="requests per second in all; 0 uses slo.yaml's")
    parser.add_argument("--unbatched-host", default="", help="batching: the same service with VISION_BATCH_COUNT=1")
    parser.add_argument("--server-pid", type=int, default=0, help="process whose memory is watched (default: /metrics)")
