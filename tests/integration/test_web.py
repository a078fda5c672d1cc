"""The web middleware: header fields, methods, limits and refusals; monitoring; slow and odd clients."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import NoReturn

import httpx
import pytest
from fastapi.responses import StreamingResponse
from prometheus_client.parser import text_string_to_metric_families

from app.errors import SearchUnavailable
from app.search.contract import SearchRequest, SearchResult
from app.web import application, server
from app.web.application import create_app
from app.web.client_limits import ConcurrencyLimit
from app.web.middleware import HEADERS, MAX_TARGET
from tests.packs import page, write_pack
from tests.support.scripted import ScriptedSearchClient
from tests.support.waiting import eventually
from tests.support.web import served

pytestmark = pytest.mark.integration

SEARCH = {"domain": "site.example", "q": "words"}


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pack") / "pack.sqlite"
    return write_pack(path, [page("/one", "One", "Some words"), page("/two", "Two", "More words")])


@pytest.fixture(scope="module")
def search_client(pack: Path) -> ScriptedSearchClient:
    return ScriptedSearchClient([pack])


@pytest.fixture(scope="module")
def client(search_client: ScriptedSearchClient) -> Iterator[httpx.Client]:
    with served(create_app(search_client, counts=lambda: {"sent": 3})) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/?q=words", 200),
        ("/?q=%3F", 400),
        ("/?q=words&page=" + "1" * 4_500, 400),
        ("/?q=words&page=000000001", 200),
        ("/api/v1/search?domain=site.example&q=words&offset=" + "1" * 4_500, 400),
        ("/?domain=never.example&q=x", 404),
        ("/nowhere", 404),
        ("/static/style.css", 200),
        ("/static/../application.py", 404),
        ("/static/%2e%2e/application.py", 404),
        ("/static/none", 404),
        ("/healthz", 200),
        ("/readyz", 200),
        ("/metrics", 200),
        ("/opensearch.xml", 200),
        ("/suggest?q=wor", 200),
        ("/api/v1/search", 400),
        ("/api/v1/openapi.json", 200),
        ("/problems/never-indexed", 200),
        ("/docs", 404),
    ],
)
def test_every_answer_carries_the_security_headers_and_head_is_get_without_a_body(
    client: httpx.Client, path: str, status: int
) -> None:
    answer, head = client.get(path), client.head(path)
    assert (answer.status_code, head.status_code) == (status, status)
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert head.content == b""
    assert head.headers["content-type"] == answer.headers["content-type"]
    assert "access-control-allow-origin" not in answer.headers


def test_head_ignores_a_range_and_does_not_wait_for_the_end_of_a_stream(pack: Path) -> None:
    app = create_app(ScriptedSearchClient([pack]))
    ended = Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"more"
                await asyncio.sleep(0.05)
        finally:
            ended.set()

    app.add_api_route("/endless", lambda: StreamingResponse(endless()))
    with served(app) as client:
        # RFC 9110 section 14.2: ranges are defined for GET only.
        assert client.get("/static/style.css", headers={"Range": "bytes=0-9"}).status_code == 206
        assert client.head("/static/style.css", headers={"Range": "bytes=0-9"}).status_code == 200
        assert client.head("/endless").status_code == 200
        # On the same connection.
        assert client.get("/healthz", timeout=5).status_code == 200
    assert ended.is_set()


def test_other_methods_than_get_and_head_are_refused(client: httpx.Client) -> None:
    methods = [(method, "/") for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "QUERY")]
    paths = [("POST", path) for path in ("/", "/api/v1/search", "/nowhere", "/static/style.css")]
    for method, path in methods + paths:
        answer = client.request(method, path, content=b"x=1" if method == "POST" else None)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD"), (method, path)


def test_bodies_and_long_addresses_are_refused(client: httpx.Client) -> None:
    assert client.request("GET", "/api/v1/domains", content=b"x").json()["type"] == "/problems/with-body"
    chunks = client.request("GET", "/", content=iter([b"x", b"y"]))
    assert (chunks.status_code, chunks.headers["content-type"]) == (413, "text/html; charset=utf-8")
    answer = client.get("/api/v1/search", params={"q": "x" * MAX_TARGET})
    assert (answer.status_code, answer.json()["type"]) == (414, "/problems/too-long")
    assert client.get("/" + "x" * MAX_TARGET).status_code == 414


def test_only_searches_count_against_an_address_rate_limit(pack: Path) -> None:
    with served(create_app(ScriptedSearchClient([pack]), rate_limit="3/hour")) as client:
        first = client.get("/api/v1/search", params=SEARCH)
        assert first.headers["ratelimit-policy"] == '"searches";q=3;w=3600'
        assert first.headers["ratelimit"].startswith('"searches";r=2;t=')
        assert client.get("/suggest", params=SEARCH).status_code == 200
        assert client.get("/", params=SEARCH).headers["ratelimit"].startswith('"searches";r=0;t=')
        for path in ("/api/v1/search", "/api/v1/suggest", "/suggest"):
            refused = client.get(path, params=SEARCH)
            assert (refused.status_code, refused.json()["type"]) == (429, "/problems/limited")
            assert 1 <= int(refused.headers["retry-after"]) <= 3600
        people = client.get("/", params=SEARCH)
        assert (people.status_code, people.headers["content-type"]) == (429, "text/html; charset=utf-8")
        assert int(people.headers["retry-after"]) >= 1
        assert "<h1>Too many searches</h1>" in people.text
        for path in ("/", "/healthz", "/static/style.css", "/api/v1/domains", "/metrics"):
            assert client.get(path).status_code == 200, path
        # A proxy on this machine may name its client.
        elsewhere = client.get("/suggest", params=SEARCH, headers={"X-Forwarded-For": "198.51.100.7"})
        assert elsewhere.status_code == 200


def test_a_search_counts_by_its_sites_and_words(pack: Path, tmp_path: Path) -> None:
    other = write_pack(tmp_path / "pack.sqlite", [page("/one", "One", "Some words")], domain="other.example")

    def left(answer: httpx.Response) -> int:
        return int(answer.headers["ratelimit"].split("r=")[1].split(";")[0])

    with served(create_app(ScriptedSearchClient([pack, other]), rate_limit="30/hour")) as client:
        # The page without `domain` searches both sites, which are known from its first routes on.
        assert client.get("/").status_code == 200
        assert left(client.get("/", params={"q": "words"})) == 28
        assert left(client.get("/api/v1/search", params=SEARCH | {"q": "a b c d e f g h i"})) == 26
        refused = client.get("/api/v1/search", params={"domain": "site.example,other.example", "q": "a " * 110})
        assert (refused.status_code, "counts as 28" in refused.json()["detail"]) == (429, True)


def test_the_second_search_of_a_correction_counts_and_is_left_out_where_none_is_left(pack: Path) -> None:
    searches = ScriptedSearchClient([pack])
    searches.change = lambda found: replace(found, did_you_mean="words", relaxed=True)
    with served(create_app(searches, rate_limit="4/hour")) as client:
        costs = [("/api/v1/search", SEARCH, 2), ("/api/v1/search", SEARCH | {"exact": "true"}, 1), ("/", SEARCH, 0)]
        for path, parameters, left in costs:
            answer = client.get(path, params=parameters)
            assert answer.status_code == 200
            assert answer.headers["ratelimit"].startswith(f'"searches";r={left};t=')


@pytest.mark.parametrize(("proxies", "shared"), [(("127.0.0.1",), False), (("192.0.2.0/24",), True), (("*",), False)])
def test_visitors_behind_a_proxy_have_allowances_of_their_own_only_if_the_proxy_is_trusted(
    pack: Path, proxies: tuple[str, ...], shared: bool
) -> None:
    with served(create_app(ScriptedSearchClient([pack]), rate_limit="1/hour"), proxies=proxies) as client:
        statuses = [
            client.get("/suggest", params=SEARCH, headers={"X-Forwarded-For": visitor}).status_code
            for visitor in ("198.51.100.7", "198.51.100.8", "198.51.100.7")
        ]
    assert statuses == ([200, 429, 429] if shared else [200, 200, 429])


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_proxy_is_trusted_also_at_a_socket_for_both_families(pack: Path) -> None:
    app = create_app(ScriptedSearchClient([pack]), rate_limit="1/hour")
    with served(app, proxies=("127.0.0.1",), for_both_families=True) as client:
        for visitor in ("198.51.100.7", "198.51.100.8"):
            answer = client.get("/suggest", params=SEARCH, headers={"X-Forwarded-For": visitor})
            assert answer.status_code == 200
        https = client.get("/opensearch.xml", headers={"X-Forwarded-Proto": "https", "Host": "site.example"})
        assert 'template="https://site.example/' in https.text


class SlowSearchClient(ScriptedSearchClient):
    """Searches once `let` is set."""

    let = Event()

    def search(self, question: SearchRequest) -> SearchResult:
        self.let.wait(30)
        return super().search(question)


def test_searches_beyond_the_concurrency_limit_get_503(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "ConcurrencyLimit", partial(ConcurrencyLimit, running=2, waiting=3, patience=0.3))
    with served(create_app(SlowSearchClient([pack]))) as client, ThreadPoolExecutor(7) as threads:
        answers_due = [threads.submit(client.get, "/api/v1/search", params=SEARCH) for _ in range(7)]
        eventually(lambda: sum(each.done() for each in answers_due) == 5, "five are refused")
        # Monitoring is answered at the same time.
        assert [client.get(path).status_code for path in ("/healthz", "/readyz")] == [200, 200]
        SlowSearchClient.let.set()
        answers = [each.result() for each in answers_due]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert [(each.status_code, each.json()["type"], each.headers["retry-after"]) for each in refused] == [
        (503, "/problems/busy", "1")
    ] * 5


def test_the_process_is_ready_when_searches_can_be_answered(
    client: httpx.Client, search_client: ScriptedSearchClient
) -> None:
    assert (client.get("/readyz").status_code, client.get("/readyz").text) == (200, "ok\n")
    search_client.unknown = True
    try:
        assert (client.get("/readyz").status_code, client.get("/readyz").text) == (503, "search-unavailable\n")
        assert client.get("/healthz").text == "ok\n"
        metrics = client.get("/metrics").text
    finally:
        search_client.behave()
    assert "perennial_routes_known 0.0" in metrics
    assert "perennial_packs{" not in metrics


def test_metrics_have_no_searcher_of_an_orchestrator_that_is_away_whose_last_routes_are_used(
    client: httpx.Client, search_client: ScriptedSearchClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> NoReturn:
        raise SearchUnavailable("the orchestrator did not answer within 3 s")

    monkeypatch.setattr(search_client, "current_routes", away)
    metrics = client.get("/metrics").text
    assert ("perennial_routes_known 0.0" in metrics, "perennial_searchers " in metrics) == (True, False)
    assert client.get("/readyz").text == "ok\n"


@pytest.mark.parametrize("accepted", ["application/openmetrics-text; version=x", ";;,", "text/plain; version=", "\xff"])
def test_metrics_are_answered_whatever_is_accepted(client: httpx.Client, accepted: str) -> None:
    answer = client.get("/metrics", headers={b"Accept": accepted.encode("latin-1")})
    assert (answer.status_code, "perennial_routes_known" in answer.text) == (200, True)


def test_metrics_count_requests_searches_routes_and_requests_to_searchers(pack: Path) -> None:
    with served(create_app(ScriptedSearchClient([pack]), rate_limit="5/hour", counts=lambda: {"sent": 3})) as client:
        client.get("/ops/sites")
        client.get("/api/v1/ops/sites")
        client.get("/api/v1/search", params=SEARCH)
        client.get("/", params=SEARCH | {"q": "nonexistent"})
        client.get("/api/v1/search", params=SEARCH | {"domain": "never.example"})
        client.get("/suggest", params=SEARCH)
        client.get("/static/style.css")
        client.get("/nowhere/at/all")
        answer = client.get("/metrics", headers={"Accept": "text/plain"})
    assert answer.headers["content-type"].startswith("text/plain; version=")
    families = list(text_string_to_metric_families(answer.text))
    values = {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}
    assert values["perennial_web_requests_total", "/api/v1/search", "200"] == 1
    assert values["perennial_web_requests_total", "/api/v1/search", "404"] == 1
    assert values["perennial_web_requests_total", "/suggest", "429"] == 1
    assert values["perennial_web_requests_total", "/static", "200"] == 1
    for route in ("none", "/ops/sites", "/api/v1/ops/sites"):
        assert values["perennial_web_requests_total", route, "404"] == 1
    assert values["perennial_web_request_seconds_count", "/"] == 1
    assert values["perennial_web_queries_total", "search", "ok"] == 2
    assert values["perennial_web_queries_total", "search", "pack-not-found"] == 1
    assert values["perennial_web_searches_without_hits_total",] == 1
    assert values["perennial_web_refused_requests_total", "limited"] == 1
    assert values["perennial_searcher_requests_total", "sent"] == 3
    assert values["perennial_packs", "placed"] == 1
    assert values["perennial_index_age_seconds", "site.example"] > 0
    assert "words" not in answer.text


def connected(client: httpx.Client, *, source: str = "127.0.0.1") -> socket.socket:
    address = client.base_url.host, client.base_url.port or 80
    return socket.create_connection(address, timeout=10, source_address=(source, 0))


def read_to_the_end(connection: socket.socket) -> None:
    """Read until the server closes; raises TimeoutError if it does not."""
    with suppress(ConnectionResetError):
        while connection.recv(65_536):
            pass


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET",
    ],
)
def test_an_incomplete_request_is_closed_after_the_time_limit(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.2)
    began = time.monotonic()
    with connected(client) as connection:
        connection.sendall(beginning)
        read_to_the_end(connection)
    assert time.monotonic() - began >= 0.2


def test_an_endless_head_is_refused(client: httpx.Client) -> None:
    with connected(client) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n" + b"X-Filler: y\r\n" * 8_000)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 431 ")


def test_one_large_header_field_is_refused_also_if_it_comes_at_once(client: httpx.Client) -> None:
    with connected(client) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Filler: " + b"y" * 100_000 + b"\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 431 ")
    with connected(client) as connection:
        # Many small requests in one piece of data are no large head.
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Filler: " + b"y" * 30_000 + b"\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")


def test_one_address_cannot_take_all_connections(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_PER_ADDRESS", 3)
    with served(create_app(ScriptedSearchClient([pack])), proxies=("192.0.2.1",)) as client, ExitStack() as idle:
        first, *_ = [idle.enter_context(connected(client)) for _ in range(3)]
        with connected(client) as connection:
            assert connection.recv(65_536).startswith(b"HTTP/1.1 429 ")
            assert connection.recv(65_536) == b""
        # Another visitor is served.
        with connected(client, source="127.0.0.2") as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")
        first.close()
        eventually(lambda: client.get("/healthz").status_code == 200, "a closed connection makes room")


def test_a_trusted_proxy_may_have_any_number_of_connections(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_PER_ADDRESS", 1)
    with connected(client) as first, connected(client) as second:
        for connection in (first, second):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "request_line",
    [
        *(b"OPTIONS * HTTP/1.1", b"GET http://other.example/ HTTP/1.1", b"CONNECT a:1 HTTP/1.1", b"\x16\x03"),
        b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket",
    ],
)
def test_odd_requests_are_answered_or_refused_and_not_logged(
    client: httpx.Client, caplog: pytest.LogCaptureFixture, request_line: bytes
) -> None:
    with connected(client) as connection:
        connection.sendall(request_line + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
        status = int(connection.recv(65_536).split(b" ")[1])
    assert 200 <= status < 500
    assert client.get("/healthz").status_code == 200
    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []
