"""Requests to APIs over real connections: redirects, credentials, limits and errors."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.errors import ConnectionFailed, FetchError, ForbiddenAddress, ResponseTimeout
from app.http.addresses import AddressPolicy
from app.http.api_client import ApiClient
from tests.servers import hazards
from tests.servers.site import Answer, Request, Site, Wire, redirect, reply

pytestmark = pytest.mark.integration

CLIENT = ApiClient(user_agent="Perennial/1", connect_timeout=30, response_timeout=30, max_body_bytes=1_000)
#: Gives up a response before it has come whole.
IMPATIENT = replace(CLIENT, response_timeout=2)


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


def test_a_response_is_returned_whole_without_proxies_cookies_or_passwords_of_the_environment(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login someone password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    site.set("/a", reply(b'{"name": "x"}', headers={"Retry-After": "7", "Set-Cookie": "a=b"}))
    response = CLIENT.send("GET", site.at("/a"), headers={"accept": "application/json"})
    assert (response.status, response.ok, response.json()) == (200, True, {"name": "x"})
    assert (response.retry_after(cap=5), response.text) == (5, '{"name": "x"}')
    sent = site.requests[0].headers
    assert "authorization" not in sent
    assert (sent["user-agent"], sent["accept"], sent.get("accept-encoding")) == (
        "Perennial/1",
        "application/json",
        "identity",
    )


def test_redirects_are_followed_only_where_allowed(site: Site) -> None:
    site.set("/a", redirect("/b"))
    site.set("/b", reply("there"))
    site.set("/loop", redirect("/loop"))
    following = ApiClient(follow_redirects=True)
    assert CLIENT.send("GET", site.at("/a")).status == 302
    assert following.send("GET", site.at("/a")).url == site.at("/b")
    assert following.send("PUT", site.at("/a"), body=b"x").status == 302
    with pytest.raises(FetchError, match="more than 10 redirects"):
        following.send("GET", site.at("/loop"))
    for invalid in ("http://[", "http://[x]/", "ftp://127.0.0.1/", "http://"):
        site.set("/a", redirect(invalid))
        with pytest.raises(FetchError, match="GET "):
            following.send("GET", site.at("/a"))


def test_a_password_in_a_url_is_sent_and_never_shown(site: Site) -> None:
    site.set("/broken", hazards.not_http())
    site.set("/", reply("well", headers={"Content-Encoding": "identity"}))
    url = site.url.replace("://", "://user:secret@")
    assert CLIENT.send("GET", url).text == "well"
    assert site.requests[-1].headers["authorization"].startswith("Basic ")
    with pytest.raises(FetchError, match="/broken") as caught:
        CLIENT.send("GET", f"{url.rstrip('/')}/broken")
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (hazards.drip(seconds=0.05), ResponseTimeout),
        (hazards.silence(), ResponseTimeout),
        (hazards.endless(), FetchError),
        (reply("x", headers={"Content-Encoding": "gzip"}), FetchError),
        (hazards.short_body(), FetchError),
        (hazards.reset(), FetchError),
    ],
    ids=["drip", "silence", "endless", "coding", "short body", "reset"],
)
def test_a_response_that_is_slow_long_or_broken_is_an_error(
    site: Site, answer: Answer, error: type[FetchError]
) -> None:
    site.set("/broken", answer)
    with pytest.raises(FetchError, match=r"GET .*/broken: ") as caught:
        (IMPATIENT if error is ResponseTimeout else CLIENT).send("GET", site.at("/broken"))
    assert type(caught.value) is error


def test_a_server_that_does_not_listen_is_a_failed_connection() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionFailed):
            CLIENT.send("GET", f"http://127.0.0.1:{unused.getsockname()[1]}/")
    with pytest.raises(ConnectionFailed):
        CLIENT.send("GET", "http://no-such-host.invalid/")
    with pytest.raises(FetchError, match="relative"):
        CLIENT.send("GET", "/relative")


def test_the_address_policy_holds_for_every_redirect(site: Site) -> None:
    site.set("/a", redirect(f"http://127.0.0.1:{site.port}/b"))
    client = ApiClient(follow_redirects=True, policy=AddressPolicy(["localhost"]))
    with pytest.raises(ForbiddenAddress):
        client.send("GET", f"http://localhost:{site.port}/a")
    assert site.paths() == ["/a"]


def test_kept_connections_are_used_again_without_cookies_and_what_the_server_closed_is_sent_once_more(
    site: Site,
) -> None:
    peers: list[object] = []
    answers = [reply("1", headers={"Set-Cookie": "a=b"}), reply("2"), None, reply("3"), None]

    def answer(request: Request, wire: Wire) -> None:
        peers.append(wire.connection.getpeername())
        if chosen := answers.pop(0):
            chosen(request, wire)
        else:
            wire.close()

    site.set("/a", answer)
    keeping = replace(CLIENT, keeps_connections=True)
    assert [keeping.send("PUT", site.at("/a"), body=b"x").text for _ in range(3)] == ["1", "2", "3"]
    assert peers[0] == peers[1] == peers[2] != peers[3]
    assert [request.body for request in site.requests] == [b"x"] * 4
    assert not any("cookie" in request.headers for request in site.requests)
    with pytest.raises(FetchError, match="closed"):
        CLIENT.send("PUT", site.at("/a"), body=b"x")
    assert len(peers) == 5
