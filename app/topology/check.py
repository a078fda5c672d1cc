"""Compare the code's topology with a running broker, by its management API or, with less detail, by AMQP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from amqp.exceptions import ChannelError, NotFound, PreconditionFailed
from kombu import Exchange, Queue

from app.broker.connection import connected
from app.broker.declaring import node_down
from app.broker.errors import ManagementFailed
from app.broker.outcomes import OUTCOMES
from app.topology.compare import (
    TopologyFinding,
    compare,
    former_delay_queue,
    former_delay_queues,
    missing,
    other_arguments,
    other_exchange,
    waits_for_node,
)
from app.topology.declare import all_queues
from app.topology.management_api import ManagementApi
from app.topology.model import Topology, declared_topology, exchanges_of
from app.topology.queues import events_exchange, queries_exchange
from config.settings import Settings

#: What a comparison without the management API leaves out.
_UNSEEN = "bindings, loops, policies and foreign queues were not compared"


@dataclass(frozen=True, slots=True)
class TopologyReport:
    """The result of a comparison.

    `found` is the broker's topology, None after a comparison by AMQP alone; then `unseen` has the reason and what was
    left out. `version` is RabbitMQ's version.
    """

    ours: Topology
    findings: Sequence[TopologyFinding]
    found: Topology | None = None
    unseen: str = ""
    version: tuple[int, ...] = ()

    @property
    def errors(self) -> list[TopologyFinding]:
        """The findings that are not mere notes."""
        return [finding for finding in self.findings if finding.severity == "error"]


def check_topology(settings: Settings) -> TopologyReport:
    """Compare the code with the broker; nothing is created or changed. Raises BrokerUnreachable."""
    queues, exchanges = all_queues(settings), [events_exchange, queries_exchange, OUTCOMES]
    ours = declared_topology(queues, exchanges)
    with connected(settings.broker, timeout=settings.publish_timeout) as connection:
        version = server_version(connection)
        try:
            found = management_api(settings, connection).topology()
        except ManagementFailed as error:
            findings = list(compare_by_amqp(connection, queues, exchanges))
            return TopologyReport(ours, findings, unseen=f"{error}: {_UNSEEN}", version=version)
        findings = compare(ours, found)
        for name, delay_ms in former_delay_queues(ours, found).items():
            # AMQP knows the depth now; the API's statistics are seconds old.
            with suppress(ChannelError), connection.channel() as channel:
                count = channel.queue_declare(name, passive=True).message_count
                findings.append(former_delay_queue(name, delay_ms, messages=count))
        return TopologyReport(ours, findings, found, version=version)


def management_api(settings: Settings, connection: Any) -> ManagementApi:
    """Return the management API of the broker that a connection leads to. Raises ManagementFailed without one."""
    if not settings.broker_api:
        raise ManagementFailed("BROKER_API_URL is not set")
    api = ManagementApi(settings.broker_api, connection.virtual_host)
    expected, answering = str(server_properties(connection).get("cluster_name", "")), api.cluster_name()
    if expected and expected != answering:
        raise ManagementFailed(f"BROKER_API_URL is of another broker ({answering}) than BROKER_URL ({expected})")
    return api


def server_version(connection: Any) -> tuple[int, ...]:
    """Return RabbitMQ's version."""
    numbers = str(server_properties(connection).get("version", "")).partition("-")[0].split(".")
    return tuple(int(number) for number in numbers if number.isdigit())


def server_properties(connection: Any) -> dict[str, Any]:
    """Return the properties that the broker sent when the connection was opened: version, cluster name and more."""
    return dict(connection.connection.server_properties)


def compare_by_amqp(
    connection: Any, queues: Sequence[Queue], exchanges: Iterable[Exchange]
) -> Iterator[TopologyFinding]:
    """Yield what is missing or was declared with other arguments. AMQP shows no bindings and no foreign queues."""
    bound = (exchange for queue in queues for exchange in exchanges_of(queue))
    for exchange in {exchange.name: exchange for exchange in (*exchanges, *bound)}.values():
        refusal = _declaration_refusal(connection, exchange)
        if isinstance(refusal, NotFound):
            yield missing(f"exchange {exchange.name}")
        elif refusal is not None:
            yield other_exchange(exchange.name, "as in the code", _text(refusal))
    for queue in queues:
        refusal = _declaration_refusal(connection, queue)
        if refusal is not None and (node := node_down(refusal)):
            yield waits_for_node(queue.name, node)
        elif isinstance(refusal, NotFound):
            yield missing(f"queue {queue.name}")
        elif refusal is not None:
            yield other_arguments(queue.name, "as in the code", _text(refusal))


def is_declared(connection: Any, queue: Queue) -> bool | None:
    """Return whether a queue exists with the code's arguments; None where it does not exist."""
    refusal = _declaration_refusal(connection, queue)
    if isinstance(refusal, NotFound) and not node_down(refusal):
        return None
    if refusal is not None and not isinstance(refusal, PreconditionFailed):
        raise refusal
    return refusal is None


def _declaration_refusal(connection: Any, declared: Exchange | Queue) -> ChannelError | None:
    """Return the error with which the broker refuses a declaration, or None.

    The first declaration is passive, so that nothing is ever created.
    """
    for passive in (True, False):
        try:
            with connection.channel() as channel:
                if isinstance(declared, Queue):
                    declared(channel).queue_declare(passive=passive)
                else:
                    declared(channel).declare(passive=passive)
        except ChannelError as error:
            return error
    return None


def _text(refusal: ChannelError) -> str:
    return str(refusal.reply_text).removeprefix("PRECONDITION_FAILED - ")
