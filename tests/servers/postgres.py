"""A private PostgreSQL for tests, in place of MusicBrainz's own, that leaves nothing behind.

`python -m tests.servers.postgres` starts it, prints its URL, and stops it when standard input is closed. The end of the
parent process closes it, too. With the folder of another one as its argument, it is a streaming standby of that one.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from urllib.parse import parse_qs, quote, urlsplit

import psutil
import psycopg

from app.errors import ServicesError
from app.machine import tail, wait_until
from app.private_services import service
from config.settings import ROOT
from tests.support.programs import ensure_postgres, program

USER = "musicbrainz"

#: The lines that ask the keeper to stop it and start it again, and to kill it until then.
_RESTART, _KILL = "restart\n", "kill\n"

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


@dataclass(frozen=True, slots=True)
class KillablePostgres:
    """A PostgreSQL that a test may restart; `url` leads to its database `postgres`, whose user may do everything."""

    url: str
    _ask: Callable[[str], str]

    def restart(self) -> None:
        """End every connection and every transaction, and start it again on its data, also after a kill."""
        _url_of(self._ask(_RESTART))

    def kill(self) -> None:
        """Send SIGKILL to all its processes at once. It stays away until `restart`, which recovers its data."""
        _url_of(self._ask(_KILL))


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
    keeper = subprocess.Popen(
        [sys.executable, "-m", "tests.servers.postgres", *([primary] if primary else [])],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Ctrl-C on the terminal ends the parent, which then closes the pipe.
        start_new_session=True,
        text=True,
    )
    with keeper:
        if keeper.stdin is None or keeper.stdout is None:
            raise ServicesError("PostgreSQL: its keeper has no pipes")
        stdin, stdout = keeper.stdin, keeper.stdout

        def ask(line: str) -> str:
            stdin.write(line)
            stdin.flush()
            return stdout.readline()

        try:
            yield KillablePostgres(_url_of(stdout.readline()), ask)
        finally:
            keeper.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                keeper.wait(_STOP_TIMEOUT * 2)


def main() -> int:
    """Keep a server until standard input ends, and restart or kill it as the lines say; return an exit status."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        # The package makes the user that the folder is for.
        programs = ensure_postgres()
        with server_folder() as folder:
            if sys.argv[1:]:
                _copy(programs, folder, sys.argv[1])
            else:
                _initialise(programs, folder)
            while _serve(programs, folder):
                pass
            return 0
    except ServicesError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1


def _serve(programs: Path, folder: Path) -> bool:
    """Run the server until a line comes; return whether to run it again."""
    with _server(programs, folder) as (child, url):
        answer = json.dumps({"url": url})
        print(answer, flush=True)
        line = sys.stdin.readline()
        if line == _KILL:
            _kill(child)
            print(answer, flush=True)
            line = sys.stdin.readline()
        return line == _RESTART


def _url_of(line: str) -> str:
    said = json.loads(line or "{}")
    if "url" not in said:
        raise ServicesError(said.get("error", "PostgreSQL: its keeper ended without a word"))
    return str(said["url"])


@contextmanager
def server_folder() -> Iterator[Path]:
    """Make a folder that the server's user owns; it is gone after the block."""
    # A root's own folder for temporary files may be closed to others, and the path of a socket has 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="perennial-postgres-", dir="/tmp"))
    try:
        if os.geteuid() == 0:
            user = _other_user()
            os.chown(folder, user.pw_uid, user.pw_gid)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _server(programs: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    data, log = folder / "data", folder / "log"
    options = {**_OPTIONS, "unix_socket_directories": str(folder)}
    settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
    child = service.start(
        as_server_user([str(programs / "postgres"), "-D", str(data), *settings]),
        directory=folder,
        env=environment(),
        log=log,
    )
    url = f"postgresql://{USER}@/postgres?host={quote(str(folder), safe='')}"
    try:
        wait_until(lambda: child.poll() is not None or answers(url), _START_TIMEOUT)
        if not answers(url):
            raise ServicesError(f"PostgreSQL did not start; its log ends with:\n{tail(log)}")
        yield child, url
    finally:
        _stop(child)


def _initialise(programs: Path, folder: Path) -> None:
    """Make an empty cluster in the folder."""
    options = f"--username={USER} --auth=trust --encoding=UTF8 --locale=C --no-sync".split()
    _run([str(programs / "initdb"), f"--pgdata={folder / 'data'}", *options])


def _copy(programs: Path, folder: Path, primary: str) -> None:
    """Copy a running cluster into the folder, and make the copy its standby."""
    options = f"--username={USER} --write-recovery-conf --wal-method=stream --checkpoint=fast --no-sync".split()
    _run([str(programs / "pg_basebackup"), f"--pgdata={folder / 'data'}", f"--host={primary}", *options])


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


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill the server and its backends: one that outlived it would keep its shared memory."""
    server = psutil.Process(child.pid)
    # Stopped, it starts no further ones meanwhile.
    server.suspend()
    processes = [server, *server.children(recursive=True)]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    child.wait()
    psutil.wait_procs(processes[1:], timeout=_STOP_TIMEOUT)


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGINT)
    try:
        child.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    service.reap()


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
