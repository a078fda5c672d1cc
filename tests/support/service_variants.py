"""Servers as people run them: a RabbitMQ with TLS and IPv6, Redis with ACL, TLS, IPv6 or Sentinels, and Valkey."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import trustme
from redis import Redis, RedisError

from app import private_services
from app.private_services import Urls, ports
from app.private_services.service import Service, environment
from config.settings import Settings
from tests.support.kill import discard

PASSWORD = "hush4711"
MASTER = "perennial-master"

#: The permissions of the guide: no command that harms other users of the server, and none of their keys.
ACL = f"user app on >{PASSWORD} ~perennial:* +@all -@dangerous +info"


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files of an authority made for a test, and of a certificate for 127.0.0.1, ::1 and localhost."""

    authority: Path
    certificate: Path
    key: Path


def certificates(folder: Path) -> Certificates:
    """Make an authority and a certificate in the folder."""
    made = Certificates(*(folder / name for name in ("authority.pem", "server.pem", "server.key")))
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "::1", "localhost")
    authority.cert_pem.write_to_path(str(made.authority))
    issued.private_key_pem.write_to_path(str(made.key))
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(made.certificate), append=True)
    return made


@dataclass(frozen=True, slots=True)
class RabbitVariants:
    """The URLs of one RabbitMQ: `plain` on 127.0.0.1, `tls` on ::1, each with a management API on 127.0.0.1."""

    plain: Urls
    tls_port: int
    tls_api_port: int

    def tls(self, url: str) -> str:
        """Return a URL of the broker for its TLS port."""
        return self._at(url, "amqps", f"[::1]:{self.tls_port}")

    def tls_api(self) -> str:
        """Return the URL of the management API with TLS."""
        return self._at(self.plain.broker_api_url, "https", f"127.0.0.1:{self.tls_api_port}")

    @staticmethod
    def _at(url: str, scheme: str, address: str) -> str:
        parts = urlsplit(url)
        return parts._replace(scheme=scheme, netloc=f"{parts.netloc.rpartition('@')[0]}@{address}").geturl()


@contextmanager
def rabbitmq(folder: Path, files: Certificates) -> Iterator[RabbitVariants]:
    """Run a private RabbitMQ, which listens with TLS on ::1 too, and a plain Redis beside it."""
    settings = Settings(data_dir=folder)
    chosen = ports.choose(("tls", "api"))
    more = settings.services_file.parent / "rabbitmq" / "conf.d"
    more.mkdir(parents=True)
    with_tls = {"cacertfile": files.authority, "certfile": files.certificate, "keyfile": files.key}
    (more / "variants.conf").write_text(
        f"listeners.ssl.1 = ::1:{chosen['tls']}\n"
        f"management.ssl.ip = 127.0.0.1\nmanagement.ssl.port = {chosen['api']}\n"
        + "".join(f"ssl_options.{key} = {file}\nmanagement.ssl.{key} = {file}\n" for key, file in with_tls.items())
    )
    try:
        yield RabbitVariants(private_services.up(settings), chosen["tls"], chosen["api"])
    finally:
        discard(settings)


def server(folder: Path, url: str, conf: str, *, program: str = "redis-server") -> Service:
    """Return a server of the family of Redis with this configuration, which answers at `url`."""
    folder.mkdir()
    file = folder / "server.conf"
    file.write_text(f'dir "{folder}"\nsave ""\ndaemonize no\n{conf}\n')

    def answers() -> bool:
        with Redis.from_url(url, socket_timeout=2, retry=None) as client:
            try:
                return bool(client.ping())
            except RedisError:
                return False

    sentinel = ["--sentinel"] if "sentinel monitor" in conf else []
    return Service(
        name=program,
        directory=folder,
        programs=frozenset({program, "redis-sentinel"}),
        argv=[program, str(file), *sentinel],
        env=environment(folder),
        log=folder / "log",
        ports=(),
        answers=answers,
        start_timeout=30,
        stop_timeout=5,
    )


@contextmanager
def running(*servers: Service) -> Iterator[None]:
    """Run servers for the block."""
    with ExitStack() as stack:
        for each in servers:
            stack.callback(each.stop)
            each.start()
        yield


def with_acl_and_tls(folder: Path, files: Certificates, program: str) -> tuple[Service, str]:
    """Return a server on ::1 that accepts TLS alone and one user with few permissions, and its URL."""
    (port,) = ports.choose(("redis",)).values()
    conf = f"{_listener(port, files, address='::1')}\nuser default off\n{ACL}"
    url = f"rediss://app:{PASSWORD}@[::1]:{port}/0?ssl_ca_certs={files.authority}"
    return server(folder, url, _durable(conf), program=program), url


def _durable(conf: str) -> str:
    return f"{conf}\nappendonly yes\nmaxmemory 100mb\nmaxmemory-policy noeviction"


@dataclass(frozen=True, slots=True)
class Sentinels:
    """A master, its replica and three Sentinels, all with a password."""

    servers: tuple[Service, Service]
    sentinels: tuple[Service, ...]
    url: str

    @classmethod
    def made(cls, folder: Path, files: Certificates) -> Sentinels:
        """Return them in a folder, not started yet. All connections between them have TLS."""
        first, *rest = chosen = list(ports.choose("01abc").values())
        follow = ("", f"\nreplicaof 127.0.0.1 {first}")
        both = f"requirepass {PASSWORD}\nmasterauth {PASSWORD}\nrepl-diskless-sync-delay 0\n"
        servers = [
            _member(folder / f"data{number}", port, PASSWORD, _durable(both + _listener(port, files) + more), files)
            for number, (port, more) in enumerate(zip(chosen, follow, strict=False))
        ]
        watch = (
            f"requirepass s-{PASSWORD}\nsentinel sentinel-pass s-{PASSWORD}\n"
            f"sentinel monitor {MASTER} 127.0.0.1 {first} 2\nsentinel auth-pass {MASTER} {PASSWORD}\n"
            f"sentinel down-after-milliseconds {MASTER} 1000\nsentinel failover-timeout {MASTER} 5000\n"
        )
        sentinels = tuple(
            _member(folder / f"sentinel{port}", port, f"s-{PASSWORD}", watch + _listener(port, files), files)
            for port in rest[1:]
        )
        one, *others = (f"127.0.0.1:{port}" for port in rest[1:])
        login = f"/0?master_name={MASTER}&sentinel_password=s-{PASSWORD}&ssl_ca_certs={files.authority}"
        url = ";".join([f"sentinels://:{PASSWORD}@{one}{login}", *(f"sentinels://{each}" for each in others)])
        return cls((servers[0], servers[1]), sentinels, url)


def _member(folder: Path, port: int, password: str, conf: str, files: Certificates) -> Service:
    return server(folder, f"rediss://:{password}@127.0.0.1:{port}?ssl_ca_certs={files.authority}", conf)


def _listener(port: int, files: Certificates, *, address: str = "127.0.0.1") -> str:
    return (
        f"bind {address}\nport 0\ntls-port {port}\ntls-auth-clients no\ntls-replication yes\n"
        f"tls-cert-file {files.certificate}\ntls-key-file {files.key}\ntls-ca-cert-file {files.authority}"
    )
