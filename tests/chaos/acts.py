"""What faults do to a running system and to its services, store and clocks, and whether this machine allows it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from app.broker.errors import ApplicationError
from config.settings import Settings
from tests.chaos.system import System
from tests.support.programs import program
from tests.support.waiting import eventually

RABBITMQ, REDIS = "beam.smp", "redis-server"

#: Seconds by which the worker's clock is ahead of beat's. Beat's own clock is not moved: under libfaketime 0.9.10
#: Python's `time.sleep` fails, which beat calls.
SKEWS = (3, 3_600)


def kill_pool_process(system: System, chance: random.Random) -> None:
    """SIGKILL one pool process of the worker."""
    children = system.keeper.children("worker")
    if children:
        with suppress(psutil.NoSuchProcess):
            chance.choice(children).kill()


# Services


def signal_service(system: System, name: str, number: signal.Signals) -> None:
    """Send a signal to the processes of RabbitMQ or Redis."""
    for process in system.processes(name):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def kill_service(system: System, name: str) -> None:
    """SIGKILL RabbitMQ or Redis; return when it is gone."""
    processes = system.processes(name)
    signal_service(system, name, signal.SIGKILL)
    psutil.wait_procs(processes, timeout=10)


def cut_power(system: System) -> None:
    """SIGKILL RabbitMQ, Redis and every process of the system at once. What the kernel holds for the disk stays."""
    for name in (RABBITMQ, REDIS):
        signal_service(system, name, signal.SIGKILL)
    system.keeper.kill_all()
    for name in (RABBITMQ, REDIS):
        kill_service(system, name)


def restore_power(system: System) -> None:
    """Start the services, then the processes."""
    system.start_services()
    system.keeper.start_all()


def start_nodes(system: System) -> None:
    """Start the killed nodes of the broker cluster; return when they are part of it."""
    for number in system.nodes.killed():
        system.nodes.start(number)


def lose_redis(system: System) -> None:
    """SIGKILL Redis and remove its data."""
    kill_service(system, REDIS)
    shutil.rmtree(system.settings.services_file.parent / "redis" / "appendonlydir")


def set_redis_back(system: System, chance: random.Random) -> None:
    """SIGKILL Redis when ten seconds of work have passed, and replace its data by those of ten seconds ago."""
    data = system.settings.services_file.parent / "redis" / "appendonlydir"
    snapshot = data.with_name("snapshot")
    shutil.copytree(data, snapshot)
    threading.Event().wait(chance.uniform(9, 10))
    kill_service(system, REDIS)
    shutil.rmtree(data)
    snapshot.rename(data)


def raise_alarm(system: System, set_limit: Callable[[Settings, str], None], limit: str) -> None:
    """Set a limit of memory or disk that the node exceeds; return when it accepts no messages."""
    set_limit(system.settings, limit)
    eventually(system.has_alarm, "RabbitMQ raises the alarm", every=0.2)


# The store


def set_store(system: System, *, failing: bool = False, delay: float = 0.0) -> None:
    """Let the S3 store answer each request with an error, or after `delay` seconds."""
    assert system.gateway is not None, "the store of this system is a folder"
    system.gateway.failing = failing
    system.gateway.delay = delay


def filler(system: System) -> Path:
    """Return the file with which `fill_disk` fills the disk."""
    return system.store_folder / "filler"


def fill_disk(system: System) -> None:
    """Write to the store's file system until it is full."""
    with suppress(OSError), filler(system).open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def mounting_forbidden() -> str:
    """Return why a small file system cannot be mounted, or an empty text."""
    if os.geteuid():
        return "only root can mount a small file system"
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"a small file system cannot be mounted: {done.stderr.strip()}"
        subprocess.run(["umount", folder], check=True)
    return ""


# Names


def set_dns_delay(system: System, seconds: float) -> None:
    """Let the DNS server of the worker answer after these seconds."""
    assert system.dns is not None, "the sites of this system have no names"
    assert seconds or system.dns.queries, "the worker resolves names by another server"
    system.dns.delay = seconds


def namespace_forbidden() -> str:
    """Return why a process cannot get a mount namespace of its own, or an empty text."""
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
    return f"no mount namespace can be made: {done.stderr.strip()}" if done.returncode else ""


# Clocks


def move_clock(system: System, chance: random.Random) -> None:
    """Start the worker again with another clock. Its monotonic clock is the real one."""
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    # The command `faketime` sets the same variables, but would be the parent of the process.
    variables = (f"LD_PRELOAD={library}", f"FAKETIME={chance.choice(SKEWS):+d}s", "FAKETIME_DONT_FAKE_MONOTONIC=1")
    system.keeper.restart("worker", prefix=["env", *variables])


def faketime_missing() -> str:
    """Return why libfaketime cannot be installed, or an empty text."""
    try:
        program("faketime", "faketime")
    except ApplicationError as error:
        return f"faketime is missing: {error}".partition("\n")[0]
    return ""
