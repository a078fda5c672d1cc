"""The client of RabbitMQ's management API: what a vhost defines. Definitions are current, statistics seconds old."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

from app.broker.errors import ManagementFailed, ManagementRefused
from app.errors import FetchError
from app.http.api_client import ApiClient
from app.topology.model import Binding, ExchangeDefinition, QueueDefinition, Replicas, Topology

#: What to do about an API that is missing or does not answer.
REMEDY = "enable the plugin rabbitmq_management, and set BROKER_API_URL to http://user:password@host:15672/api"
#: What to do about an account that may read the overview, and no more.
_RIGHTS = "give its account the tag administrator, and permissions for the vhost"

#: The response timeout is in seconds. A list of queues with statistics has 1 to 2 kB for each.
UNHURRIED = ApiClient(response_timeout=10.0, max_body_bytes=100_000_000)
#: For a page, which a person waits for.
QUICK = ApiClient(connect_timeout=1.0, response_timeout=2.0, max_body_bytes=100_000_000)

#: Seconds since the epoch from which a message's time is invalid, in the year 5138: some producers give milliseconds.
_LATEST = 1e11


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatistics:
    """What the API measured of a queue some seconds ago. Rates are messages a second; None where it has no figure.

    `oldest` is the time of the oldest message in seconds since the epoch, which few brokers know.
    """

    name: str
    type: str = ""
    ready: int = 0
    unacknowledged: int | None = None
    consumers: int = 0
    arrival_rate: float | None = None
    acknowledgement_rate: float | None = None
    oldest: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """One consumer: its queue, prefetch, and its process as `host:port`."""

    queue: str
    prefetch: int
    peer: str


class ManagementApi:
    """The API at `url` (`http://user:password@host:port/api`), for one vhost. Its methods raise ManagementFailed.

    `url` may name several nodes of a cluster, separated by semicolons: the first one that answers is used.
    """

    def __init__(self, url: str, vhost: str, *, client: ApiClient = UNHURRIED) -> None:
        self._client = client
        self._urls = [each.rstrip("/") for each in url.split(";")]
        self._vhost = quote(vhost, safe="")

    def cluster_name(self) -> str:
        """Return the name of the cluster. Raises ManagementFailed if the broker keeps no statistics.

        Without them the API shows neither the policies of a queue nor its unacknowledged messages.
        """
        overview = self._get("overview")
        if overview.get("disable_stats"):
            raise ManagementFailed(
                "management API (BROKER_API_URL) has no statistics: remove management.disable_stats and "
                "management_agent.disable_metrics_collector from rabbitmq.conf"
            )
        return str(overview.get("cluster_name", ""))

    def clock(self) -> float:
        """Return the broker's clock, in whole seconds since the epoch."""
        try:
            return parsedate_to_datetime(self._answer("overview")[1]["date"]).timestamp()
        except (KeyError, ValueError):
            raise ManagementFailed("management API (BROKER_API_URL) answers without a date") from None

    def topology(self) -> Topology:
        """Return the queues, bindings and exchanges of the vhost, the default exchange left out.

        Raises ManagementRefused for an account with the tag `monitoring`, which may not read the vhost.
        """
        policies = {each["name"]: each["definition"] for each in self._get(f"policies/{self._vhost}")}
        exchanges = [
            ExchangeDefinition(
                each["name"],
                each["type"],
                each["durable"],
                _arguments(each["arguments"]),
                policies.get(each.get("policy", ""), {}),
                flags=_flags(each),
            )
            for each in self._get(f"exchanges/{self._vhost}")
            if each["name"]
        ]
        queues = [
            QueueDefinition(
                each["name"],
                each["durable"],
                _arguments(each["arguments"]),
                _arguments(each.get("effective_policy_definition")),
                policy_names=_policy_names(each, policies),
                replicas=_replicas(each),
                flags=_flags(each),
            )
            for each in self._get(f"queues/{self._vhost}")
        ]
        bindings = (
            Binding(each["source"], each["destination"], each["routing_key"], each["destination_type"] == "exchange")
            for each in self._get(f"bindings/{self._vhost}")
            # The broker itself binds each queue to the default exchange, whose name is empty.
            if each["source"]
        )
        # RabbitMQ before 3.11 has no type for queues that are declared without one.
        default_type = str(self._get(f"vhosts/{self._vhost}").get("default_queue_type"))
        return Topology(
            exchanges={each.name: each for each in exchanges},
            queues={each.name: each for each in queues},
            bindings=frozenset(bindings),
            default_queue_type=default_type if default_type in ("classic", "quorum", "stream") else "classic",
        )

    def nodes(self) -> dict[str, bool]:
        """Return the nodes of the cluster by name, each with whether it runs."""
        return {each["name"]: bool(each["running"]) for each in self._get("nodes")}

    def bindings_of(self, queue: str) -> list[tuple[str, str, dict[str, Any]]]:
        """Return exchange, key and arguments of each binding of a queue; an empty list if it does not exist."""
        return [
            (each["source"], each["routing_key"], _arguments(each["arguments"]))
            for each in self._get(f"bindings/{self._vhost}")
            if each["source"] and (each["destination_type"], each["destination"]) == ("queue", queue)
        ]

    def message_counts(self, queue: str) -> tuple[int, int]:
        """Return how many messages a queue has, and how many of them are unacknowledged, as of some seconds ago."""
        statistics = self._get(f"queues/{self._vhost}/{quote(queue, safe='')}")
        return int(statistics.get("messages", 0)), int(statistics.get("messages_unacknowledged", 0))

    def statistics(self) -> list[QueueStatistics]:
        """Return the statistics of all queues of the vhost."""
        statistics = []
        for queue in self._get(f"queues/{self._vhost}"):
            measured, oldest = queue.get("message_stats") or {}, queue.get("head_message_timestamp")
            is_time = isinstance(oldest, int | float) and 0 < oldest < _LATEST
            statistics.append(
                QueueStatistics(
                    name=queue["name"],
                    type=str(queue.get("type", "classic")),
                    ready=int(queue.get("messages_ready", 0)),
                    unacknowledged=int(queue.get("messages_unacknowledged", 0)),
                    consumers=int(queue.get("consumers", 0)),
                    arrival_rate=_rate(measured.get("publish_details")),
                    acknowledgement_rate=_rate(measured.get("ack_details")),
                    oldest=float(oldest) if is_time else None,
                )
            )
        return statistics

    def consumers(self) -> list[ConsumerStatistics]:
        """Return the consumers of all queues of the vhost."""
        consumers = []
        for each in self._get(f"consumers/{self._vhost}"):
            # The API writes an empty list in place of missing details.
            channel = each.get("channel_details")
            peer = f"{channel.get('peer_host')}:{channel.get('peer_port')}" if isinstance(channel, Mapping) else ""
            prefetch = int(each.get("prefetch_count") or 0)
            consumers.append(ConsumerStatistics(queue=str(each["queue"]["name"]), prefetch=prefetch, peer=peer))
        return consumers

    def _get(self, path: str) -> Any:
        return self._answer(path)[0]

    def _answer(self, path: str) -> tuple[Any, Mapping[str, str]]:
        """Return the JSON and the headers of the first node that answers."""
        problem, kind = "", ManagementFailed
        for url in tuple(self._urls):
            try:
                response = self._client.send("GET", f"{url}/{path}")
                if response.ok:
                    return response.json(), response.headers
                problem = f"answers {response.status}"
                # Every account with a tag may read the overview, so its password is right.
                if path != "overview" and response.status in (401, 403):
                    kind = ManagementRefused
            except FetchError as error:
                problem = f"does not answer: {error}"
            except ValueError:
                problem = "answers with invalid JSON"
            # The next request begins with the next node.
            self._urls.append(self._urls.pop(0))
        remedy = _RIGHTS if kind is ManagementRefused else REMEDY
        raise kind(f"management API (BROKER_API_URL) {problem}: {remedy}")


def _rate(details: Any) -> float | None:
    return float(details["rate"]) if isinstance(details, Mapping) and "rate" in details else None


def _policy_names(queue: Mapping[str, Any], policies: Mapping[str, Any]) -> dict[str, str]:
    """Return, by key of a queue's effective policy, the policy or operator policy that sets it."""
    name, operator_name = queue.get("policy") or "", queue.get("operator_policy") or ""
    own = policies.get(name, {})
    return {
        key: f"policy {name}" if own.get(key) == value or not operator_name else f"operator policy {operator_name}"
        for key, value in _arguments(queue.get("effective_policy_definition")).items()
    }


def _replicas(queue: Mapping[str, Any]) -> Replicas:
    """Return the nodes of a queue. A classic queue has one node, and the state `down` while that is down."""
    if "members" in queue:
        return Replicas(tuple(sorted(queue["members"])), tuple(sorted(queue.get("online", ()))))
    node = queue.get("node")
    members = (str(node),) if node else ()
    return Replicas(members, () if queue.get("state") in ("down", "stopped") else members)


def _flags(declared: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of what is set of an exchange or a queue, and of nothing that the code declares."""
    return frozenset(name for name in ("auto_delete", "exclusive", "internal") if declared.get(name))


def _arguments(value: Any) -> dict[str, Any]:
    """Return arguments as a dictionary: the API writes an empty table as an empty list."""
    return dict(value or {})
