"""The client of RabbitMQ's management API: what a vhost defines. Definitions are current, statistics seconds old."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from app.broker.errors import ManagementFailed
from app.errors import FetchError
from app.http.api import ApiClient
from app.topology.model import Binding, ExchangeDefinition, QueueDefinition, Topology

#: The response timeout is in seconds. A list of queues with statistics has 1 to 2 kB for each.
_CLIENT = ApiClient(response_timeout=10.0, max_body_bytes=100_000_000)


class ManagementApi:
    """The API at `url` (`http://user:password@host:port/api`), for one vhost. Its methods raise ManagementFailed."""

    def __init__(self, url: str, vhost: str) -> None:
        self._url = url.rstrip("/")
        self._vhost = quote(vhost, safe="")

    def cluster_name(self) -> str:
        """Return the name of the cluster."""
        return str(self._get("overview").get("cluster_name", ""))

    def topology(self) -> Topology:
        """Return the queues, bindings and exchanges of the vhost, the default exchange left out."""
        policies = {each["name"]: each["definition"] for each in self._get(f"policies/{self._vhost}")}
        exchanges = [
            ExchangeDefinition(
                each["name"],
                each["type"],
                each["durable"],
                _arguments(each["arguments"]),
                policies.get(each.get("policy", ""), {}),
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
            )
            for each in self._get(f"queues/{self._vhost}")
        ]
        bindings = (
            Binding(each["source"], each["destination"], each["routing_key"], each["destination_type"] == "exchange")
            for each in self._get(f"bindings/{self._vhost}")
            # The broker itself binds each queue to the default exchange, whose name is empty.
            if each["source"]
        )
        return Topology(
            exchanges={each.name: each for each in exchanges},
            queues={each.name: each for each in queues},
            bindings=frozenset(bindings),
        )

    def bindings_of(self, queue: str) -> list[tuple[str, str, dict[str, Any]]]:
        """Return exchange, key and arguments of each binding of a queue; an empty list if it does not exist."""
        if queue not in {each["name"] for each in self._get(f"queues/{self._vhost}")}:
            return []
        bindings = self._get(f"queues/{self._vhost}/{quote(queue, safe='')}/bindings")
        return [
            (each["source"], each["routing_key"], _arguments(each["arguments"])) for each in bindings if each["source"]
        ]

    def message_counts(self, queue: str) -> tuple[int, int]:
        """Return how many messages a queue has, and how many of them are unacknowledged, as of some seconds ago."""
        statistics = self._get(f"queues/{self._vhost}/{quote(queue, safe='')}")
        return int(statistics.get("messages", 0)), int(statistics.get("messages_unacknowledged", 0))

    def _get(self, path: str) -> Any:
        try:
            response = _CLIENT.send("GET", f"{self._url}/{path}")
            if response.ok:
                return response.json()
            problem = f"answers {response.status}"
        except FetchError as error:
            problem = f"does not answer: {error}"
        except ValueError:
            problem = "answers with invalid JSON"
        raise ManagementFailed(f"management API (BROKER_API_URL) {problem}")


def _arguments(value: Any) -> dict[str, Any]:
    """Return arguments as a dictionary: the API writes an empty table as an empty list."""
    return dict(value or {})
