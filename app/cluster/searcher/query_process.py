"""`python -m app.cluster.searcher.query_process FD`: answers queries, one at a time, until its socket is closed.

A process can use one core for queries: SQLite gives up Python's global interpreter lock (GIL) at each row.
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from app.cluster.protocol import MB, to_json
from app.search.contract import SearchReply, SearchRequest, SuggestRequest
from app.search.pack_searcher import PackSearcher
from app.search.search_settings import SearchSettings

#: Bytes of a reply, well below the 16 MB that RabbitMQ 4 accepts by default.
MAX_REPLY: Final = 4 * MB


@dataclass(frozen=True, slots=True)
class PackQuery:
    """A query of one pack. `settings` are those to search by from now on, or None if they have not changed.

    `closing` are packs to close before.
    """

    path: Path
    request: SearchRequest | SuggestRequest | None
    time_limit: float
    settings: SearchSettings | None = None
    closing: tuple[Path, ...] = ()


def serve(connection: Connection) -> None:
    """Send the answer to each PackQuery: bytes, or the exception that a search raised."""
    searchers: dict[Path, PackSearcher] = {}
    with suppress(EOFError, OSError):
        while True:
            query = connection.recv()
            try:
                answer: bytes | Exception = _answer(query, searchers)
            except Exception as error:  # noqa: BLE001 - The searcher raises it again.
                answer = error
            connection.send(answer)


def _answer(query: PackQuery, searchers: dict[Path, PackSearcher]) -> bytes:
    for path in query.closing:
        if (closed := searchers.pop(path, None)) is not None:
            closed.close()
    request = query.request
    if request is None:
        return b""
    if query.path not in searchers:
        searchers[query.path] = PackSearcher(query.path, time_limit=query.time_limit)
    searcher = searchers[query.path]
    if query.settings is not None:
        searcher.apply(query.settings)
    if isinstance(request, SuggestRequest):
        return to_json(tuple(searcher.suggest(request.q, limit=request.limit)))
    return bounded_reply(searcher.reply(request))


def bounded_reply(reply: SearchReply) -> bytes:
    """Return a reply as JSON of at most MAX_REPLY bytes; the last hits are left out if their texts are too long."""
    body, hits = to_json(reply), reply.results.hits
    while len(body) > MAX_REPLY and hits:
        hits = hits[: len(hits) * MAX_REPLY // len(body)]
        body = to_json(replace(reply, results=replace(reply.results, hits=hits)))
    return body


if __name__ == "__main__":
    # The searcher drains when it is to stop, and then closes the socket.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])))
