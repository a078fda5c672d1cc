"""RabbitMQ's management API: what is defined in a vhost. Its statistics lag behind by seconds; definitions do not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import requests

from app.broker.errors import ManagementFailed
from app.topology.model import Binding, Exchange, Queue, Topology

#: Seconds to wait for an answer.
_TIMEOUT = 10.0


class ManagementApi:
    """The API at `url` (`http://user:password@host:port/api`), for one vhost. Raises ManagementFailed."""

    def __init__(self, url: str, vhost: str) -> None:
        self._url = url.rstrip("/")
        self._vhost = quote(vhost, safe="")

    def cluster(self) -> str:
        """Return the name of the cluster that answers."""
        return str(self._get("overview").get("cluster_name", ""))

    def topology(self) -> Topology:
        """Return exchanges (the broker's own `amq.` ones left out), queues and bindings of the vhost."""
        policies = {each["name"]: each["definition"] for each in self._get(f"policies/{self._vhost}")}
        exchanges = [_exchange(each, policies) for each in self._get(f"exchanges/{self._vhost}") if each["name"]]
        queues = [_queue(each) for each in self._get(f"queues/{self._vhost}")]
        return Topology(
            exchanges={each.name: each for each in exchanges},
            queues={each.name: each for each in queues},
            bindings=frozenset(_bindings(self._get(f"bindings/{self._vhost}"))),
        )

    def bindings_of(self, queue: str) -> list[tuple[str, str, dict[str, Any]]]:
        """Return exchange, key and arguments of each binding of a queue; none where there is no such queue."""
        if queue not in {each["name"] for each in self._get(f"queues/{self._vhost}")}:
            return []
        told = self._get(f"queues/{self._vhost}/{quote(queue, safe='')}/bindings")
        return [(each["source"], each["routing_key"], _plain(each["arguments"])) for each in told if each["source"]]

    def held(self, queue: str) -> tuple[int, int]:
        """Return how many messages a queue has, and how many of them somebody holds; seconds old."""
        told = self._get(f"queues/{self._vhost}/{quote(queue, safe='')}")
        return int(told.get("messages", 0)), int(told.get("messages_unacknowledged", 0))

    def _get(self, path: str) -> Any:
        with _session() as session:
            try:
                answer = session.get(f"{self._url}/{path}", timeout=_TIMEOUT)
                answer.raise_for_status()
                return answer.json()
            except (requests.RequestException, ValueError) as error:
                raise ManagementFailed(f"management API (BROKER_API_URL): {_without_url(error)}") from error


@contextmanager
def _session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False  # A proxy of the environment is not for a broker.
        yield session


def _without_url(error: Exception) -> str:
    """Say what went wrong; the text of an error of requests may name the URL, password included."""
    answer = getattr(error, "response", None)
    return f"answers {answer.status_code}" if answer is not None else f"does not answer ({type(error).__name__})"


def _exchange(told: dict[str, Any], policies: dict[str, Any]) -> Exchange:
    policy = policies.get(told.get("policy", ""), {})
    return Exchange(told["name"], told["type"], told["durable"], _plain(told["arguments"]), policy)


def _queue(told: dict[str, Any]) -> Queue:
    policy = told.get("effective_policy_definition") or {}
    return Queue(told["name"], told["durable"], _plain(told["arguments"]), _plain(policy))


def _bindings(told: list[dict[str, Any]]) -> Iterator[Binding]:
    """Yield the bindings that somebody made: every queue is bound to the default exchange by its name."""
    for each in told:
        if each["source"]:
            yield Binding(
                each["source"], each["destination"], each["routing_key"], each["destination_type"] == "exchange"
            )


def _plain(arguments: Any) -> dict[str, Any]:
    """Return arguments as a dictionary; an empty one may come as an empty list."""
    return dict(arguments or {})
