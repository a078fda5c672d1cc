"""Compare the code's topology with a running broker, by its management API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amqp.exceptions import ChannelError, PreconditionFailed
from kombu import Queue

from app.broker.connection import connected
from app.broker.declaring import message_count
from app.broker.errors import ManagementFailed
from app.broker.outcomes import outcomes_exchange
from app.topology.compare import TopologyFinding, compare, former_delay_queues
from app.topology.declare import all_queues
from app.topology.management_api import QUICK, REMEDY, UNHURRIED, ManagementApi
from app.topology.model import Topology, declared_topology
from app.topology.queues import events_exchange, queries_exchange
from config.settings import Settings


@dataclass(frozen=True, slots=True)
class TopologyReport:
    """The result of a comparison of our topology with the `found` one of the broker."""

    ours: Topology
    findings: Sequence[TopologyFinding]
    found: Topology

    @property
    def errors(self) -> list[TopologyFinding]:
        """The findings that are not mere notes."""
        return [finding for finding in self.findings if finding.severity == "error"]


def check_topology(settings: Settings) -> TopologyReport:
    """Compare the code with the broker; nothing is created or changed. Raises BrokerUnreachable, ManagementFailed."""
    ours = declared_topology(all_queues(settings), [events_exchange, queries_exchange, outcomes_exchange])
    with connected(settings.broker) as connection:
        found = management_api(settings, connection).topology()
        findings = compare(ours, found)
        for name, delay_ms in former_delay_queues(ours, found).items():
            # AMQP knows the depth now; the API's statistics are seconds old.
            try:
                with connection.channel() as channel:
                    count = channel.queue_declare(name, passive=True).message_count
            except ChannelError:
                continue
            finding = TopologyFinding(
                severity="note",
                subject=f"queue {name}",
                problem="a delay queue that the settings do not name: of former settings, or of a message's own delay",
                found=f"{count} message(s) for {delay_ms / 1_000:g} s",
                remedy="none needed: it empties itself, and is declared again on demand",
            )
            findings.append(finding)
        return TopologyReport(ours, findings, found)


def management_api(settings: Settings, connection: Any, *, quick: bool = False) -> ManagementApi:
    """Return the management API of the broker that a connection leads to. Raises ManagementFailed without one.

    A `quick` one fails within seconds, for a page.
    """
    if not settings.broker_api:
        raise ManagementFailed(f"BROKER_API_URL is not set: {REMEDY}")
    api = ManagementApi(settings.broker_api, connection.virtual_host, client=QUICK if quick else UNHURRIED)
    expected = str(connection.connection.server_properties.get("cluster_name", ""))
    answering = api.cluster_name()
    if expected and expected != answering:
        raise ManagementFailed(
            f"BROKER_API_URL is of another broker ({answering}) than BROKER_URL ({expected}), or of another node of a "
            "cluster without a name: rabbitmqctl set_cluster_name"
        )
    return api


def server_version(connection: Any) -> tuple[int, ...]:
    """Return RabbitMQ's version."""
    numbers = str(connection.connection.server_properties.get("version", "")).partition("-")[0].split(".")
    return tuple(int(number) for number in numbers if number.isdigit())


def is_declared(connection: Any, queue: Queue) -> bool | None:
    """Return whether a queue exists with the code's arguments, None where it does not; raises QueueUnavailable."""
    with connection.channel() as channel:
        # Nothing is ever created.
        if message_count(channel, queue.name) is None:
            return None
        try:
            queue(channel).queue_declare()
        except PreconditionFailed:
            return False
        return True
