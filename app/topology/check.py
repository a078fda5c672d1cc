"""One look at a broker: by its management API where there is one, else by AMQP, saying what that cannot see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from amqp.exceptions import ChannelError
from kombu import Exchange, Queue

from app.broker.connection import connected
from app.broker.errors import ManagementFailed
from app.topology.by_amqp import compare_by_amqp
from app.topology.compare import compare, old_delay, old_delays
from app.topology.declare import all_queues
from app.topology.findings import Finding
from app.topology.management_api import ManagementApi
from app.topology.model import Topology, declared_topology
from app.topology.queues import events_exchange
from config.settings import Settings

#: What a comparison without the management API says of itself.
_UNSEEN = "bindings, loops and the queues of others were not looked at"


@dataclass(frozen=True, slots=True)
class Report:
    """What was found. `found` is the broker's topology, or None where only AMQP was asked, and `unseen` says why."""

    ours: Topology
    findings: Sequence[Finding]
    found: Topology | None = None
    unseen: str = ""
    #: The broker's version, as numbers.
    version: tuple[int, ...] = field(default=())

    @property
    def errors(self) -> list[Finding]:
        """The findings that are no mere notes."""
        return [finding for finding in self.findings if finding.severity == "error"]


def check(settings: Settings) -> Report:
    """Compare code and broker; nothing is created or changed. Raises BrokerUnreachable."""
    queues, exchanges = our_queues(settings), our_exchanges()
    ours = declared_topology(queues, exchanges)
    with connected(settings.broker, timeout=settings.publish_timeout) as connection:
        version = version_of(connection)
        try:
            found = management(settings, connection).topology()
        except ManagementFailed as error:
            findings = list(compare_by_amqp(connection, queues, exchanges))
            return Report(ours, findings, unseen=f"{error}: {_UNSEEN}", version=version)
        return Report(ours, [*compare(ours, found), *_old_delays(connection, ours, found)], found, version=version)


def _old_delays(connection: Any, ours: Topology, found: Topology) -> Iterator[Finding]:
    """Yield the notes on delay queues of former settings, with their depths, which the API knows late."""
    for name, delay_ms in old_delays(ours, found).items():
        with suppress(ChannelError), connection.channel() as channel:
            yield old_delay(name, delay_ms, messages=channel.queue_declare(name, passive=True).message_count)


def our_queues(settings: Settings) -> list[Queue]:
    """Return every queue that the code declares."""
    return list({queue.name: queue for queue in all_queues(settings)}.values())


def our_exchanges() -> list[Exchange]:
    """Return the exchanges that no queue of ours is bound to."""
    return [events_exchange]


def management(settings: Settings, connection: Any) -> ManagementApi:
    """Return the API of the broker that a connection leads to; raises ManagementFailed where there is none."""
    if not settings.broker_api:
        raise ManagementFailed("BROKER_API_URL is not set")
    api = ManagementApi(settings.broker_api, connection.virtual_host)
    mine, theirs = str(_properties(connection).get("cluster_name", "")), api.cluster()
    if mine and mine != theirs:
        raise ManagementFailed(f"BROKER_API_URL is of another broker ({theirs}) than BROKER_URL ({mine})")
    return api


def version_of(connection: Any) -> tuple[int, ...]:
    """Return the broker's version, as numbers; empty where it does not tell."""
    numbers = str(_properties(connection).get("version", "")).partition("-")[0].split(".")
    return tuple(int(number) for number in numbers if number.isdigit())


def _properties(connection: Any) -> dict[str, Any]:
    """Return what the broker said of itself when the connection was made."""
    return dict(connection.connection.server_properties)
