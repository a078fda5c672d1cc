"""Faults by name: how each comes over a running system, and how it is healed."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tests.chaos import acts
from tests.chaos.ledger import Effect
from tests.chaos.system import StoreKind, System
from tests.support.erlang import set_disk_limit, set_memory_limit

#: When a fault comes: when this share of the pages is fetched, or when a packer begins to build a pack.
Moment = float | Literal["packing"]

CRAWLING: tuple[Moment, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
PACKING: tuple[Moment, ...] = ("packing",)
ANY_TIME: tuple[Moment, ...] = (0.3, 0.7, "packing")
#: At 1.0 every page is fetched, and the timers of the sites have not fired.
UNTIL_PACKED: tuple[Moment, ...] = (0.1, 0.5, 0.9, 1.0, 1.0)

Act = Callable[[System, random.Random], object]

#: Effects that a fault may repeat: everything, where messages are delivered again.
EVERYTHING: frozenset[Effect] = frozenset({"fetch", "pack", "letter"})
ONLY_PACK: frozenset[Effect] = frozenset({"pack"})
FETCH_AND_PACK: frozenset[Effect] = frozenset({"fetch", "pack"})
NOTHING: frozenset[Effect] = frozenset()


def _nothing(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, which `inject` begins and `heal` ends.

    `target` is the part of the system that it concerns: two faults of one target do not come at once. `seconds` are
    the shortest and the longest duration. `repeats` are the effects that at-least-once delivery may repeat after it.
    `missing` returns why the fault cannot come on this machine, or an empty text. A fault that `stays` is healed only
    when its round is over. Its sites have `pages` pages at least.
    """

    name: str
    target: str
    inject: Act
    heal: Act = _nothing
    seconds: tuple[float, float] = (0, 0)
    repeats: frozenset[Effect] = EVERYTHING
    store: StoreKind = "folder"
    moments: tuple[Moment, ...] = CRAWLING
    stays: bool = False
    pages: int = 0
    mixable: bool = True
    missing: Callable[[], str] = str


def _kill(process: str, *, instance: str = "", **fields: Any) -> Fault:
    """Return the fault that kills a process of the Procfile, which the keeper starts again at once."""
    return Fault(
        name=f"kill-{process}",
        target=process,
        inject=lambda system, _: system.keeper.kill(instance or process),
        **fields,
    )


def _terminate(process: str, **fields: Any) -> Fault:
    """Return the fault that stops a process warm: its running tasks end, and nothing is repeated."""
    return Fault(
        name=f"term-{process}",
        target=process,
        inject=lambda system, _: system.keeper.terminate(process),
        repeats=NOTHING,
        **fields,
    )


def _kill_service(name: str, service: str, **fields: Any) -> Fault:
    """Return the fault that kills a service, which is started again after the fault's seconds."""
    return Fault(
        name=name,
        target=name.rpartition("-")[2],
        inject=lambda system, _: acts.kill_service(system, service),
        heal=lambda system, _: system.start_services(),
        **fields,
    )


def _hang_service(name: str, service: str, **fields: Any) -> Fault:
    """Return the fault in which a service is there, its connections stay open, and it does nothing."""
    return Fault(
        name=name,
        target=name.rpartition("-")[2],
        inject=lambda system, _: acts.signal_service(system, service, signal.SIGSTOP),
        heal=lambda system, _: acts.signal_service(system, service, signal.SIGCONT),
        **fields,
    )


def _trouble_redis(name: str, trouble: Literal["lost", "refused"]) -> Fault:
    """Return the fault in which the proxy before Redis makes this trouble."""
    return Fault(
        name=name,
        target="redis",
        inject=lambda system, _: system.trouble_redis(trouble),
        heal=lambda system, _: system.trouble_redis(""),
        seconds=(3, 10),
        store="redis-proxy",
    )


_ALL = (
    Fault(name="calm", target="", inject=_nothing, repeats=NOTHING, mixable=False),
    # Kills. The services are started again after the given seconds, the processes at once.
    _kill("worker"),
    Fault(name="kill-pool-process", target="worker", inject=acts.kill_pool_process),
    _kill("packer", repeats=ONLY_PACK, moments=PACKING),
    _kill("beat", repeats=NOTHING, moments=ANY_TIME),
    _kill("orchestrator", repeats=NOTHING, moments=ANY_TIME),
    _kill("searcher", instance="searcher.1", repeats=NOTHING, moments=ANY_TIME),
    _kill_service("kill-rabbitmq", acts.RABBITMQ, moments=ANY_TIME, seconds=(0, 3)),
    _kill_service("kill-redis", acts.REDIS, moments=ANY_TIME, seconds=(0, 3)),
    _kill_service("away-redis", acts.REDIS, seconds=(20, 45), mixable=False),
    # Everything at once, as by a power failure.
    Fault(
        name="power",
        target="power",
        inject=lambda system, _: acts.cut_power(system),
        heal=lambda system, _: acts.restore_power(system),
        moments=ANY_TIME,
        seconds=(0, 3),
        mixable=False,
    ),
    # Hangs: the process is there, its connections stay open, and it does nothing.
    Fault(
        name="hang-worker",
        target="worker",
        inject=lambda system, _: system.keeper.suspend("worker"),
        heal=lambda system, _: system.keeper.resume("worker"),
        seconds=(2, 8),
    ),
    _hang_service("hang-redis", acts.REDIS, seconds=(2, 20)),
    _hang_service("hang-rabbitmq", acts.RABBITMQ, seconds=(2, 8)),
    _terminate("worker"),
    _terminate("packer", moments=PACKING),
    Fault(
        name="cut-broker",
        target="rabbitmq",
        inject=lambda system, _: system.wire.cut(reopen=False),
        heal=lambda system, _: system.wire.reopen(),
        moments=ANY_TIME,
        seconds=(0.5, 5),
    ),
    # The resolver gives up after two seconds. The fault comes first: kept connections need no names.
    Fault(
        name="slow-dns",
        target="dns",
        inject=lambda system, chance: acts.set_dns_delay(system, chance.choice((0.8, 5.0))),
        heal=lambda system, _: acts.set_dns_delay(system, 0.0),
        seconds=(4, 8),
        moments=(0.0, 0.1),
        repeats=NOTHING,
        store="names",
        mixable=False,
        missing=acts.namespace_forbidden,
    ),
    Fault(
        name="alarm-memory",
        target="rabbitmq",
        inject=lambda system, _: acts.raise_alarm(system, set_memory_limit, "1MB"),
        heal=lambda system, _: set_memory_limit(system.settings, "512MB"),
        seconds=(2, 8),
    ),
    Fault(
        name="alarm-disk",
        target="rabbitmq",
        inject=lambda system, _: acts.raise_alarm(system, set_disk_limit, "100000GB"),
        heal=lambda system, _: set_disk_limit(system.settings, "200MB"),
        seconds=(2, 8),
    ),
    Fault(
        name="full-redis",
        target="redis",
        inject=lambda system, _: system.redis.config_set("maxmemory", 1),
        heal=lambda system, _: system.redis.config_set("maxmemory", 0),
        moments=ANY_TIME,
        seconds=(1, 10),
    ),
    Fault(
        name="lost-redis",
        target="redis",
        inject=lambda system, _: acts.lose_redis(system),
        heal=lambda system, _: system.start_services(),
        seconds=(0, 1),
        moments=UNTIL_PACKED,
        mixable=False,
    ),
    # As after a failover to a replica that is late. The crawl must last for longer than the ten seconds.
    Fault(
        name="set-back-redis",
        target="redis",
        inject=acts.set_redis_back,
        heal=lambda system, _: system.start_services(),
        seconds=(0, 1),
        moments=(0.05, 0.2, 0.4),
        pages=250,
        mixable=False,
    ),
    _trouble_redis("lost-replies", "lost"),
    _trouble_redis("refused-writes", "refused"),
    # The connections of all processes stay open, and they notice nothing.
    Fault(
        name="flush-redis",
        target="redis",
        inject=lambda system, _: system.redis.flushall(),
        moments=UNTIL_PACKED,
        mixable=False,
    ),
    # A page whose writing failed is fetched again.
    Fault(
        name="store-errors",
        target="store",
        inject=lambda system, _: acts.set_store(system, failing=True),
        heal=lambda system, _: acts.set_store(system),
        moments=ANY_TIME,
        seconds=(1, 4),
        repeats=FETCH_AND_PACK,
        store="s3",
    ),
    Fault(
        name="slow-store",
        target="store",
        inject=lambda system, _: acts.set_store(system, delay=1.0),
        heal=lambda system, _: acts.set_store(system),
        moments=ANY_TIME,
        seconds=(2, 6),
        repeats=NOTHING,
        store="s3",
    ),
    Fault(
        name="full-disk",
        target="store",
        inject=lambda system, _: acts.fill_disk(system),
        heal=lambda system, _: acts.filler(system).unlink(),
        moments=ANY_TIME,
        seconds=(1, 4),
        repeats=FETCH_AND_PACK,
        store="small-disk",
        missing=acts.mounting_forbidden,
    ),
    Fault(
        name="moved-clock",
        target="worker",
        inject=acts.move_clock,
        heal=lambda system, _: system.keeper.restart("worker"),
        repeats=NOTHING,
        stays=True,
        mixable=False,
        missing=acts.faketime_missing,
    ),
    Fault(
        name="cluster-node",
        target="rabbitmq",
        inject=lambda system, chance: system.nodes.kill(chance.randrange(3)),
        heal=lambda system, _: acts.start_nodes(system),
        seconds=(5, 15),
        store="cluster",
        mixable=False,
    ),
)

#: Every fault by name, in the order of the report.
FAULTS = {fault.name: fault for fault in _ALL}
