"""Requests to a site by its proxy, with its certificate authority, and the address policy behind a proxy."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.errors import ConnectionFailed, FetchError, ForbiddenAddress
from app.http.fetcher import Fetcher
from tests.servers.site import Site, page
from tests.support.tls import Encrypted

pytestmark = pytest.mark.integration


def fetcher(**options: Any) -> Fetcher:
    return Fetcher(user_agent="Perennial/1", connect_timeout=2, response_timeout=5, **options)


def test_a_page_is_requested_by_the_proxy_with_its_login_and_its_name_is_resolved_there() -> None:
    with Site({"http://wiki.corp.example/a": page("A")}) as proxy:
        with fetcher(proxy=proxy.url, proxy_login="Basic dTpw") as client:
            assert client.get("http://wiki.corp.example/a").status == 200
        [request] = proxy.requests
        assert request.headers["host"] == "wiki.corp.example"
        assert request.headers["proxy-authorization"] == "Basic dTpw"


@pytest.mark.parametrize("url", ["http://127.0.0.1/", "http://[::1]/", "http://2130706433/", "http://169.254.169.254/"])
def test_a_proxy_is_no_way_to_a_private_address(url: str) -> None:
    with Site() as proxy, fetcher(proxy=proxy.url) as client:
        with pytest.raises(ForbiddenAddress):
            client.get(url)
        assert not proxy.requests


def test_a_page_over_https_goes_through_the_tunnel_of_the_proxy_to_a_host_with_a_private_authority(
    tmp_path: Path,
) -> None:
    with Site({"/a": page("A")}) as site, closing(Encrypted(site.url, tmp_path)) as secure:
        port = int(secure.url.rpartition(":")[2].strip("/"))
        url = f"https://127.0.0.1:{port}/a"
        allowed = {"allow_private_hosts": ("127.0.0.1",), "ca_file": str(secure.authority)}
        with tunnel() as (proxy, targets), fetcher(**allowed, proxy=proxy) as client:
            assert client.get(url).status == 200
            assert targets == [f"127.0.0.1:{port}"]
        with fetcher(**allowed) as client:
            assert client.get(url).status == 200
        with (
            fetcher(allow_private_hosts=("127.0.0.1",)) as client,
            pytest.raises(ConnectionFailed, match="certificate"),
        ):
            client.get(url)


def test_an_invalid_certificate_authority_is_an_error_that_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"certificate authority /missing\.pem: "):
        fetcher(ca_file="/missing.pem")
    (tmp_path / "a.pem").write_text("no certificate")
    with pytest.raises(FetchError, match=r"certificate authority .*a\.pem: "):
        fetcher(ca_file=str(tmp_path / "a.pem"))


@contextmanager
def tunnel() -> Iterator[tuple[str, list[str]]]:
    """Run a proxy that serves CONNECT; yield its URL and the targets that it received."""
    targets: list[str] = []

    def serve(client: socket.socket) -> None:
        with client:
            target = client.recv(65_536).split()[1].decode()
            targets.append(target)
            host, _, port = target.rpartition(":")
            with socket.create_connection((host, int(port))) as server:
                client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                back = threading.Thread(target=pump, args=(server, client))
                back.start()
                pump(client, server)
                back.join()

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,)).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", targets
        finally:
            listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return
