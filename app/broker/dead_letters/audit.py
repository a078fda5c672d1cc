"""Who did what with dead messages: one line a message and act, in a file that only its owner reads."""

from __future__ import annotations

import getpass
import json
import logging
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from ..errors import ApplicationError
from .letters import DeadLetter

logger = logging.getLogger(__name__)

Verb = Literal["replay", "drop", "restore"]


@dataclass(frozen=True, slots=True)
class Audit:
    """A file of JSON lines that is only appended to.

    A line is written when the message is safe elsewhere (confirmed in its queue, or exported and synced) and before it
    leaves the dead set. Killed at any point, no message has left without its line; one that has its line may still be
    there, too.
    """

    path: Path

    def check(self) -> None:
        """Raise ApplicationError where nothing can be noted: nothing is to be done then, either."""
        append(self.path, [])

    def write(self, act: Verb, letters: Iterable[tuple[DeadLetter, str]], **told: Any) -> None:
        """Append a line for each message and what came of it; `told` stands in each line. Raises ApplicationError."""
        who = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "user": _user(),
            "host": socket.gethostname(),
        }
        lines = [{**who, "act": act, **_line(letter), **told, "outcome": outcome} for letter, outcome in letters]
        for line in lines:
            logger.info("%(act)s %(id)s of %(set)s: %(outcome)s", line)
        append(self.path, lines)


def append(path: Path, lines: Iterable[Mapping[str, Any]], *, synced: bool = False) -> None:
    """Append JSON lines to a file for its owner's eyes, in one write; raises ApplicationError naming it."""
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_APPEND | os.O_CREAT | os.O_RDWR, 0o600)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            rest = memoryview(_broken_off(descriptor) + text)
            while rest:
                rest = rest[file.write(rest) :]
            if synced:
                os.fsync(descriptor)
    except OSError as error:
        raise ApplicationError(f"{path}: {error.strerror or error}") from error


def _broken_off(descriptor: int) -> bytes:
    """Return the end of a line that a full disk or a kill broke off: the next one must not be joined to it."""
    size = os.fstat(descriptor).st_size
    return b"\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""


def _line(letter: DeadLetter) -> dict[str, str]:
    return {"set": letter.set, "id": letter.id, "queue": letter.queue, "task": letter.cause.task}


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())
