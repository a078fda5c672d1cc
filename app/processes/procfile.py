"""The Procfile's processes: which ones `perennial up` runs, that it runs once, and how `perennial down` ends it."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from honcho.environ import parse_procfile

from app.errors import ServicesError
from app.machine import make_directory, try_lock, wait_until
from app.private_services import private_names
from app.private_services.service import reap
from app.processes import process_states
from app.processes.process_states import ProcessId, ProcessState, UpState, identify, is_running, send_signal
from app.processes.supervisor import KILL_WAIT, POLL, ProcessSupervisor
from config.checks import host_and_port
from config.settings import PROCFILE, Settings, get_settings

#: The process that runs REPLICAS times, so that each copy of a pack has a searcher.
SEARCHER = "searcher"


def procfile() -> dict[str, str]:
    """Return the Procfile's commands by name, in its order."""
    return dict(parse_procfile(PROCFILE.read_text()).processes)


def formation(commands: Mapping[str, str], *, searchers: int) -> dict[str, str]:
    """Return the commands with `searchers` searchers, named as honcho names them: `searcher.1`, `searcher.2`."""
    numbered: dict[str, str] = {}
    for name, command in commands.items():
        names = [f"{name}.{number + 1}" for number in range(searchers)] if name == SEARCHER else [name]
        numbered |= dict.fromkeys(names, command)
    return numbered


def left_out(settings: Settings) -> set[str]:
    """Return the processes that the settings give nothing to do: their queues or their database do not exist."""
    needed = {
        "coverart": bool(settings.art_exchanges),
        "eventart": settings.event_art_exchange in settings.art_exchanges,
        "eventreader": bool(settings.art_exchanges and settings.art_event_queue_url.get_secret_value()),
    }
    return {name for name, is_needed in needed.items() if not is_needed}


def require_free_addresses(settings: Settings) -> None:
    """Raise ServicesError for an address that a process of the Procfile cannot listen on; it names the setting."""
    for variable, address in (("WEB_ADDRESS", settings.web_address), ("FLOWER_ADDRESS", settings.flower_address)):
        host, port = host_and_port(address)
        try:
            socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        except OSError as error:
            reason = error.strerror or error
            raise ServicesError(f"{variable}={address} cannot be served: {reason}; give another address") from error


def run() -> int:
    """Run the Procfile until a signal comes, or until every process stays down; return the exit status.

    A process watches each private service, and starts it again after a crash: what was started is supervised.
    Processes that the settings give nothing to do are left out; there are REPLICAS searchers.
    """
    settings = get_settings()
    commands: dict[str, str] = {name: f"python -m app.private_services {name}" for name in private_names(settings)}
    commands |= {name: command for name, command in procfile().items() if name not in left_out(settings)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"}
    return supervise(formation(commands, searchers=settings.replicas), env=environment)


def supervise(commands: Mapping[str, str], *, env: Mapping[str, str]) -> int:
    """Run commands by name, as `ProcessSupervisor` does, and save their states for `perennial status` and `down`."""
    data_dir, ourselves = get_settings().data_dir, identify(os.getpid())

    def changed(states: Sequence[ProcessState]) -> None:
        # A private service that this process started is its child: one that ended would stay as a zombie.
        reap()
        process_states.save(data_dir, UpState(ourselves, tuple(states)))

    return ProcessSupervisor(commands, env, changed=changed).run()


@contextmanager
def only_one(data_dir: Path) -> Iterator[list[ProcessState]]:
    """Hold the lock of `perennial up` for the block; raises ServicesError while another process holds it.

    Also where the data folder cannot be made or written.

    Yields the processes that a killed `perennial up` had left, which are stopped before.
    """
    make_directory(data_dir)
    with _lock_file(data_dir).open("w") as file:
        if not try_lock(file):
            holder = process_states.load(data_dir).supervisor
            raise ServicesError(f"perennial up runs already, as {_named(holder)}")
        # From now on `stop` finds this process.
        ourselves = identify(os.getpid())
        process_states.save(data_dir, UpState(ourselves, process_states.load(data_dir).processes))
        left = _stop_leftovers(data_dir)
        process_states.save(data_dir, UpState(ourselves))
        yield left


def stop(data_dir: Path) -> bool:
    """Stop the process of `perennial up`, or what it left when it was killed; return whether there was anything.

    Raises ServicesError when it does not end in time.
    """
    if not _lock_file(data_dir).exists():
        return False
    with _lock_file(data_dir).open("w") as file:
        if try_lock(file):
            return bool(_stop_leftovers(data_dir))
        deadline, signalled = time.monotonic() + KILL_WAIT + 10, None
        while not try_lock(file):
            # Another `perennial down` may hold the lock, or an `up` that has not saved its identity yet. Then the
            # state names a process that has ended, and its id may be that of another one.
            holder = process_states.load(data_dir).supervisor
            if holder is not None and holder != signalled:
                send_signal(holder, signal.SIGTERM)
                signalled = holder
            if time.monotonic() > deadline:
                raise ServicesError(f"{_named(holder)}, which is `perennial up` or `down`, does not end")
            time.sleep(POLL)
    return True


def _stop_leftovers(data_dir: Path) -> list[ProcessState]:
    """Stop the processes of a `perennial up` that was killed, and return them."""
    left = [each for each in process_states.load(data_dir).processes if each.id and is_running(each.id)]
    for number, patience, group in ((signal.SIGTERM, KILL_WAIT, False), (signal.SIGKILL, 5.0, True)):
        running = [each.id for each in left if each.id and is_running(each.id)]
        for process in running:
            send_signal(process, number, group=group)
        wait_until(lambda: not any(map(is_running, running)), patience, every=POLL)  # noqa: B023 - called at once.
    return left


def _lock_file(data_dir: Path) -> Path:
    return data_dir / "up.lock"


def _named(holder: ProcessId | None) -> str:
    return f"process {holder.pid}" if holder and is_running(holder) else "a process that starts or stops it now"
