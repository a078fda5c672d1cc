"""One way to find, in a process of its own: it answers lists of queries, and tells how long each one took."""

from __future__ import annotations

import http.client
import json
import re
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from app.broker.publishing import Outgoing
from app.broker.rpc.requestor import Requestor
from app.cluster.client.cluster import ClusterSearchClient
from app.search.contract import SearchRequest
from app.search.pack_searcher import PackSearcher
from app.search.query import Query, parse
from app.search.ranking import WEIGHTS
from benchmarks.echo import QUEUE
from benchmarks.errors import BenchmarkError

#: Answers one query of a domain; returns the number of pages that match, or -1 where nobody counts them.
Search = Callable[[str, str], int]
#: What each thread calls once, for connections that it shares with no other.
Make = Callable[[], Search]

LIMIT = 10
_COLUMNS = "id, url, path, title, headings, description, body, lang"
_TOTAL = re.compile(rb'"total":\s*(\d+)')


def end_to_end(config: dict[str, Any]) -> Make:
    """Return who asks the web's API over one kept connection."""

    def make() -> Search:
        connection = _connect(config["web"])

        def search(domain: str, q: str) -> int:
            body = _get(connection, f"/api/v1/search?{urlencode({'domain': domain, 'q': q, 'limit': LIMIT})}")
            found = _TOTAL.search(body)
            return int(found[1]) if found else -1

        return search

    return make


def router(config: dict[str, Any]) -> Make:
    """Return what the web asks with: searchers over the broker, without HTTP."""
    finder = ClusterSearchClient(config["broker"], deadline=30.0)

    def search(domain: str, q: str) -> int:
        return finder.search(SearchRequest(q=q, domains=(domain,), limit=LIMIT)).total

    return lambda: search


def health(config: dict[str, Any]) -> Make:
    """Return who asks the web whether it is well: HTTP and nothing else."""

    def make() -> Search:
        connection = _connect(config["web"])
        return lambda _domain, _q: len(_get(connection, "/healthz")) and -1

    return make


def in_process(config: dict[str, Any]) -> Make:
    """Return our own search on the same packs."""
    searchers = {domain: PackSearcher(Path(pack), time_limit=60.0) for domain, pack in config["packs"].items()}

    def search(domain: str, q: str) -> int:
        return searchers[domain].search(parse(q), limit=LIMIT).total

    return lambda: search


def sqlite(config: dict[str, Any]) -> Make:
    """Return the floor: the same expression, the ten best ids by rank, and their rows."""

    def make() -> Search:
        packs = {
            domain: sqlite3.connect(f"file:{pack}?mode=ro&immutable=1", uri=True, check_same_thread=False)
            for domain, pack in config["packs"].items()
        }

        def search(domain: str, q: str) -> int:
            _best(packs[domain], parse(q))
            return -1

        return search

    return make


def tantivy(config: dict[str, Any]) -> Make:
    """Return the peer: an index of the same text, the ten best pages, what is stored of them, and snippets."""
    from benchmarks.peers.tantivy_pack import TantivyPack

    indexes = {
        domain: TantivyPack(Path(pack), Path(config["folder"], "tantivy", domain))
        for domain, pack in config["packs"].items()
    }
    return lambda: lambda domain, q: indexes[domain].search(parse(q))


def echo(config: dict[str, Any]) -> Make:
    """Return who asks the echo through our requestor."""
    requestor = Requestor(config["broker"])

    def search(domain: str, q: str) -> int:
        body = json.dumps({"type": "search", "domain": domain, "q": q}).encode()
        requestor.request(Outgoing(exchange="", routing_key=QUEUE, body=body), deadline=30)
        return -1

    return lambda: search


FINDERS: dict[str, Callable[[dict[str, Any]], Make]] = {
    "end to end": end_to_end,
    "RemoteFinder": router,
    "Searcher": in_process,
    "SQLite": sqlite,
    "tantivy": tantivy,
    "echo": echo,
    "GET /healthz": health,
}


def _best(pack: sqlite3.Connection, query: Query) -> list[Any]:
    ranked = "SELECT rowid, rank FROM pages_fts WHERE pages_fts MATCH ? AND rank MATCH ? ORDER BY rank LIMIT ?"
    ids = [row[0] for row in pack.execute(ranked, (query.match, WEIGHTS, LIMIT))]
    marks = ", ".join("?" * len(ids))
    return pack.execute(f"SELECT {_COLUMNS} FROM pages WHERE id IN ({marks})", ids).fetchall()


def _connect(address: str) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _get(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise BenchmarkError(f"GET {path}: {answer.status}: {body[:300]!r}")
    return body


# Orders


class Asker:
    """Answers queries with as many threads, and after such a pause, as it began with."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._searches: list[Search] = []
        self._pause = 0.0

    def begin(self, threads: int, pause: float, asked: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Make new connections, for a server closes those that stood idle; the queries asked now are not counted."""
        self._searches, self._pause = [self._make() for _ in range(threads)], pause
        for search in self._searches:
            for domain, q in asked:
                search(domain, q)
        return {}

    def answer(self, asked: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Answer, each thread the next query; return the seconds and the total of each query, and seconds in all."""
        found: list[tuple[float, int]] = [(0.0, -1)] * len(asked)
        waiting = iter(enumerate(asked))
        began = time.perf_counter()
        if len(self._searches) == 1:
            _answer(self._searches[0], waiting, found, self._pause)
        else:
            with ThreadPoolExecutor(len(self._searches)) as pool:
                for done in [pool.submit(_answer, search, waiting, found, self._pause) for search in self._searches]:
                    done.result()
        wall = time.perf_counter() - began
        return {"wall": wall, "seconds": [each[0] for each in found], "totals": [each[1] for each in found]}


def _answer(search: Search, waiting: Any, found: list[tuple[float, int]], pause: float) -> None:
    for number, (domain, q) in waiting:
        if pause:
            time.sleep(pause)
        began = time.perf_counter()
        total = search(domain, q)
        found[number] = (time.perf_counter() - began, total)


def main(name: str, config: dict[str, Any]) -> None:
    """Read `{"asked": [[domain, q]...]}` a line, with `threads` and `pause` to begin anew, and answer in JSON."""
    asker = Asker(FINDERS[name](config))
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(asker.begin(**order) if "threads" in order else asker.answer(**order)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
