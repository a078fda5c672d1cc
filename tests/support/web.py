"""A web application served over the loopback: in this process, or by `python -m app.web`."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
from fastapi import FastAPI

from app.private_services import ports
from app.web.server import LOOPBACK, create_server
from tests.support.waiting import eventually
from tests.support.worker import Worker, start_module


@contextmanager
def served(
    app: FastAPI, *, proxies: Sequence[str] = LOOPBACK, for_both_families: bool = False
) -> Iterator[httpx.Client]:
    """Serve the application on a free port of the loopback; `proxies` may name a visitor's address.

    With `for_both_families` the socket is one of IPv6 that also takes connections of IPv4.
    """
    server = create_server(app, proxies=proxies)
    listener = socket.create_server(("127.0.0.1", 0))
    if for_both_families:
        listener.close()
        listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        # uvicorn closes a connection that is idle for five seconds: a client that reuses it then would be reset.
        limits = httpx.Limits(keepalive_expiry=1.0)
        base = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with httpx.Client(base_url=base, timeout=30, limits=limits) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@contextmanager
def web_process(environment: Mapping[str, str], log: Path) -> Iterator[tuple[Worker, str]]:
    """Run the web process for the block, on a free port unless one is given; yield it and its address."""
    running = start_module({"WEB_ADDRESS": "127.0.0.1:0", **environment}, log, "app.web")
    try:
        address = eventually(
            lambda: re.search(r"Search page: (http://\S+)/\n", running.log), "the web process serves", seconds=60
        )
        assert address
        yield running, address[1]
    finally:
        running.process.kill()
        running.process.wait(60)


def free_port() -> int:
    """Return a port of the loopback interface that was free a moment ago.

    No connection and no server without a port of its own takes it meanwhile: the kernel gives them others.
    """
    (port,) = ports.choose(("server",)).values()
    return port
