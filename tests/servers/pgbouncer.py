"""A pgbouncer in transaction mode before the private PostgreSQL of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, quote, urlsplit

from app.errors import ServicesError
from app.services import service
from tests.servers import postgres
from tests.support.programs import program


@contextmanager
def pooled(url: str) -> Iterator[str]:
    """Run a pooler before the PostgreSQL of `url` for the block; yield the URL of the same database through it.

    Each transaction may get another session of the server, of which there are two.
    """
    [server] = parse_qs(urlsplit(url).query)["host"]
    command = [program("pgbouncer", "pgbouncer"), "pgbouncer.ini"]
    with postgres.server_folder() as folder:
        (folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={server} user={postgres.USER}\n[pgbouncer]\npool_mode = transaction\n"
            f"default_pool_size = 2\nauth_type = any\nlisten_addr =\nunix_socket_dir = {folder}\n"
        )
        child = service.start(
            postgres.as_server_user(command), directory=folder, env=postgres.environment(), log=folder / "log"
        )
        through = urlsplit(url)._replace(query=f"host={quote(str(folder), safe='')}&port=6432").geturl()
        try:
            if not service.wait_until(lambda: postgres.answers(through), 30):
                raise ServicesError(f"pgbouncer did not start; its log ends with:\n{service.tail(folder / 'log')}")
            yield through
        finally:
            child.terminate()
            child.wait()
            service.reap()
