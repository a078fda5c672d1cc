"""Unexpected requests to the web: schemathesis on the API's description, and any text as a query."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from starlette.datastructures import QueryParams
from starlette.types import Message

from app.broker.connection import connected
from app.cluster.client.local import LocalSearchClient
from app.private_services import Urls
from app.search.contract import SearchRequest, SearchResult
from app.storage.open import create_store
from app.topology.declare import declare_all
from app.web.application import create_app
from app.web.middleware import search_cost
from app.web.ops.access import Access
from app.web.ops.requests import OpsState
from tests.packs import page, write_pack
from tests.support.corner import own_vhost, settings_for
from tests.support.web import served

pytestmark = pytest.mark.integration

#: The domain in the examples of the API's description, so that schemathesis finds hits.
DOMAIN = "docs.example.org"
PAGES = [
    page(f"/library/{number}", f"Event loop {number}", "The event loop runs callbacks. Café, naïve, 東京.", lang="en")
    for number in range(30)
]
#: Queries of one batch that the application gets directly, without a socket.
BATCH = 50
PATHS = ("/", "/api/v1/search", "/suggest")

#: Phases whose requests are as many as the examples; those of its phase `coverage` are thousands.
SAMPLED = "examples,fuzzing"

#: A JSON Schema cannot say whether a name is a host or whether words can be searched for. So the answer 400 to values
#: that the schema allows is right. A URL that is too long may be refused by the length of the address. All other checks
#: have their defaults.
CONFIG = """
request-timeout = 60
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "404"]
[checks.negative_data_rejection]
expected-statuses = ["400", "404", "414", "422"]
"""


@pytest.fixture(scope="module")
def search_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSearchClient]:
    pack = write_pack(tmp_path_factory.mktemp("pack") / "pack.sqlite", PAGES, domain=DOMAIN)
    with closing(LocalSearchClient([pack])) as client:
        yield client


@pytest.fixture(scope="module")
def client(
    search_client: LocalSearchClient, services: Urls, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """Serve the application with real services: then no answer to bad input may have a status from 500 on."""
    folder = tmp_path_factory.mktemp("fuzz")
    with own_vhost(services) as broker_url:
        own = settings_for(folder, broker_url, services.redis_url, services.broker_api_url)
        own = own.model_copy(update={"web_operator_token": SecretStr("correct-horse-battery")})
        create_store(own.store)
        with connected(own.broker) as connection:
            assert not declare_all(connection, own)
        app = create_app(search_client, rate_limit="1000000/second", ops=OpsState(own, Access.of(own)))
        with served(app) as client:
            yield client


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    ("phases", "examples"), [(SAMPLED, 3), pytest.param(f"coverage,stateful,{SAMPLED}", 50, marks=pytest.mark.long)]
)
def test_schemathesis_finds_nothing(client: httpx.Client, tmp_path: Path, phases: str, examples: int) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        *("--config-file", str(config)),
        *("run", str(client.base_url.join("/api/v1/openapi.json"))),
        *("--phases", phases, "--max-examples", str(examples), "--seed", "1", "--no-color"),
        *("--generation-database", "none"),
        *("--header", "Authorization: Bearer correct-horse-battery"),
    ]
    for _ in range(3):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
        # The broker of a busy machine may need longer than an answer waits for it, which is 503.
        if "no answer for 2 s" not in done.stdout:
            break
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    number = sum(map(len, paths.values()))
    assert number > 40
    assert f"{number} selected / {number} total" in done.stdout


#: Pieces that mean something to SQLite's FTS5, to SQL, to HTML, to a URL, or to our own query language.
PIECES = [
    *("event", "loop", "callb", "café", "東京", "naïve", "🧵", "NEAR(", " OR ", " AND ", "NOT", "<b>", "&amp;", "  "),
    *"\"“-*^:()+';%_\\/\0\t\n\u200d\u0301 ",
]
words = st.lists(st.sampled_from(PIECES), max_size=12).map("".join).map(str.encode)
# Raw bytes may be invalid UTF-8, as old browsers send them.
queries = st.one_of(
    words, words, st.text(max_size=300).map(lambda text: text.encode(errors="replace")), st.binary(max_size=40)
)
bounded = settings(deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


async def status_of(app: FastAPI, path: str, query: bytes) -> int:
    """Return the status of an answer, without a connection."""
    statuses: list[int] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
        "root_path": "",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": [(b"host", b"127.0.0.1")],
        "state": {},
    }
    await app(scope, receive, send)
    (status,) = statuses
    return status


class CountingClient(LocalSearchClient):
    """Counts the calls that search packs."""

    calls = 0

    def search(self, request: SearchRequest) -> SearchResult:
        self.calls += 1
        return super().search(request)

    def suggest(self, domains: Sequence[str], q: str, *, limit: int = 8) -> tuple[str, ...]:
        self.calls += 1
        return super().suggest(domains, q, limit=limit)


def encoded(text: bytes) -> bytes:
    return b"".join(b"%%%02x" % byte for byte in text)


names = st.sampled_from(
    ["q", "domain", "page", "offset", "limit", "sort", "section", "lang", "type", "x", "Q", "q[]", ""]
)
values = st.one_of(
    words,
    st.sampled_from([DOMAIN, f"{DOMAIN},{DOMAIN}", "never.example", "a" * 300, "," * 300, "date", "en", "library"]).map(
        str.encode
    ),
    st.integers(-10, 10_010).map(lambda number: str(number).encode()),
    st.integers(1, 4_500).map(lambda digits: b"9" * digits),
    st.binary(max_size=40),
)
signs = st.sampled_from([b"=", b"==", b""])
pairs = st.tuples(names.map(str.encode), signs, st.one_of(values, values.map(encoded))).map(b"".join)
#: The parameter q, written in ways that a parser of URLs takes for it, or for another name.
written = st.sampled_from([b"q", b"%71", b"%2571", b"Q", b"q ", b"+q", b"%00q", b"q%00", b";q", b"&q", b"?q", b"#q"])


#: Query strings as a client may send them: repeated, misplaced and wrongly encoded parameters.
raw_queries = st.builds(
    lambda separator, before, name, text, after: separator.join([*before, name + b"=" + text, *after]),
    st.sampled_from([b"&", b"&&", b";"]),
    st.lists(pairs, max_size=4),
    written,
    queries.map(encoded),
    st.lists(pairs, max_size=2),
)


@pytest.mark.parametrize("number", [400, pytest.param(10_000, marks=pytest.mark.long)])
def test_any_parameters_are_answered_or_refused_and_no_search_is_free(
    search_client: LocalSearchClient, number: int
) -> None:
    client = CountingClient([search_client._searchers[DOMAIN].path])
    app = create_app(client, rate_limit="1000000/second")
    searched = 0

    async def check_all(batch: list[tuple[str, bytes]]) -> None:
        nonlocal searched
        for path, query in batch:
            before = client.calls
            assert await status_of(app, path, query) in {200, 400, 404, 414}
            if client.calls > before:
                searched += 1
                assert search_cost(path, QueryParams(query), sites=1) > 0

    with closing(client), asyncio.Runner() as runner:

        @settings(bounded, max_examples=number // BATCH)
        @given(st.lists(st.tuples(st.sampled_from(PATHS), raw_queries), min_size=BATCH, max_size=BATCH))
        def check(batch: list[tuple[str, bytes]]) -> None:
            runner.run(check_all(batch))

        check()
    assert searched > number / 50
