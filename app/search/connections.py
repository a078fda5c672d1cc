"""Connections to one pack: read-only, one for each search under way, each within its time."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from app.errors import PackCorrupt, SearchTimeout

#: Virtual machine steps of SQLite between two looks at the clock.
_STEPS = 1_000


class Connections:
    """Lends connections from any thread."""

    def __init__(self, path: Path) -> None:
        """Lend connections to the SQLite database at `path`, which nobody may change meanwhile."""
        self._path = path
        self._uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def lend(self, seconds: float | None) -> Iterator[sqlite3.Connection]:
        """Lend a connection whose statements end after so many seconds from now, in all; None: never.

        Raises SearchTimeout when they did, PackCorrupt for any other error of SQLite.
        """
        connection = None
        try:
            connection = self._borrow()
            _set_deadline(connection, seconds)
            yield connection
        except sqlite3.Error as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                raise SearchTimeout(f"the search took longer than {seconds or 0:g} s") from error
            raise PackCorrupt(f"{self._path.name}: {error}") from error
        finally:
            if connection is not None:
                self._give_back(connection)

    def close(self) -> None:
        """Close; connections that are lent are closed when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _borrow(self) -> sqlite3.Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        connection = sqlite3.connect(self._uri, uri=True, check_same_thread=False, isolation_level=None)
        with suppress(sqlite3.DatabaseError):  # Not a database: the first real statement says so.
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA query_only = ON")
        return connection

    def _give_back(self, connection: sqlite3.Connection) -> None:
        connection.set_progress_handler(None, 0)
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()


def _set_deadline(connection: sqlite3.Connection, seconds: float | None) -> None:
    if seconds is None:
        return
    deadline = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() >= deadline, _STEPS)
