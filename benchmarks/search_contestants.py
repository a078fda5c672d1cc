"""One contestant of the search benchmark, in its own process: it answers lists of queries and measures each one."""

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

from app.broker.outgoing import Outgoing
from app.broker.rpc.requestor import Requestor
from app.cluster.client.cluster import ClusterSearchClient
from app.search.contract import SearchRequest
from app.search.pack_searcher import PackSearcher
from app.search.query import Query, parse
from app.search.ranking import bm25
from benchmarks.echo import QUEUE
from benchmarks.errors import BenchmarkError

#: Answers one query of a domain and returns the number of matching pages, or -1 if the contestant does not count.
Search = Callable[[str, str], int]
#: Called once by each thread, which then has connections of its own.
Make = Callable[[], Search]

LIMIT = 10
_COLUMNS = "id, url, path, title, headings, description, body, lang"
_TOTAL = re.compile(rb'"total":\s*(\d+)')


def end_to_end(config: dict[str, Any]) -> Make:
    """Search by the web's API over one persistent connection."""

    def make() -> Search:
        connection = _connect(config["web"])

        def search(domain: str, q: str) -> int:
            body = _get(connection, f"/api/v1/search?{urlencode({'domain': domain, 'q': q, 'limit': LIMIT})}")
            total = _TOTAL.search(body)
            return int(total[1]) if total else -1

        return search

    return make


def search_client(config: dict[str, Any]) -> Make:
    """Search with the search client that the web uses, without HTTP."""
    client = ClusterSearchClient(config["broker"], deadline=30.0)

    def search(domain: str, q: str) -> int:
        return client.search(SearchRequest(q=q, domains=(domain,), limit=LIMIT)).total

    return lambda: search


def health(config: dict[str, Any]) -> Make:
    """Request the web's health check: HTTP without a search."""

    def make() -> Search:
        connection = _connect(config["web"])
        return lambda _domain, _q: len(_get(connection, "/healthz")) and -1

    return make


def in_process(config: dict[str, Any]) -> Make:
    """Search the same packs in this process."""
    searchers = {domain: PackSearcher(Path(pack), time_limit=60.0) for domain, pack in config["packs"].items()}

    def search(domain: str, q: str) -> int:
        return searchers[domain].search(parse(q), limit=LIMIT).total

    return lambda: search


def sqlite(config: dict[str, Any]) -> Make:
    """Run the bare SQL: the same MATCH expression, the ten best ids by rank, and their rows."""

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
    """Search a tantivy index of the same text: the ten best pages, their stored fields, and snippets.

    It has no other forms of words and no pages with some of the words, so its counts are not compared.
    """
    from benchmarks.peers.tantivy_pack import TantivyPack

    indexes = {
        domain: TantivyPack(Path(pack), Path(config["folder"], "tantivy", domain))
        for domain, pack in config["packs"].items()
    }

    def search(domain: str, q: str) -> int:
        indexes[domain].search(parse(q))
        return -1

    return lambda: search


def echo(config: dict[str, Any]) -> Make:
    """Send the request to the echo process, which replies at once."""
    requestor = Requestor(config["broker"])

    def search(domain: str, q: str) -> int:
        body = json.dumps({"type": "search", "domain": domain, "q": q}).encode()
        requestor.request(Outgoing(exchange="", routing_key=QUEUE, body=body), deadline=30)
        return -1

    return lambda: search


CONTESTANTS: dict[str, Callable[[dict[str, Any]], Make]] = {
    "end to end": end_to_end,
    "search client": search_client,
    "PackSearcher": in_process,
    "SQLite": sqlite,
    "tantivy": tantivy,
    "echo": echo,
    "GET /healthz": health,
}


def _best(pack: sqlite3.Connection, query: Query) -> list[Any]:
    ranked = "SELECT rowid, rank FROM pages_fts WHERE pages_fts MATCH ? AND rank MATCH ? ORDER BY rank LIMIT ?"
    ids = [row[0] for row in pack.execute(ranked, (query.match, bm25({}), LIMIT))]
    marks = ", ".join("?" * len(ids))
    return pack.execute(f"SELECT {_COLUMNS} FROM pages WHERE id IN ({marks})", ids).fetchall()


def _connect(address: str) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _get(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise BenchmarkError(f"GET {path}: {response.status}: {body[:300]!r}")
    return body


# Commands from standard input


class QueryRunner:
    """Answers queries with the threads and the pause (seconds) of the present mode."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._searches: list[Search] = []
        self._pause = 0.0

    def begin(self, threads: int, pause: float, queries: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Open new connections, because servers close idle ones, and answer queries that are not counted."""
        self._searches, self._pause = [self._make() for _ in range(threads)], pause
        for search in self._searches:
            for domain, q in queries:
                search(domain, q)
        return {}

    def answer(self, queries: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Answer the queries, each thread the next one. Return seconds and total of each query, and total seconds."""
        answers: list[tuple[float, int]] = [(0.0, -1)] * len(queries)
        waiting = iter(enumerate(queries))
        began = time.perf_counter()
        if len(self._searches) == 1:
            _answer(self._searches[0], waiting, answers, self._pause)
        else:
            with ThreadPoolExecutor(len(self._searches)) as pool:
                for done in [pool.submit(_answer, search, waiting, answers, self._pause) for search in self._searches]:
                    done.result()
        wall = time.perf_counter() - began
        return {"wall": wall, "seconds": [seconds for seconds, _ in answers], "totals": [total for _, total in answers]}


def _answer(search: Search, waiting: Any, answers: list[tuple[float, int]], pause: float) -> None:
    for number, (domain, q) in waiting:
        if pause:
            time.sleep(pause)
        began = time.perf_counter()
        total = search(domain, q)
        answers[number] = (time.perf_counter() - began, total)


def main(name: str, config: dict[str, Any]) -> None:
    """Read `{"queries": [[domain, q]...]}` per line, with `threads` and `pause` to start a mode; reply in JSON."""
    runner = QueryRunner(CONTESTANTS[name](config))
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(runner.begin(**command) if "threads" in command else runner.answer(**command)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
