"""Up, down and status of the private services, one command at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from app.errors import ServicesError
from app.services import install, ports, rabbitmq, redis, state
from app.services.service import Service, wait_until
from app.services.state import State, Urls
from config.settings import Settings

#: Seconds that a command waits for another one on the same folder, which may be installing packages.
_LOCK_TIMEOUT = 600.0
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """How one service stands; `address` is `host:port`, `pid` that of a private process that runs."""

    name: Literal["rabbitmq", "redis"]
    state: Literal["up", "down", "given"]
    address: str
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which services are private, that is not given by a URL."""

    broker: bool
    redis: bool

    @classmethod
    def by(cls, settings: Settings) -> _Wanted:
        return cls(not settings.broker_url.get_secret_value(), not settings.redis_url.get_secret_value())


def up(settings: Settings) -> Urls:
    """Start the private services that are not given by a URL and do not run; return when all of them answer.

    Raises:
        ServicesError: a service cannot be installed or started; says why and what to do.
    """
    wanted = _Wanted.by(settings)
    if wanted.broker or wanted.redis:
        folder = _folder(settings)
        with _lock(folder):
            install.ensure(broker=wanted.broker, redis=wanted.redis)
            _start_all(folder, wanted)
    return Urls(settings.broker, settings.redis, settings.broker_api)


def down(settings: Settings) -> None:
    """Stop whatever private service runs; its data stay. Services given by a URL are not touched."""
    if not settings.services_file.parent.exists():
        return
    folder = _folder(settings)
    with _lock(folder):
        known = _with_all_ports(state.load(folder))
        for service in _services(folder, known, _Wanted(broker=True, redis=True)):
            service.stop()


def status(settings: Settings) -> list[ServiceStatus]:
    """Return how the broker and Redis stand; what is given by a URL is named, not asked."""
    wanted = _Wanted.by(settings)
    return [
        _private(settings, "rabbitmq") if wanted.broker else _given("rabbitmq", settings.broker),
        _private(settings, "redis") if wanted.redis else _given("redis", settings.redis),
    ]


def _start_all(folder: Path, wanted: _Wanted) -> State:
    known = _known(folder)
    for attempt in range(1, _ATTEMPTS + 1):
        known = _move_from_taken_ports(folder, known, wanted)
        known = state.with_urls(known, _urls(known, wanted), {})
        state.save(folder, known)
        _configure(folder, known, wanted)
        try:
            pids = {service.name: service.start() for service in reversed(_services(folder, known, wanted))}
        except ServicesError:
            # Somebody may have taken a port between our look and the service's start.
            if attempt == _ATTEMPTS or not _taken(folder, known, wanted):
                raise
            continue
        known = state.with_urls(known, {}, pids)
        state.save(folder, known)
        break
    return known


def _known(folder: Path) -> State:
    """Return the state kept in `folder`; where it was lost, what runs is on ports unknown to us, and is stopped."""
    kept = state.load(folder)
    known = _with_all_ports(kept)
    if not kept.ports:
        for service in _services(folder, known, _Wanted(broker=True, redis=True)):
            service.stop()
    return known


def _services(folder: Path, known: State, wanted: _Wanted) -> list[Service]:
    """Return the wanted services in the order in which they are stopped: a node before its port mapper."""
    script = install.rabbitmq_script() or Path("rabbitmq-server")
    node = [rabbitmq.broker(folder, known, script=script), rabbitmq.port_mapper(folder, known)] if wanted.broker else []
    return node + ([redis.server(folder, known)] if wanted.redis else [])


def _configure(folder: Path, known: State, wanted: _Wanted) -> None:
    if wanted.broker:
        rabbitmq.configure(folder, known)
    if wanted.redis:
        redis.configure(folder, known)


def _urls(known: State, wanted: _Wanted) -> dict[str, str]:
    broker = {"broker_url": known.broker_url, "broker_api_url": known.broker_api_url} if wanted.broker else {}
    return broker | ({"redis_url": known.redis_url} if wanted.redis else {})


def _with_all_ports(known: State) -> State:
    names = [name for name in (*rabbitmq.PORTS, "epmd", *redis.PORTS) if name not in known.ports]
    return state.with_ports(known, ports.choose(names, avoid=known.ports.values()))


def _taken(folder: Path, known: State, wanted: _Wanted) -> list[str]:
    idle = [service for service in _services(folder, known, wanted) if not service.pids()]
    return [name for service in idle for name in service.ports if not ports.is_free(known.ports[name])]


def _move_from_taken_ports(folder: Path, known: State, wanted: _Wanted) -> State:
    return state.with_ports(known, ports.choose(_taken(folder, known, wanted), avoid=known.ports.values()))


def _private(settings: Settings, name: Literal["rabbitmq", "redis"]) -> ServiceStatus:
    if not settings.services_file.exists():
        return ServiceStatus(name, "down", "")
    folder = _folder(settings)
    known = _with_all_ports(state.load(folder))
    service = _services(folder, known, _Wanted(broker=name == "rabbitmq", redis=name == "redis"))[0]
    address = f"127.0.0.1:{known.ports['amqp' if name == 'rabbitmq' else 'redis']}"
    pids: Sequence[int] = service.pids()
    return ServiceStatus(name, "up" if service.is_up() else "down", address, pids[0] if pids else None)


def _given(name: Literal["rabbitmq", "redis"], url: str) -> ServiceStatus:
    # The password, and whatever else stands in the URL, is not shown.
    parts = urlsplit(url)
    port = parts.port or {"rabbitmq": 5672, "redis": 6379}[name]
    return ServiceStatus(name, "given", f"{parts.hostname or 'localhost'}:{port}")


def _folder(settings: Settings) -> Path:
    if not Path("/proc/self/cwd").exists():
        raise ServicesError(f"private services need Linux. {install.ALTERNATIVES}")
    return state.make_directory(settings.services_file.parent.resolve())


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as file:
        if not wait_until(lambda: _locked(file.fileno()), _LOCK_TIMEOUT):
            raise ServicesError(f"another command holds {folder / 'lock'} for {_LOCK_TIMEOUT:.0f} s; is it stuck?")
        yield


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
