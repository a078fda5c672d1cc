"""The running system that faults come over: private services, a store, and the processes of the Procfile."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Literal

import psutil
import requests
from redis import Redis

from app import private_services as services
from app.private_services.service import MARK
from app.processes.procfile import formation, procfile
from app.redis_state.client import PREFIX
from app.storage.open import create_store
from config.settings import Settings
from tests.chaos.gateway import StoreGateway
from tests.chaos.keeper import Keeper
from tests.chaos.leftovers import none_left
from tests.servers.dns import DnsServer
from tests.servers.s3 import S3Server, s3_server
from tests.support.clients import SystemClients
from tests.support.kill import service_processes
from tests.support.proxy import Proxy
from tests.support.rabbit_cluster import RabbitCluster, rabbit_cluster
from tests.support.redis_proxy import RedisProxy, Trouble
from tests.support.waiting import eventually

#: A folder, an S3 server behind a gateway that can fail, or a folder on a small file system that can be filled. The
#: last three are folders, too. Their systems have a broker of three nodes, sites with names, or a proxy before Redis.
StoreKind = Literal["folder", "s3", "small-disk", "cluster", "names", "redis-proxy"]

#: Processes of the Procfile that no crawl, pack or query needs.
LEFT_OUT = ("coverart", "eventart", "eventreader", "web", "flower")
SEARCHERS = 1
#: MB of the small file system.
SMALL_DISK_MB = 16

#: The retry budget outlasts every fault that spends it: 0.3 + 0.6 + 1.2 + 2.4 + 4.8 s.
SETTINGS = {
    "host_delay": "0",
    "allow_private_hosts": "127.0.0.0/8",
    "timer_timeout": "2",
    "retry_timeout_ms": "300",
    "retry_max": "5",
    "heartbeat": "0.5",
    "replicas": "1",
    "worker_concurrency": "2",
}


@dataclass(frozen=True, slots=True)
class System(SystemClients):
    """A running system. `settings` reach its services directly, past the proxy and the gateway.

    `store_folder` is the folder of a folder store.
    """

    settings: Settings
    keeper: Keeper
    proxy: Proxy | None
    cluster: RabbitCluster | None
    dns: DnsServer | None
    gateway: StoreGateway | None
    redis_proxy: RedisProxy | None
    store_folder: Path
    #: A client that fails soon.
    redis: Redis

    @property
    def wire(self) -> Proxy:
        """The proxy before the broker."""
        assert self.proxy is not None, "processes reach the nodes of a cluster without a proxy"
        return self.proxy

    @property
    def nodes(self) -> RabbitCluster:
        """The nodes of the broker cluster."""
        assert self.cluster is not None, "the broker of this system is one node"
        return self.cluster

    def post_crawl(self, url: str) -> None:
        """Post an `index+crawl` message, as a client in any language would."""
        self.broker.post(json.dumps({"type": "index+crawl", "url": url}).encode(), key="index+crawl")

    def start_services(self) -> None:
        """Start RabbitMQ and Redis again where they do not run; return when both answer."""
        services.up(self.settings)

    def processes(self, program: str) -> list[psutil.Process]:
        """Return the processes of a service: `beam.smp` or `redis-server`."""
        return service_processes(program, self.settings.data_dir)

    def is_packing(self, domains: Iterable[str]) -> bool:
        """Return whether a packer holds the lease of one of the domains."""
        return bool(self.redis.exists(*(f"{PREFIX}lease:pack:{domain}" for domain in domains)))

    def trouble_redis(self, trouble: Trouble) -> None:
        """Let one of twenty replies of Redis be lost, or one of twenty of its writes be refused; empty for neither."""
        assert self.redis_proxy is not None, "processes reach the Redis of this system without a proxy"
        self.redis_proxy.every = 20
        self.redis_proxy.trouble = trouble

    def has_alarm(self) -> bool:
        """Return whether RabbitMQ accepts no messages, because it is low on memory or disk."""
        address = f"{self.settings.broker_api}health/checks/local-alarms"
        return requests.get(address, timeout=10).status_code == HTTPStatus.SERVICE_UNAVAILABLE

    def log(self, name: str) -> str:
        return self.keeper.log(name)

    def not_running(self) -> list[str]:
        return self.keeper.not_running()

    def logs(self) -> str:
        """Return the last lines of every log."""
        tails = {name: self.log(name).splitlines()[-8:] for name in self.keeper.names}
        return "\n".join(f"{name}:\n  " + "\n  ".join(tail) for name, tail in tails.items())


@contextmanager
def running_system(folder: Path, store: StoreKind) -> Iterator[System]:
    """Run a system of its own in `folder` during the block; nothing of it runs afterwards, even if this is killed."""
    data_dir = folder.resolve() / "data"
    (logs := data_dir / "logs").mkdir(parents=True)
    with ExitStack() as stack:
        # After `none_left` this finds nothing to stop, and collects the processes that have ended.
        stack.callback(services.down, Settings.model_validate({"data_dir": data_dir}))
        marks = {"PERENNIAL_DATA_DIR": str(data_dir), MARK: str(data_dir / "services")}
        stack.enter_context(none_left(data_dir, marks))
        server = stack.enter_context(_with_credentials()) if store == "s3" else None
        gateway = stack.enter_context(StoreGateway(server.endpoint_url)) if server else None
        store_folder = _mounted(data_dir / "disk") if store == "small-disk" else data_dir
        store_url = server.store_url() if server else (store_folder / "store").as_uri()
        cluster = _cluster(stack, data_dir) if store == "cluster" else None
        own = {"data_dir": data_dir, "store_url": store_url}
        own |= {"broker_url": cluster.broker_url, "broker_api_url": cluster.broker_api_url} if cluster else {}
        settings = Settings.model_validate(SETTINGS | own)
        services.up(settings)
        create_store(settings.store)
        proxy = None if cluster else stack.enter_context(closing(Proxy(settings.broker)))
        broker_url = proxy.url if proxy else settings.broker
        if server and gateway:
            store_url = f"s3://{server.bucket}?endpoint=http://{gateway.domain}"
        environment = _environment(settings, {"BROKER_URL": broker_url, "STORE_URL": store_url})
        redis_proxy = stack.enter_context(closing(RedisProxy(settings.redis))) if store == "redis-proxy" else None
        if redis_proxy:
            environment["REDIS_URL"] = redis_proxy.url
        dns = stack.enter_context(closing(DnsServer())) if store == "names" else None
        prefixes = {"worker": _resolving_by(dns, data_dir)} if dns else {}
        keeper = stack.enter_context(_kept(Keeper(_commands(), environment, logs, prefixes=prefixes)))
        client = Redis.from_url(settings.redis, decode_responses=True, socket_timeout=5, socket_connect_timeout=5)
        yield System(
            settings, keeper, proxy, cluster, dns, gateway, redis_proxy, store_folder, stack.enter_context(client)
        )


def _resolving_by(dns: DnsServer, data_dir: Path) -> list[str]:
    """Return the words before a command that let it resolve names by this server, in a mount namespace of its own."""
    resolver = data_dir / "resolv.conf"
    resolver.write_text(f"nameserver {dns.ADDRESS}\noptions timeout:1 attempts:2\n")
    mount = f'mount --bind {shlex.quote(str(resolver))} /etc/resolv.conf && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mount, "sh"]


def _cluster(stack: ExitStack, data_dir: Path) -> RabbitCluster:
    """Run a broker cluster until the stack is closed; also if this process is killed, nothing of it runs afterwards."""
    folder = data_dir / "cluster"
    for marked in (folder, *(folder / f"node{number}" for number in range(3))):
        stack.enter_context(none_left(data_dir, {MARK: str(marked)}))
    return stack.enter_context(rabbit_cluster(folder))


def _commands() -> dict[str, list[str]]:
    commands = {name: command for name, command in procfile().items() if name not in LEFT_OUT}
    return {name: shlex.split(each) for name, each in formation(commands, searchers=SEARCHERS).items()}


def _environment(settings: Settings, further: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process of the system: no setting of the user's, and short delays."""
    names = {str(field.validation_alias or name).upper() for name, field in Settings.model_fields.items()}
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    private = {
        "PERENNIAL_DATA_DIR": str(settings.data_dir),
        "REDIS_URL": settings.redis,
        "BROKER_API_URL": settings.broker_api,
    }
    delays = {name.upper(): value for name, value in SETTINGS.items()}
    return {**inherited, "PATH": path, "PYTHONUNBUFFERED": "1", **delays, **private, **further}


@contextmanager
def _kept(keeper: Keeper) -> Iterator[Keeper]:
    """Keep the processes running during the block, which begins when all are ready."""
    keeper.start()
    try:
        eventually(lambda: all(map(partial(_is_ready, keeper), keeper.names)), "all are ready", seconds=120, every=0.2)
        yield keeper
    finally:
        keeper.close()


def _is_ready(keeper: Keeper, name: str) -> bool:
    return ("is starting." if name == "beat" else " ready.") in keeper.log(name)


@contextmanager
def _with_credentials() -> Iterator[S3Server]:
    """Run an S3 server during the block, with its credentials in the environment."""
    with s3_server() as server:
        kept = {name: os.environ.get(name) for name in server.environment}
        os.environ.update(server.environment)
        try:
            yield server
        finally:
            for name, value in kept.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def _mounted(folder: Path) -> Path:
    """Mount a small file system; `none_left` unmounts it."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={SMALL_DISK_MB}m", "tmpfs"]
    subprocess.run(["mount", *options, str(folder)], check=True, capture_output=True)
    return folder
