"""The private Redis server, with an append-only file and a password."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import redis

from app.machine import make_directory, write_private
from app.private_services.service import Service, environment
from app.private_services.state import ServicesState

PORTS = ("redis",)

#: The machine's memory divided by this is the server's limit. While it rewrites its append-only file, a child may
#: need as much again. Writers wait for a full Redis; without a limit, the kernel would end a process of the machine.
MEMORY_SHARE = 4

_CONF = """\
bind 127.0.0.1
port {port}
dir "{directory}"
requirepass {password}
appendonly yes
appendfsync everysec
save ""
maxmemory {memory}
maxmemory-policy noeviction
daemonize no
"""


def server(directory: Path, state: ServicesState) -> Service:
    """Return the private Redis server. Its password is in a file: every user can read a process's arguments."""
    home = make_directory(directory / "redis")
    return Service(
        name="Redis",
        directory=home,
        programs=frozenset({"redis-server"}),
        argv=[shutil.which("redis-server") or "redis-server", str(home / "redis.conf")],
        env=environment(home),
        log=home / "redis.log",
        ports=PORTS,
        answers=lambda: logs_in(state),
        start_timeout=30.0,
        stop_timeout=15.0,
    )


def configure(directory: Path, state: ServicesState) -> None:
    """Write the server's configuration."""
    home = make_directory(directory / "redis")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MEMORY_SHARE
    conf = _CONF.format(port=state.ports["redis"], directory=home, password=state.password, memory=memory)
    write_private(home / "redis.conf", conf)


def logs_in(state: ServicesState) -> bool:
    """Return whether the Redis on the server's port accepts its password and has loaded its data."""
    with redis.Redis.from_url(state.redis_url, socket_connect_timeout=5, socket_timeout=5) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
