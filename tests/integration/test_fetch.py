"""Fetching over real connections: what is refused, what is cut, what is an error, what comes through."""

from __future__ import annotations

import io
import resource
import socket
import threading
import time
import zlib
from collections.abc import Iterator

import pytest
import urllib3

from app.errors import ConnectionFailed, FetchError, ForbiddenAddress, InvalidUrl, ResponseTimeout
from app.http.fetcher import Fetcher
from app.http.response import read_body
from tests.servers import hazards
from tests.servers.site import Answer, Request, Site, Wire, document, failure, page, redirect, reply
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

LIMIT = 200_000


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


def client(*, response_timeout: float) -> Fetcher:
    return Fetcher(
        user_agent="Perennial/1 (+https://example.org/)",
        connect_timeout=30,
        response_timeout=response_timeout,
        max_body_bytes=LIMIT,
        allow_private_hosts=("127.0.0.0/8",),
    )


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    """Yield a client that waits for every response."""
    with client(response_timeout=30) as fetcher:
        yield fetcher


def test_a_response_has_its_status_headers_and_whole_body(site: Site, fetcher: Fetcher) -> None:
    site.set("/a", page("Title", "text", headers={"X-Mark": "é", "ETag": '"1"'}))
    answer = fetcher.get(site.at("/a?b=%20c|d"), headers={"If-None-Match": '"0"'})
    assert (answer.status, answer.truncated, answer.url) == (200, False, site.at("/a?b=%20c|d"))
    assert answer.body == document("Title", "text").encode()
    assert (answer.headers["x-mark"], answer.headers["etag"]) == ("é", '"1"')
    sent = site.requests[0]
    assert sent.path == "/a?b=%20c|d".replace("|", "%7C")
    assert sent.headers["user-agent"] == "Perennial/1 (+https://example.org/)"
    assert sent.headers["if-none-match"] == '"0"'
    assert sent.headers["host"] == site.domain


@pytest.mark.parametrize(
    ("linked", "requested"),
    [("/a%20b?sale=50%&name=a%20b", "/a%20b?sale=50%25&name=a%20b"), ("/100%/caf%C3%A9", "/100%25/caf%C3%A9")],
)
def test_a_percent_sign_that_encodes_nothing_leaves_the_others_as_they_are(
    site: Site, fetcher: Fetcher, linked: str, requested: str
) -> None:
    fetcher.get(site.at(linked))
    assert site.paths() == [requested]


def test_a_request_is_sent_again_where_the_server_closed_its_kept_connections(site: Site, fetcher: Fetcher) -> None:
    peers = []

    def answer(request: Request, wire: Wire) -> None:
        peers.append(wire.connection.getpeername())
        if len(peers) > 1 and peers[-1] == peers[0]:
            wire.close()
        else:
            page("T")(request, wire)

    site.set("/", answer)
    for _ in range(2):
        assert fetcher.get(site.url).status == 200
    assert peers[0] == peers[1] != peers[2]
    assert len(peers) == 3


def test_one_connection_serves_many_requests_unless_it_was_idle_for_long(
    site: Site, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = set()

    def answer(request: Request, wire: Wire) -> None:
        ports.add(wire.connection.getpeername()[1])
        page("T")(request, wire)

    site.set("/", answer)
    for _ in range(3):
        assert fetcher.get(site.url).status == 200
    assert len(ports) == 1
    monkeypatch.setattr("app.http.fetcher.MAX_IDLE", 0.0)
    for _ in range(2):
        assert fetcher.get(site.url).status == 200
    assert len(ports) == 3


def test_informational_responses_before_the_response_are_skipped(site: Site, fetcher: Fetcher) -> None:
    def answer(request: Request, wire: Wire) -> None:
        wire.send(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n")
        wire.send(b"HTTP/1.1 102 Processing\r\n\r\n")
        page("Well")(request, wire)

    site.set("/", answer)
    found = fetcher.get(site.url)
    assert (found.status, "link" in found.headers, b"Well" in found.body) == (200, False, True)


@pytest.mark.parametrize(
    ("answer", "status", "header", "value"),
    [
        (failure(503, retry_after="7"), 503, "retry-after", "7"),
        (redirect("/b"), 302, "location", "/b"),
        # Each X-Robots-Tag of a response is a line.
        (page("T", headers={"X-Robots-Tag": "a: b\r\nX-Robots-Tag: c"}), 200, "x-robots-tag", "a: b\nc"),
        (page("T", headers={"Link": "<a>\r\nLink: <b>"}), 200, "link", "<a>, <b>"),
    ],
)
def test_any_status_is_a_response_and_no_redirect_is_followed(
    site: Site, fetcher: Fetcher, answer: Answer, status: int, header: str, value: str
) -> None:
    site.set("/", answer)
    found = fetcher.get(site.url)
    assert (found.status, found.headers[header]) == (status, value)
    assert site.paths() == ["/"]


def test_cookies_are_not_kept(site: Site, fetcher: Fetcher) -> None:
    site.set("/", page("T", headers={"Set-Cookie": "session=1"}))
    fetcher.get(site.url)
    fetcher.get(site.url)
    assert all("cookie" not in request.headers for request in site.requests)


def test_a_proxy_of_the_environment_is_not_used(site: Site, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert fetcher.get(site.url).status == 404


@pytest.mark.parametrize("path", ["/drip", "/drip-headers", "/silence"])
def test_a_slow_response_is_an_error_at_its_deadline(site: Site, path: str) -> None:
    site.set("/drip", hazards.drip(seconds=0.05))
    site.set("/drip-headers", hazards.drip_headers(seconds=0.05))
    site.set("/silence", hazards.silence())
    with client(response_timeout=1) as impatient:

        def took() -> float:
            began = time.monotonic()
            with pytest.raises(ResponseTimeout, match=path):
                impatient.get(site.at(path))
            seconds.append(time.monotonic() - began)
            return seconds[-1]

        seconds: list[float] = []
        # On a busy machine one of several tries takes less.
        eventually(lambda: took() < 3, "the client gives up at its deadline")
    assert min(seconds) >= 0.9


def test_a_body_is_cut_at_the_size_limit_without_using_much_memory(site: Site, fetcher: Fetcher) -> None:
    site.set("/endless", hazards.endless())
    site.set("/bomb", hazards.bomb(128 * 1024 * 1024))
    site.set("/exact", reply(b"x" * LIMIT))
    site.set("/over", reply(b"x" * (LIMIT + 1)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path in ("/endless", "/bomb", "/over"):
        answer = fetcher.get(site.at(path))
        assert (answer.truncated, len(answer.body)) == (True, LIMIT)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000  # kB
    whole = fetcher.get(site.at("/exact"))
    assert (whole.truncated, len(whole.body)) == (False, LIMIT)


def test_received_bytes_count_even_if_they_decompress_to_nothing(site: Site, fetcher: Fetcher) -> None:
    empty = zlib.compressobj(wbits=31)
    members = (empty.flush()) * (2 * LIMIT // 20)
    site.set("/", reply(members, headers={"Content-Encoding": "gzip"}))
    answer = fetcher.get(site.url)
    assert (answer.truncated, answer.body) == (True, b"")


def test_what_follows_a_compressed_body_costs_little_cpu_time(site: Site) -> None:
    empty, size = zlib.compressobj(wbits=31).flush(), 25_000_000
    site.set("/members", reply(empty * (size // len(empty)), headers={"Content-Encoding": "gzip"}))
    site.set("/tail", reply(empty + b"x" * size, headers={"Content-Encoding": "gzip"}))
    site.set("/plain", reply(b"x" * size))
    spent = {}
    with Fetcher(user_agent="Perennial/1", max_body_bytes=size, allow_private_hosts=("127.0.0.1",)) as fetcher:
        for path in ("/plain", "/members", "/tail"):
            began = time.thread_time()
            answer = fetcher.get(site.at(path))
            spent[path] = time.thread_time() - began
            assert (answer.truncated, len(answer.body)) == ((False, size) if path == "/plain" else (True, 0))
    assert max(spent.values()) < 10 * spent["/plain"], spent


def _deflated(data: bytes, wbits: int) -> bytes:
    packer = zlib.compressobj(wbits=wbits)
    return packer.compress(data) + packer.flush()


class _Drops(io.BytesIO):
    """A body of which each read returns one byte."""

    def read1(self, size: int | None = -1, /) -> bytes:
        return self.read(1 if size else 0)


@pytest.mark.parametrize("kind", [io.BytesIO, _Drops])
@pytest.mark.parametrize(("coding", "wbits"), [("gzip", 31), ("X-GZIP", 31), ("deflate", 15), ("deflate", -15)])
def test_compressed_bodies_are_read_whole_or_byte_by_byte(kind: type[io.BytesIO], coding: str, wbits: int) -> None:
    text = document("Title", "long text " * 8_000).encode()
    members = [text[:99], text[99:]] if wbits == 31 else [text]
    received = kind(b"".join(_deflated(each, wbits) for each in members))
    raw = urllib3.HTTPResponse(received, headers={"Content-Encoding": coding}, preload_content=False)
    assert read_body(raw, max_bytes=LIMIT) == (text, False)


@pytest.mark.parametrize("named", ["UTF-8", "none", "identity, iso-8859-1", ""])
def test_a_body_is_read_whose_coding_is_none(site: Site, fetcher: Fetcher, named: str) -> None:
    site.set("/", reply("text", headers={"Content-Encoding": named}))
    assert fetcher.get(site.url).text == "text"


BROKEN = {
    "bad chunking": hazards.bad_chunking(),
    "short body": hazards.short_body(),
    "bad gzip": hazards.bad_gzip(),
    "short gzip": hazards.short_gzip(),
    "not http": hazards.not_http(),
    "huge headers": hazards.huge_headers(),
    "long header": hazards.long_header(),
    "br": reply("x", headers={"Content-Encoding": "br"}),
    "reset": hazards.reset(),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_response_is_an_error_and_the_next_one_is_not(site: Site, fetcher: Fetcher, name: str) -> None:
    site.set("/broken", BROKEN[name])
    site.set("/", page("Well"))
    with pytest.raises(FetchError, match="/broken") as caught:
        fetcher.get(site.at("/broken"))
    assert type(caught.value) is (ConnectionFailed if name == "reset" else FetchError)
    assert b"Well" in fetcher.get(site.url).body


def test_a_refused_connection_an_unknown_host_and_a_relative_url_are_errors(fetcher: Fetcher) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        with pytest.raises(ConnectionFailed) as refused:
            fetcher.get(url)
    assert str(refused.value).startswith(f"GET {url}: Failed to establish a new connection: [Errno 111]")
    with pytest.raises(ConnectionFailed) as unknown:
        fetcher.get("http://no-such-host.invalid/")
    assert str(unknown.value).startswith("GET http://no-such-host.invalid/: Failed to resolve 'no-such-host.invalid'")
    with pytest.raises(InvalidUrl):
        fetcher.get("/relative")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "0x7f.1", "2130706433", "127.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"]
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_private_address_is_refused_before_anything_is_sent(scheme: str, host: str) -> None:
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server, Fetcher(user_agent="Perennial/1") as fetcher:

        def listen() -> None:
            connection, _ = server.accept()
            with connection:
                received.append(connection.recv(100))

        listener = threading.Thread(target=listen)
        listener.start()
        with pytest.raises(ForbiddenAddress, match="not public"):
            fetcher.get(f"{scheme}://{host}:{server.getsockname()[1]}/")
        listener.join()
    assert received == [b""]


def test_a_private_host_is_allowed_by_name_by_port_or_by_range(site: Site) -> None:
    def status(url: str, *allowed: str) -> int:
        with Fetcher(user_agent="Perennial/1", allow_private_hosts=allowed) as fetcher:
            return fetcher.get(url).status

    numeric, named = f"http://127.0.0.1:{site.port}/", f"http://localhost:{site.port}/"
    assert status(named, "LOCALHOST") == 404
    assert status(named, f"localhost:{site.port}") == 404
    assert status(numeric, "127.0.0.1") == 404
    assert status(numeric, "10.0.0.0/8", "127.0.0.0/8") == 404
    for url, allowed in [(numeric, "localhost"), (named, "localhost:1"), (numeric, "10.0.0.0/8"), (named, "127.0.0.1")]:
        with pytest.raises(ForbiddenAddress):
            status(url, allowed)
