"""A web application served over the loopback, as `python -m app.web` serves one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx
from fastapi import FastAPI

from app.web.server import LOOPBACK, create_server


@contextmanager
def served(app: FastAPI, *, proxies: Sequence[str] = LOOPBACK) -> Iterator[httpx.Client]:
    """Serve the application on a free port of the loopback; `proxies` may name a visitor's address."""
    server = create_server(app, proxies=proxies)
    listener = socket.create_server(("127.0.0.1", 0))
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
