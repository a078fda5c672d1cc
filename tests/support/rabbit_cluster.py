"""A private RabbitMQ cluster of three nodes, each of which can be killed and started again."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import requests

from app.machine import make_directory
from app.private_services import install, ports, rabbitmq, state
from app.private_services.service import Service
from app.private_services.state import ServicesState
from tests.support.waiting import eventually

_FORMATION = "cluster_formation.peer_discovery_backend = classic_config\ncluster_partition_handling = pause_minority\n"


class RabbitCluster:
    """Three nodes on the loopback address, numbered from 0, with a folder each and one port mapper."""

    def __init__(self, folder: Path) -> None:
        install.ensure(broker=True, redis=False)
        script = install.rabbitmq_script()
        assert script is not None
        folder.mkdir(parents=True, exist_ok=True)
        first = replace(state.load(folder), ports=ports.choose(("epmd",)))
        self._states: list[ServicesState] = []
        for number in range(3):
            self._states.append(self._node(first, number))
        self._mapper = rabbitmq.port_mapper(folder, first)
        conf = _FORMATION + "".join(
            f"cluster_formation.classic_config.nodes.{number} = {each.node}\n"
            for number, each in enumerate(self._states, start=1)
        )
        cookie = self._folder(folder, 0) / "rabbitmq" / ".erlang.cookie"
        for number, each in enumerate(self._states):
            home = self._folder(folder, number)
            rabbitmq.configure(home, each)
            if number:
                (home / "rabbitmq" / ".erlang.cookie").unlink()
                shutil.copy2(cookie, home / "rabbitmq" / ".erlang.cookie")
            (home / "rabbitmq" / "conf.d" / "cluster.conf").write_text(conf)
        self._nodes: list[Service] = [
            rabbitmq.broker(self._folder(folder, number), each, script=script)
            for number, each in enumerate(self._states)
        ]

    @staticmethod
    def _folder(folder: Path, number: int) -> Path:
        return make_directory(folder / f"node{number}")

    def _node(self, first: ServicesState, number: int) -> ServicesState:
        taken = [port for each in self._states for port in each.ports.values()]
        chosen = ports.choose(rabbitmq.PORTS, avoid=[*first.ports.values(), *taken])
        name, _, host = first.node.partition("@")
        return replace(first, node=f"{name}-{number}@{host}", ports={**first.ports, **chosen})

    @property
    def urls(self) -> list[str]:
        """The AMQP URL of each node."""
        return [each.broker_url for each in self._states]

    @property
    def broker_url(self) -> str:
        """The URL of the cluster: all nodes, the first one is tried first."""
        return ";".join(self.urls)

    @property
    def broker_api_url(self) -> str:
        """The URLs of the management API of all nodes."""
        return ";".join(each.broker_api_url for each in self._states)

    def node_name(self, number: int) -> str:
        """Return the Erlang name of a node."""
        return self._states[number].node

    def up(self) -> None:
        """Start all nodes at the same time, and wait until they are one cluster."""
        self._mapper.start()
        with ThreadPoolExecutor(len(self._nodes)) as pool:
            list(pool.map(lambda node: node.start(), self._nodes))
        eventually(lambda: len(self.running()) == len(self._nodes), "the nodes are one cluster", seconds=60)

    def give_name(self, name: str) -> None:
        """Set the name of the cluster, without which each node says its own."""
        url = f"{self._states[0].broker_api_url}cluster-name"
        requests.put(url, json={"name": name}, timeout=5).raise_for_status()

    def running(self) -> list[str]:
        """Return the names of the nodes that a running node says are running."""
        for each in self._states:
            try:
                nodes = requests.get(f"{each.broker_api_url}nodes", timeout=5).json()
            except requests.RequestException:
                continue
            return sorted(node["name"] for node in nodes if node["running"])
        return []

    def queues(self) -> dict[str, dict[str, object]]:
        """Return the state of the queues that have messages or are not running, as a running node sees them."""
        fields = ("messages_ready", "messages_unacknowledged", "messages_dlx", "consumers", "state", "leader")
        for each in self._states:
            try:
                queues = requests.get(f"{each.broker_api_url}queues", timeout=5).json()
            except requests.RequestException:
                continue
            busy = (queue for queue in queues if queue.get("messages") or queue.get("state") != "running")
            return {queue["name"]: {field: queue.get(field) for field in fields} for queue in busy}
        return {}

    def kill(self, number: int) -> None:
        """SIGKILL a node."""
        for pid in self._nodes[number].pids():
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not self._nodes[number].pids(), "the node is gone")

    def killed(self) -> list[int]:
        """Return the numbers of the nodes that do not run."""
        return [number for number, node in enumerate(self._nodes) if not node.pids()]

    def start(self, number: int) -> None:
        """Start a node that was killed, and wait until it is part of the cluster again."""
        self._nodes[number].start()
        name = self.node_name(number)
        eventually(lambda: name in self.running(), f"{name} is part of the cluster", seconds=60)

    def down(self) -> None:
        """Stop all nodes."""
        for pid in [pid for node in self._nodes for pid in node.pids()]:
            os.kill(pid, signal.SIGKILL)
        for node in self._nodes:
            eventually(lambda node=node: not node.pids(), "the node is gone")  # type: ignore[misc]
        self._mapper.stop()


@contextmanager
def rabbit_cluster(folder: Path) -> Iterator[RabbitCluster]:
    """Yield a running cluster for the block; its data stays in the folder."""
    cluster = RabbitCluster(folder)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
