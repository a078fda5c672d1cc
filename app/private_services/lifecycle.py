"""Start, stop and report the private services, one command at a time, and watch one of them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn
from urllib.parse import urlsplit

from app.errors import ServicesError
from app.machine import make_directory, tail, try_lock, wait_until
from app.private_services import install, ports, rabbitmq, redis, state
from app.private_services.service import Service
from app.private_services.state import ServicesState, Urls
from app.storage.open import create_store
from config.settings import Settings

Name = Literal["rabbitmq", "redis"]

#: Seconds that a command waits for another one on the same folder, which may be installing packages.
_LOCK_TIMEOUT = 600.0

#: The ports of URLs without one.
_PORTS = {"amqp": 5672, "amqps": 5671, "redis": 6379, "rediss": 6379}

#: Starts with new ports, where another process took a port meanwhile.
_ATTEMPTS = 3

#: Seconds between two looks for the processes of a service.
_WATCH = 1.0


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """State of one service; `address` is `host:port`, `pid` the process id of a private service that runs."""

    name: Name
    state: Literal["up", "down", "given"]
    address: str
    pid: int | None = None


def private_names(settings: Settings) -> tuple[Name, ...]:
    """Return the services that no URL is given for."""
    given: dict[Name, str] = {
        "rabbitmq": settings.broker_url.get_secret_value(),
        "redis": settings.redis_url.get_secret_value(),
    }
    return tuple(name for name, url in given.items() if not url)


def up(settings: Settings) -> Urls:
    """Start the private services that are not given by a URL and do not run; return when all of them answer.

    Without STORE_URL it also makes the folder store below the data folder: running processes make no store.
    Raises ServicesError, which says what to do, where a service cannot be installed or started.
    """
    if names := private_names(settings):
        folder = _folder(settings)
        with _lock(folder):
            install.ensure(broker="rabbitmq" in names, redis="redis" in names)
            _start(folder, names)
    if not settings.store_url:
        create_store(settings.store)
    return Urls(settings.broker, settings.redis, settings.broker_api)


def down(settings: Settings) -> None:
    """Stop the private services that run; their data stay. Services given by a URL are not touched."""
    if not settings.services_file.parent.exists():
        return
    folder = _folder(settings)
    with _lock(folder):
        for service in _services(folder, _with_all_ports(state.load(folder)), ("rabbitmq", "redis")):
            service.stop()


def start_again(settings: Settings, name: Name) -> list[Service]:
    """Start a service that `up` has started before, unless it runs and answers; return its servers.

    The ports stay, for running processes have the URLs. Raises ServicesError where it does not start.
    """
    folder = _folder(settings)
    with _lock(folder):
        current = state.load(folder)
        if not current.ports:
            raise ServicesError(f"{settings.services_file} was lost: use `perennial down`, then `perennial up`")
        servers = _services(folder, current, (name,))
        for server in reversed(servers):
            server.start()
    return servers


def watch(servers: Collection[Service]) -> NoReturn:
    """Wait until one of the servers has ended, and raise ServicesError with the last lines of its log."""
    while True:
        for server in servers:
            if not server.pids():
                raise ServicesError(f"{server.name} has ended; its log {server.log} ends with:\n{tail(server.log)}")
        time.sleep(_WATCH)


def status(settings: Settings) -> list[ServiceStatus]:
    """Return the state of broker and Redis; a service that is given by a URL is not contacted."""
    private, result = private_names(settings), []
    urls: dict[Name, str] = {"rabbitmq": settings.broker, "redis": settings.redis}
    for name, url in urls.items():
        if name not in private:
            # The rest of the URL may contain a password. A broker's URL may name several nodes.
            nodes = (urlsplit(each) for each in url.split(";"))
            addresses = (f"{node.hostname or 'localhost'}:{node.port or _PORTS.get(node.scheme, '')}" for node in nodes)
            result.append(ServiceStatus(name, "given", ", ".join(addresses)))
        elif not settings.services_file.exists():
            result.append(ServiceStatus(name, "down", ""))
        else:
            folder = _folder(settings)
            current = _with_all_ports(state.load(folder))
            service = _services(folder, current, (name,))[0]
            pids = service.pids()
            address = f"127.0.0.1:{current.ports['amqp' if name == 'rabbitmq' else 'redis']}"
            result.append(ServiceStatus(name, "up" if service.is_up() else "down", address, pids[0] if pids else None))
    return result


def _start(folder: Path, names: Collection[Name]) -> None:
    kept = state.load(folder)
    current = _with_all_ports(kept)
    if not kept.ports:
        # The state file was lost: services that run use unknown ports, and are stopped.
        for service in _services(folder, current, ("rabbitmq", "redis")):
            service.stop()
    for attempt in range(1, _ATTEMPTS + 1):
        taken = _taken_ports(folder, current, names)
        current = _with_ports(current, taken)
        urls = dict(current.urls)
        if "rabbitmq" in names:
            urls |= {"broker_url": current.broker_url, "broker_api_url": current.broker_api_url}
            rabbitmq.configure(folder, current)
        if "redis" in names:
            urls |= {"redis_url": current.redis_url}
            redis.configure(folder, current)
        current = replace(current, urls=urls)
        state.save(folder, current)
        try:
            for service in reversed(_services(folder, current, names)):
                service.start()
        except ServicesError:
            # Another process may have taken a port after it was checked.
            if attempt == _ATTEMPTS or not _taken_ports(folder, current, names):
                raise
        else:
            return


def _services(folder: Path, current: ServicesState, names: Collection[Name]) -> list[Service]:
    """Return the services in the order in which they are stopped: the node before its port mapper."""
    services: list[Service] = []
    if "rabbitmq" in names:
        script = install.rabbitmq_script() or Path("rabbitmq-server")
        services += [rabbitmq.broker(folder, current, script=script), rabbitmq.port_mapper(folder, current)]
    return services + ([redis.server(folder, current)] if "redis" in names else [])


def _with_all_ports(current: ServicesState) -> ServicesState:
    return _with_ports(current, [name for name in (*rabbitmq.PORTS, "epmd", *redis.PORTS) if name not in current.ports])


def _with_ports(current: ServicesState, names: Collection[str]) -> ServicesState:
    """Return the state with free ports for these names."""
    return replace(current, ports=current.ports | ports.choose(names, avoid=current.ports.values()))


def _taken_ports(folder: Path, current: ServicesState, names: Collection[Name]) -> list[str]:
    """Return the names of the ports of services that do not run which another process listens on."""
    idle = [service for service in _services(folder, current, names) if not service.pids()]
    return [name for service in idle for name in service.ports if not ports.is_free(current.ports[name])]


def _folder(settings: Settings) -> Path:
    if not Path("/proc/self/cwd").exists():
        raise ServicesError(f"private services need Linux. {install.ALTERNATIVES}")
    return make_directory(settings.services_file.parent.resolve())


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as file:
        if not wait_until(lambda: try_lock(file), _LOCK_TIMEOUT):
            raise ServicesError(f"another command holds {folder / 'lock'} for {_LOCK_TIMEOUT:.0f} s; is it stuck?")
        yield
