"""A searcher's query processes: each answers one query at a time, and is replaced when it ends or is stuck."""

from __future__ import annotations

import logging
import queue
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from app.cluster.searcher.query_process import PackQuery
from app.errors import PackCorrupt, SearchTimeout
from app.search.contract import SearchRequest, SuggestRequest
from app.search.pack_searcher import OPENING_SECONDS, PackSearcher
from app.search.search_settings import NO_SETTINGS, SearchSettings

log = logging.getLogger(__name__)

#: Packs that one process keeps open at most: those that were searched last.
_MAX_OPEN: Final = 500
#: Processes that one query may end. SQLite can crash on a damaged file.
_ATTEMPTS: Final = 2
#: Seconds that a process may take to end after its socket is closed.
_ENDING_SECONDS: Final = 1.0


class QueryProcess:
    """One process and the packs that it has open, for one thread at a time."""

    def __init__(self, *, time_limit: float, patience: float) -> None:
        """Start the process. A query may take `time_limit` seconds; after `patience` seconds its process is killed."""
        self._time_limit = time_limit
        self._patience = patience
        #: The settings by which each open pack is searched, None after a query that failed.
        self._open: OrderedDict[Path, SearchSettings | None] = OrderedDict()
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._open.clear()
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "app.cluster.searcher.query_process", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)  # noqa: S603 (ours)
        self._connection = Connection(ours.detach())

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def answer(self, searcher: PackSearcher, request: SearchRequest | SuggestRequest) -> bytes:
        """Return the reply of a pack, and raise what its search raises; SearchTimeout for a stuck query.

        Raises PackCorrupt if the query ends two processes.
        """
        with self._lock:
            for _ in range(_ATTEMPTS):
                path, settings = searcher.path, searcher.settings
                # The first query of a pack opens it, which may take a while on a slow disk.
                patience = self._patience + (0.0 if path in self._open else OPENING_SECONDS)
                is_unchanged = self._open.pop(path, NO_SETTINGS) is settings
                closing = (self._open.popitem(last=False)[0],) if len(self._open) >= _MAX_OPEN else ()
                self._open[path] = None
                query = PackQuery(path, request, self._time_limit, None if is_unchanged else settings, closing)
                try:
                    answer = self._exchange(query, seconds=patience)
                except (EOFError, OSError) as error:
                    log.warning("Query process %d ended, it is started again: %r", self.pid, error)
                    self._end(0.0)
                    self._start()
                else:
                    self._open[path] = settings
                    return answer
        raise PackCorrupt(f"{searcher.path.name}: the process that searched it ended {_ATTEMPTS} times")

    def _exchange(self, query: PackQuery, *, seconds: float) -> bytes:
        """Return the process's answer; raises EOFError or OSError if it has ended."""
        self._connection.send(query)
        if not self._connection.poll(seconds):
            log.error("Query process %d killed: stuck for %g s in %s", self.pid, seconds, query)
            self._end(0.0)
            self._start()
            raise SearchTimeout(f"the search took longer than {seconds:g} s")
        answer = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return bytes(answer)

    def close_pack(self, path: Path) -> None:
        """Close a pack, after the query that runs."""
        with self._lock:
            if path in self._open:
                del self._open[path]
                with suppress(EOFError, OSError, SearchTimeout):
                    self._exchange(PackQuery(path, None, self._time_limit, closing=(path,)), seconds=self._patience)

    def close(self) -> None:
        """End the process, after the query that runs."""
        with self._lock:
            self._end(_ENDING_SECONDS)

    def _end(self, seconds: float) -> None:
        self._connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self._process.kill()
        self._process.wait()


class QueryPool:
    """Query processes: as many queries run at the same time as there are processes, and further ones wait."""

    def __init__(self, processes: int, *, time_limit: float, patience: float) -> None:
        """QueryProcess documents the other parameters."""
        self._processes = [QueryProcess(time_limit=time_limit, patience=patience) for _ in range(processes)]
        # The process that answered last comes first: it has the most packs open.
        self._idle: queue.LifoQueue[QueryProcess] = queue.LifoQueue()
        for process in self._processes:
            self._idle.put(process)

    def answer(self, searcher: PackSearcher, request: SearchRequest | SuggestRequest) -> bytes:
        """Return the reply of a pack as JSON; raises what its search raises."""
        process = self._idle.get()
        try:
            return process.answer(searcher, request)
        finally:
            self._idle.put(process)

    def pids(self) -> Sequence[int]:
        """Return the process ids."""
        return [process.pid for process in self._processes]

    def close_pack(self, path: Path) -> None:
        """Close a pack in all processes: the room of its file is free once it is removed."""
        for process in self._processes:
            process.close_pack(path)

    def close(self) -> None:
        """End the processes, after the queries that run."""
        for process in self._processes:
            process.close()
