"""Faults by name: how each comes over a running system, and how it is healed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from app.broker.errors import ApplicationError
from tests.chaos.ledger import Effect
from tests.chaos.system import StoreKind, System
from tests.support.programs import program
from tests.support.waiting import eventually

#: What a fault does: the report summarises kills and hangs.
FaultKind = Literal["none", "kill", "hang", "stop", "network", "resource", "data", "clock"]

#: When a fault comes: when this share of the pages is fetched, or when a packer begins to build a pack.
Moment = float | Literal["packing"]

CRAWLING: tuple[Moment, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
PACKING: tuple[Moment, ...] = ("packing",)
ANY_TIME: tuple[Moment, ...] = (0.3, 0.7, "packing")

Act = Callable[[System, random.Random], None]

#: Effects that a fault may repeat: everything, where messages are delivered again.
EVERYTHING: frozenset[Effect] = frozenset({"fetch", "pack", "letter"})
ONLY_PACK: frozenset[Effect] = frozenset({"pack"})
NOTHING: frozenset[Effect] = frozenset()


def _nothing(system: System, chance: random.Random) -> None:
    """Do nothing."""
    del system, chance


def _everywhere() -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, which `inject` begins and `heal` ends.

    `target` is the part of the system that it concerns: two faults of one target do not come at once. `seconds` are
    the shortest and the longest duration. `repeats` are the effects that at-least-once delivery may repeat after it.
    `missing` returns why the fault cannot come on this machine, or an empty text. A fault that `stays` is healed only
    when its round is over.
    """

    name: str
    kind: FaultKind
    target: str
    inject: Act
    heal: Act = _nothing
    seconds: tuple[float, float] = (0, 0)
    repeats: frozenset[Effect] = EVERYTHING
    store: StoreKind = "folder"
    moments: tuple[Moment, ...] = CRAWLING
    stays: bool = False
    mixable: bool = True
    missing: Callable[[], str] = _everywhere


# Processes of the system


def _kill(name: str) -> Act:
    return lambda system, _: system.keeper.kill(name)


def _terminate(name: str) -> Act:
    return lambda system, _: system.keeper.terminate(name)


def _suspend(name: str) -> Act:
    return lambda system, _: system.keeper.suspend(name)


def _resume(name: str) -> Act:
    return lambda system, _: system.keeper.resume(name)


def _kill_pool_process(system: System, chance: random.Random) -> None:
    children = system.keeper.children("worker")
    if children:
        with suppress(psutil.NoSuchProcess):
            chance.choice(children).kill()


# Services


def _signal_service(name: str, number: signal.Signals) -> Act:
    def send(system: System, chance: random.Random) -> None:
        del chance
        for process in system.processes(name):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    return send


def _kill_service(name: str) -> Act:
    def kill(system: System, chance: random.Random) -> None:
        del chance
        processes = system.processes(name)
        for process in processes:
            process.kill()
        psutil.wait_procs(processes, timeout=10)

    return kill


def _start_services(system: System, _chance: random.Random) -> None:
    system.start_services()


def _lose_redis(system: System, chance: random.Random) -> None:
    _kill_service("redis-server")(system, chance)
    shutil.rmtree(system.settings.services_file.parent / "redis" / "appendonlydir")


def _limit_redis(size: int) -> Act:
    def limit(system: System, chance: random.Random) -> None:
        del chance
        system.redis.config_set("maxmemory", size)

    return limit


def _alarm(*arguments: str) -> Act:
    def raise_alarm(system: System, chance: random.Random) -> None:
        del chance
        system.rabbitmqctl(*arguments)
        eventually(system.has_alarm, "RabbitMQ raises the alarm", every=0.2)

    return raise_alarm


def _end_alarm(*arguments: str) -> Act:
    return lambda system, _: system.rabbitmqctl(*arguments)


def _cut(system: System, _chance: random.Random) -> None:
    system.proxy.cut(reopen=False)


def _reopen(system: System, _chance: random.Random) -> None:
    system.proxy.reopen()


# The store


def _store_fails(failing: bool) -> Act:
    def switch(system: System, chance: random.Random) -> None:
        del chance
        assert system.gateway is not None
        system.gateway.failing = failing

    return switch


def _store_delays(seconds: float) -> Act:
    def switch(system: System, chance: random.Random) -> None:
        del chance
        assert system.gateway is not None
        system.gateway.delay = seconds

    return switch


def _fill_disk(system: System, _chance: random.Random) -> None:
    with suppress(OSError), (system.store_folder / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass


def _empty_disk(system: System, _chance: random.Random) -> None:
    (system.store_folder / "filler").unlink()


def _mounting_forbidden() -> str:
    if os.geteuid():
        return "only root can mount a small file system"
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"a small file system cannot be mounted: {done.stderr.strip()}"
        subprocess.run(["umount", folder], check=True)
    return ""


# Clocks

#: A process and the seconds by which its clock is moved: the worker's clock is then ahead of beat's.
SKEWS = (("beat", -3_600), ("beat", -3), ("worker", 3), ("worker", 3_600))


def _move_clock(system: System, chance: random.Random) -> None:
    """Start beat or the worker again with another clock. Its monotonic clock is the real one."""
    name, skew = chance.choice(SKEWS)
    # The command `faketime` sets the same variables, but would be the parent of the process.
    variables = (f"LD_PRELOAD={_faketime_library()}", f"FAKETIME={skew:+d}s", "FAKETIME_DONT_FAKE_MONOTONIC=1")
    system.keeper.restart(name, prefix=["env", *variables])


def _restore_clocks(system: System, _chance: random.Random) -> None:
    for name in ("beat", "worker"):
        system.keeper.restart(name)


def _faketime_library() -> Path:
    return next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


def _no_faketime() -> str:
    try:
        program("faketime", "faketime")
    except ApplicationError as error:
        return f"faketime is missing: {error}".partition("\n")[0]
    return ""


def _not_written() -> str:
    return "a private cluster of three nodes is not part of this harness yet"


_RABBITMQ, _REDIS = "beam.smp", "redis-server"

_ALL = (
    Fault(name="calm", kind="none", target="", inject=_nothing, repeats=NOTHING, mixable=False),
    # Kills. The services are started again after the given seconds, the processes at once.
    Fault(name="kill-worker", kind="kill", target="worker", inject=_kill("worker")),
    Fault(name="kill-pool-process", kind="kill", target="worker", inject=_kill_pool_process),
    Fault(name="kill-packer", kind="kill", target="packer", inject=_kill("packer"), repeats=ONLY_PACK, moments=PACKING),
    Fault(name="kill-beat", kind="kill", target="beat", inject=_kill("beat"), repeats=NOTHING, moments=ANY_TIME),
    Fault(
        name="kill-orchestrator",
        kind="kill",
        target="orchestrator",
        inject=_kill("orchestrator"),
        repeats=NOTHING,
        moments=ANY_TIME,
    ),
    Fault(
        name="kill-searcher",
        kind="kill",
        target="searcher",
        inject=_kill("searcher.1"),
        repeats=NOTHING,
        moments=ANY_TIME,
    ),
    Fault(
        name="kill-rabbitmq",
        kind="kill",
        target="rabbitmq",
        inject=_kill_service(_RABBITMQ),
        heal=_start_services,
        moments=ANY_TIME,
        seconds=(0, 3),
    ),
    Fault(
        name="kill-redis",
        kind="kill",
        target="redis",
        inject=_kill_service(_REDIS),
        heal=_start_services,
        moments=ANY_TIME,
        seconds=(0, 3),
    ),
    # Hangs: the process is there, its connections stay open, and it does nothing.
    Fault(
        name="hang-worker",
        kind="hang",
        target="worker",
        inject=_suspend("worker"),
        heal=_resume("worker"),
        seconds=(2, 8),
    ),
    Fault(
        name="hang-redis",
        kind="hang",
        target="redis",
        inject=_signal_service(_REDIS, signal.SIGSTOP),
        heal=_signal_service(_REDIS, signal.SIGCONT),
        seconds=(2, 8),
    ),
    Fault(
        name="hang-rabbitmq",
        kind="hang",
        target="rabbitmq",
        inject=_signal_service(_RABBITMQ, signal.SIGSTOP),
        heal=_signal_service(_RABBITMQ, signal.SIGCONT),
        seconds=(2, 8),
    ),
    # Warm stops: the running tasks end, and nothing is repeated.
    Fault(name="term-worker", kind="stop", target="worker", inject=_terminate("worker"), repeats=NOTHING),
    Fault(
        name="term-packer",
        kind="stop",
        target="packer",
        inject=_terminate("packer"),
        repeats=NOTHING,
        moments=PACKING,
    ),
    Fault(
        name="cut-broker",
        kind="network",
        target="rabbitmq",
        inject=_cut,
        heal=_reopen,
        moments=ANY_TIME,
        seconds=(0.5, 5),
    ),
    Fault(
        name="alarm-memory",
        kind="resource",
        target="rabbitmq",
        inject=_alarm("set_vm_memory_high_watermark", "absolute", "1MB"),
        heal=_end_alarm("set_vm_memory_high_watermark", "absolute", "512MB"),
        seconds=(2, 8),
    ),
    Fault(
        name="alarm-disk",
        kind="resource",
        target="rabbitmq",
        inject=_alarm("set_disk_free_limit", "100000GB"),
        heal=_end_alarm("set_disk_free_limit", "200MB"),
        seconds=(2, 8),
    ),
    Fault(
        name="full-redis",
        kind="resource",
        target="redis",
        inject=_limit_redis(1),
        heal=_limit_redis(0),
        moments=ANY_TIME,
        seconds=(1, 4),
    ),
    Fault(
        name="lost-redis",
        kind="data",
        target="redis",
        inject=_lose_redis,
        heal=_start_services,
        seconds=(0, 1),
        mixable=False,
    ),
    # The result of a GET is shared, so a page whose writing failed is not fetched again.
    Fault(
        name="store-errors",
        kind="resource",
        target="store",
        inject=_store_fails(True),
        heal=_store_fails(False),
        moments=ANY_TIME,
        seconds=(1, 4),
        repeats=ONLY_PACK,
        store="s3",
    ),
    Fault(
        name="slow-store",
        kind="resource",
        target="store",
        inject=_store_delays(1.0),
        heal=_store_delays(0.0),
        moments=ANY_TIME,
        seconds=(2, 6),
        repeats=NOTHING,
        store="s3",
    ),
    Fault(
        name="full-disk",
        kind="resource",
        target="store",
        inject=_fill_disk,
        heal=_empty_disk,
        moments=ANY_TIME,
        seconds=(1, 4),
        repeats=ONLY_PACK,
        store="small-disk",
        missing=_mounting_forbidden,
    ),
    Fault(
        name="moved-clock",
        kind="clock",
        target="beat",
        inject=_move_clock,
        heal=_restore_clocks,
        repeats=NOTHING,
        stays=True,
        mixable=False,
        missing=_no_faketime,
    ),
    # A worker that is away for longer than TIMER_MAX_WAIT finds a backlog and no progress.
    Fault(
        name="backlog",
        kind="hang",
        target="worker",
        inject=_suspend("worker"),
        heal=_resume("worker"),
        seconds=(33, 36),
        mixable=False,
    ),
    Fault(
        name="cluster-node",
        kind="kill",
        target="rabbitmq",
        inject=_nothing,
        mixable=False,
        missing=_not_written,
    ),
)

#: Every fault by name, in the order of the report.
FAULTS = {fault.name: fault for fault in _ALL}
