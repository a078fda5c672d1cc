"""A private PostgreSQL for tests, in place of MusicBrainz's own. It ends with the process that started it."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import psutil
import psycopg

from app.errors import ServicesError
from app.machine import tail, wait_until
from app.private_services import service
from tests.support.programs import ensure_postgres, program

USER = "musicbrainz"

#: Seconds to start, and to stop before it is killed.
_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 15.0

#: Nothing of it outlives the machine, so nothing needs to reach the disk. What is committed survives a kill.
_OPTIONS = {
    "listen_addresses": "",
    "fsync": "off",
    "shared_buffers": "32MB",
    "max_connections": "100",
}


class KillablePostgres:
    """A PostgreSQL that a test may restart; `url` leads to its database `postgres`, whose user may do everything."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.url = f"postgresql://{USER}@/postgres?host={quote(str(folder), safe='')}"
        options = {**_OPTIONS, "unix_socket_directories": str(folder)}
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        self._command = as_server_user([str(programs / "postgres"), "-D", str(folder / "data"), *settings])
        self._folder = folder
        self.start()

    def start(self) -> None:
        """Start it on its data, also after a kill."""
        log = self._folder / "log"
        child = service.start(self._command, directory=self._folder, env=environment(), log=log)
        self._child = child
        wait_until(lambda: child.poll() is not None or answers(self.url), _START_TIMEOUT)
        if not answers(self.url):
            self.stop()
            raise ServicesError(f"PostgreSQL did not start; its log ends with:\n{tail(log)}")

    def kill(self) -> None:
        """Send SIGKILL to all its processes at once. It stays away until `start`, which recovers its data."""
        server = psutil.Process(self._child.pid)
        # Stopped, it starts no further ones meanwhile. A backend that outlived it would keep its shared memory.
        server.suspend()
        processes = [server, *server.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._child.wait()
        psutil.wait_procs(processes[1:], timeout=_STOP_TIMEOUT)

    def stop(self) -> None:
        """End every connection and every transaction, and stop it."""
        self._child.send_signal(signal.SIGINT)
        try:
            self._child.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
        service.reap()


@contextmanager
def postgres() -> Iterator[str]:
    """Run a PostgreSQL for the block and yield the URL of its database `postgres`; raises as `killable_postgres`."""
    with killable_postgres() as running:
        yield running.url


@contextmanager
def standby_of(url: str) -> Iterator[str]:
    """Run a streaming standby of the PostgreSQL of `url` for the block; yield the URL of the same database there."""
    primary = urlsplit(url)
    [folder] = parse_qs(primary.query)["host"]
    with killable_postgres(folder) as running:
        yield urlsplit(running.url)._replace(path=primary.path).geturl()


def pause_replay(standby: str) -> None:
    """Have a standby replay nothing more, as one that lags."""
    with psycopg.connect(standby, autocommit=True) as connection:
        connection.execute("SELECT pg_wal_replay_pause()")
        # Whatever it replays now must be applied first.
        state = "SELECT pg_get_wal_replay_pause_state()"
        if not wait_until(lambda: connection.execute(state).fetchone() == ("paused",), _START_TIMEOUT):
            raise ServicesError("PostgreSQL: the standby did not pause its replay")


@contextmanager
def hanging(url: str) -> Iterator[None]:
    """Stop all processes of a server for the block: its kernel accepts connections and data, and no answer comes."""
    with psycopg.connect(url) as connection:
        server = psutil.Process(connection.info.backend_pid).parent()
    if server is None:
        raise ServicesError("PostgreSQL: a backend has no parent")
    server.suspend()
    processes = [server, *server.children(recursive=True)]
    try:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


@contextmanager
def killable_postgres(primary: str = "") -> Iterator[KillablePostgres]:
    """Run a PostgreSQL for the block, a standby of the one in the folder `primary` if that is given.

    It listens on a Unix socket alone, in a folder that only its own user, and root, may enter.

    Raises:
        ServicesError: it cannot be installed or started; says why.
    """
    # The package makes the user that the folder is for.
    programs = ensure_postgres()
    with server_folder() as folder:
        common = f"--pgdata={folder / 'data'} --username={USER} --no-sync".split()
        if primary:
            options = f"--write-recovery-conf --wal-method=stream --checkpoint=fast --host={primary}".split()
            _run([str(programs / "pg_basebackup"), *common, *options])
        else:
            _run([str(programs / "initdb"), *common, "--auth=trust", "--encoding=UTF8", "--locale=C"])
        server = KillablePostgres(programs, folder)
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def server_folder() -> Iterator[Path]:
    """Make a folder that the server's user owns; it is gone after the block, also if this process is killed."""
    # A root's own folder for temporary files may be closed to others, and the path of a socket has 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="perennial-postgres-", dir="/tmp"))
    # The kernel closes the pipe that it reads from. The server may write until it has ended, too.
    command = ["sh", "-c", 'read -r _; until rm -rf "$0"; do sleep 1; done', str(folder)]
    with subprocess.Popen(command, cwd="/", stdin=subprocess.PIPE, start_new_session=True):
        if os.geteuid() == 0:
            user = _other_user()
            os.chown(folder, user.pw_uid, user.pw_gid)
        yield folder


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        as_server_user(command), cwd="/", env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        name, said = Path(command[0]).name, (done.stderr or done.stdout).strip()
        raise ServicesError(f"{name} ended with exit code {done.returncode}:\n{said}")


def as_server_user(command: Sequence[str]) -> list[str]:
    """Return a command that gets SIGINT (fast shutdown) when its parent ends; PostgreSQL refuses to run as root."""
    wrapper = [program("setpriv", "util-linux"), "--pdeathsig", "INT"]
    if os.geteuid() == 0:
        user = _other_user()
        wrapper += ["--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"]
    return [*wrapper, *command]


def _other_user() -> pwd.struct_passwd:
    # The package creates the first user; another installation may not have it.
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise ServicesError("PostgreSQL does not run as root, and there is no user `postgres` or `nobody` to run it as")


def environment() -> dict[str, str]:
    """Return the environment of the server's programs."""
    # Nothing of the user's own environment, PGDATA and the like, is meant for this server.
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}


def answers(url: str) -> bool:
    """Return whether a server or a pooler accepts connections."""
    try:
        psycopg.connect(url, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True
