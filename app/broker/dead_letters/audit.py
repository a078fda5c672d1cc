"""The audit file: one JSON line for each dead letter that an operator replayed, dropped or restored."""

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

AuditedAct = Literal["replay", "drop", "restore"]


@dataclass(frozen=True, slots=True)
class Audit:
    """A file of JSON lines, only appended to and readable by its owner only; without a path, the log only.

    A line is written once the letter is safe elsewhere: confirmed in its queue, or exported and synced. Only then is
    the letter removed from the dead set. So after a kill no letter has left without a line; a letter with a line may
    still be in the set.
    """

    path: Path | None = None

    def require_writable(self) -> None:
        """Raise ApplicationError if the file cannot be written: an act must not start then."""
        if self.path:
            append_lines(self.path, [])

    def write(self, act: AuditedAct, outcomes: Iterable[tuple[DeadLetter, str]], **details: Any) -> None:
        """Append a line for each letter and its outcome, each with the details. Raises ApplicationError."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        operator = {"time": time, "user": user_name(), "host": socket.gethostname(), "act": act}
        lines = []
        for letter, outcome in outcomes:
            identity = {"set": letter.set, "id": letter.id, "queue": letter.queue, "task": letter.cause.task}
            lines.append({**operator, **identity, **details, "outcome": outcome})
            logger.info("%s of dead letter %s in %s: %s", act, letter.id, letter.set, outcome)
        if self.path:
            append_lines(self.path, lines)


def user_name() -> str:
    """Return the name of the user of this process, or the id of one without a name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def append_lines(path: Path, lines: Iterable[Mapping[str, Any]], *, sync: bool = False) -> None:
    """Append objects as JSON lines in one write, to a file that only its owner can read.

    With `sync`, return only when they are on the disk. Raises ApplicationError, which names the file.
    """
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_APPEND | os.O_CREAT | os.O_RDWR, 0o600)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                # A full disk or a kill cut the last line: the next one must not be joined to it.
                text = b"\n" + text
            unwritten = memoryview(text)
            while unwritten:
                unwritten = unwritten[file.write(unwritten) :]
            if sync:
                os.fsync(descriptor)
    except OSError as error:
        raise ApplicationError(f"{path}: {error.strerror or error}") from error
