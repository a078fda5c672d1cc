"""One private service: what is started, how it is known, when it answers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.errors import ServicesError
from app.services import process


@dataclass(frozen=True, slots=True)
class Service:
    """How to run one service. `answers` says whether it accepts our own credentials; times are in seconds."""

    name: str
    directory: Path
    programs: frozenset[str]
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    ports: Sequence[str]
    answers: Callable[[], bool]
    start_timeout: float
    stop_timeout: float

    def pids(self) -> list[int]:
        """Return the ids of its running processes: none or one."""
        return process.running(self.directory, self.programs)

    def is_up(self) -> bool:
        """Return whether our own process runs and answers."""
        return bool(self.pids()) and self.answers()

    def start(self) -> int:
        """Keep what runs and answers, start what does not; return its process id.

        Raises:
            ServicesError: it ended or did not answer in time; with the last lines of its log.
        """
        if self.pids() and process.wait_until(self._settled, self.start_timeout / 4) and self.pids():
            return self.pids()[0]
        self.stop()
        child = process.start(self.argv, directory=self.directory, env=self.env, log=self.log)
        process.wait_until(lambda: child.poll() is not None or self.answers(), self.start_timeout)
        if child.poll() is None and self.answers():
            return child.pid
        raise self._failed(child)

    def stop(self) -> None:
        """End its processes; return when they are gone."""
        process.stop(self.directory, self.programs, grace=self.stop_timeout)

    def _settled(self) -> bool:
        return self.answers() or not self.pids()

    def _failed(self, child: subprocess.Popen[bytes]) -> ServicesError:
        code = child.poll()
        self.stop()
        what = f"did not answer in {self.start_timeout:.0f} s" if code is None else f"ended with exit code {code}"
        return ServicesError(
            f"{self.name} {what}; its log {self.log} ends with:\n{process.tail(self.log)}\n"
            "Try `perennial services down` and `up` again, or give BROKER_URL and REDIS_URL."
        )
