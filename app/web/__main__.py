"""`python -m app.web`: the search page on WEB_HOST:WEB_PORT, until a signal ends it."""

from __future__ import annotations

import socket
import sys

import uvicorn

from app.storage.open import open_store
from app.web.application import create_app
from app.web.site import StoreFinder
from config.settings import Settings, get_settings

#: Seconds that open requests get to end after SIGTERM.
GRACE = 2


def server(settings: Settings) -> uvicorn.Server:
    """Return the server. Requests are not logged: what people search for is theirs."""
    store = open_store(settings.store, endpoint_url=settings.s3_endpoint_url)
    app = create_app(StoreFinder(store, settings.data_dir / "web"))
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=settings.web_host,
            port=settings.web_port,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE,
        )
    )


def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    web = server(get_settings())
    listener = web.config.bind_socket()
    # asyncio does it for sockets of its own only; without it every answer waits 40 ms for the client's ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    host, port = listener.getsockname()[:2]
    sys.stdout.write(f"Search page: http://{f'[{host}]' if ':' in host else host}:{port}/\n")
    sys.stdout.flush()
    web.run(sockets=[listener])


if __name__ == "__main__":
    main()
