"""Connections to one pack, whose statements have a time limit and whose errors say what is wrong with the pack."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from app.errors import PackCorrupt, SearchTimeout

#: `PERN` and the version of the schema, as in app/pack/schema.sql. A pack of another one is built again.
APPLICATION_ID: Final = 0x5045524E
SCHEMA_VERSION: Final = 1
#: Bytes of a value, and of a row, that are read. SQLite refuses more.
_MAX_ROW: Final = 256 * 2**20
#: Instructions of SQLite's virtual machine between two checks of the time limit.
_INSTRUCTIONS: Final = 1_000


class ConnectionPool:
    """Read-only connections to one pack, one for each search that is under way, from any thread."""

    def __init__(self, path: Path) -> None:
        """Connect to the SQLite database at `path`. The file must not change while the pool is open."""
        self._path = path
        self._uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def connection(self, time_limit: float, *, max_row: int = _MAX_ROW) -> Iterator[sqlite3.Connection]:
        """Borrow a connection for the block, whose statements may take `time_limit` seconds together.

        Raises SearchTimeout after the time limit. Raises PackCorrupt for a row of more than `max_row` bytes, for a page
        that only the index has, and for any other error of SQLite.
        """
        connection = None
        try:
            connection = self._borrow()
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max_row)
            deadline = time.monotonic() + time_limit
            connection.set_progress_handler(lambda: time.monotonic() >= deadline, _INSTRUCTIONS)
            yield connection
        except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite quotes invalid texts of the schema in its errors.
            # An error of Python's module, such as one for invalid UTF-8, has no code.
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                raise SearchTimeout(f"the search took longer than {time_limit:g} s") from error
            raise PackCorrupt(f"{self._path.name}: {error}") from error
        except (TypeError, ValueError, OverflowError) as error:  # A foreign pack may have any value anywhere.
            raise PackCorrupt(f"{self._path.name}: it has a value that no packer writes: {error}") from error
        except LookupError as error:
            raise PackCorrupt(f"{self._path.name}: its index has a page that it lacks: {error}") from error
        finally:
            if connection is not None:
                connection.set_progress_handler(None, 0)
                with self._lock:
                    if self._closed:
                        connection.close()
                    else:
                        self._idle.append(connection)

    def close(self) -> None:
        """Close the idle connections now, and borrowed ones when they are given back."""
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
        with suppress(sqlite3.DatabaseError):  # The first real statement reports a file that is not a database.
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA query_only = ON")
        return connection


def check_version(connection: sqlite3.Connection, name: str) -> None:
    """Raise PackCorrupt for a database that is no pack of this release's schema version. `name` is that of its file."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise PackCorrupt(f"{name}: not a pack: application_id {application}")
    if version != SCHEMA_VERSION:
        raise PackCorrupt(
            f"{name}: schema version {version}, this release reads {SCHEMA_VERSION}; "
            "`perennial pack DOMAIN` rebuilds it from the stored pages"
        )
