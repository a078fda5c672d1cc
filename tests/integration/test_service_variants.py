"""Services as people run them: TLS, few permissions, IPv6, Sentinels, Valkey, roles. Crawls and the doctor use each."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pytest
import trustme
from pydantic import SecretStr
from redis import Redis, RedisError

from app import private_services
from app.errors import StoreError
from app.operations.doctor.checks import run_checks
from app.private_services import Urls, ports
from app.private_services.service import Service
from app.private_services.service import environment as service_environment
from app.redis_state.client import get_redis, open_redis
from app.storage.open import check_conditional_writes, open_store
from app.topology.queues import DEAD_SET
from config.settings import Settings
from tests.servers.dns import resolved_here
from tests.servers.s3 import S3Server, s3_server
from tests.servers.site import Site, page
from tests.support.command import perennial
from tests.support.corner import environment_of, own_vhost, settings_for
from tests.support.kill import discard
from tests.support.system import running_system
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PASSWORD = "hush4711"
MASTER = "perennial-master"

#: The permissions of the guide: no command that harms other users of the server, and none of their keys.
ACL = f"user app on >{PASSWORD} ~perennial:* +@all -@dangerous +info"

#: Fewer than the crawl's budget of pages with equal texts.
PAGES = [f"/{number}" for number in range(40)]

#: Debian 12 has no Valkey; from Debian 13 on the package is `valkey-server`.
FAMILY = [name for name in ("redis-server", "valkey-server") if name == "redis-server" or shutil.which(name)]


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files of an authority made for a test, and of a certificate for 127.0.0.1, ::1 and localhost."""

    authority: Path
    certificate: Path
    key: Path


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
        env=service_environment(folder),
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


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Make an authority and a certificate."""
    folder = tmp_path_factory.mktemp("authority")
    made = Certificates(*(folder / name for name in ("authority.pem", "server.pem", "server.key")))
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "::1", "localhost")
    authority.cert_pem.write_to_path(str(made.authority))
    issued.private_key_pem.write_to_path(str(made.key))
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(made.certificate), append=True)
    return made


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, files: Certificates) -> Iterator[RabbitVariants]:
    """Run a private RabbitMQ, which listens with TLS on ::1 too, and a plain Redis beside it."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("broker") / "data")
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


@pytest.fixture
def vhost(broker: RabbitVariants) -> Iterator[str]:
    """Yield the plain URL of a vhost of the test's own."""
    with own_vhost(broker.plain) as url:
        yield url


@pytest.fixture
def plain(tmp_path: Path, broker: RabbitVariants, vhost: str) -> Settings:
    """Return settings of plain services, of which a test replaces some."""
    with open_redis(broker.plain.redis_url) as client:
        client.flushdb()
    return settings_for(tmp_path / "data", vhost, broker.plain.redis_url, broker.plain.broker_api_url)


def changed(settings: Settings, **urls: str) -> Settings:
    return settings.model_copy(update={name: SecretStr(url) for name, url in urls.items()})


def assert_works(settings: Settings, folder: Path) -> None:
    """Crawl and pack a small site by processes of their own; the doctor, in a further one, finds no problem."""
    environment = environment_of(settings)
    routes = {"/": page("Home", "welcome", links=PAGES[:4]), **{path: page(path, f"of {path}") for path in PAGES[:4]}}
    with Site(routes) as site, running_system(environment, settings, folder) as system:
        system.post("index+crawl", url=site.at("/"))
        assert system.packed(site.domain, seconds=120).pages == len(routes)
        assert system.broker.depth(DEAD_SET) == 0
        done = perennial(environment, "doctor", "--json")
    results = json.loads(done.stdout)
    assert done.returncode == 0, results
    assert {each["check"] for each in results if each["status"] == "ok"} >= {"broker", "redis", "store", "clocks"}


def problems(settings: Settings) -> str:
    """Return what the doctor says of problems, which must never have a password."""
    text = "\n".join(each.text for each in run_checks(settings) if each.status == "problem")
    assert PASSWORD not in text
    return text


@pytest.mark.parametrize("program", FAMILY)
def test_redis_and_rabbitmq_are_used_on_ipv6_with_tls_an_own_authority_and_a_user_of_few_permissions(
    plain: Settings,
    broker: RabbitVariants,
    files: Certificates,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
) -> None:
    redis, url = with_acl_and_tls(tmp_path / "redis", files, program)
    encrypted = changed(plain, broker_url=broker.tls(plain.broker), broker_api_url=broker.tls_api(), redis_url=url)
    with running(redis):
        untrusted = problems(changed(encrypted, redis_url=url.partition("?")[0]))
        assert re.search("Redis does not answer: .*certificate verify failed", untrusted)
        assert re.search("broker amqps://.*certificate verify failed", untrusted)
        untrusted_api = problems(changed(plain, broker_api_url=broker.tls_api(), redis_url=url))
        assert re.search("management API.*certificate verify failed", untrusted_api)
        wrong = changed(plain, redis_url=url.replace(PASSWORD, f"not-{PASSWORD}"))
        assert "invalid username-password pair" in problems(wrong)
        monkeypatch.setenv("SSL_CERT_FILE", str(files.authority))
        assert_works(encrypted, tmp_path)


def test_a_crawl_goes_on_when_the_sentinels_name_another_master(
    plain: Settings, files: Certificates, tmp_path: Path
) -> None:
    made = Sentinels.made(tmp_path, files)
    settings = changed(plain, redis_url=made.url)
    routes = {path: page(path, f"words of {path}") for path in PAGES} | {"/": page("Home", "welcome", links=PAGES)}
    assert "Redis does not answer: no Sentinel names a running master" in problems(settings)
    with (
        running(*made.servers, *made.sentinels),
        Site(routes) as site,
        running_system({**environment_of(settings), "HOST_DELAY": "0.1"}, settings, tmp_path) as system,
    ):
        system.post("index+crawl", url=site.at("/"))
        eventually(lambda: len(site.requests) > len(PAGES) // 4, "a part of the site is fetched")
        (master,) = made.servers[0].pids()
        os.kill(master, signal.SIGKILL)
        assert len(site.requests) < len(PAGES)
        # While Redis is away there is no news of the site, so a pack of a part of it may come first.
        whole = partial(system.packed, site.domain)
        eventually(lambda: whole().pages == len(routes), "every page is packed", seconds=180)
        assert system.broker.depth(DEAD_SET) == 0
        assert get_redis(settings.redis).info("replication")["role"] == "master"
        assert problems(settings) == ""
        for part, other, problem in (
            (MASTER, "other", "no Sentinel names a running master 'other'"),
            ("sentinel_password=", "sentinel_password=not-", "invalid username-password pair"),
        ):
            assert problem in problems(changed(settings, redis_url=made.url.replace(part, other)))
        made.sentinels[0].stop()
        assert "Redis" not in problems(settings), "one Sentinel may be away"


def role_credentials(server: S3Server) -> dict[str, str]:
    """Make a role that may do everything with S3, take it, and return its credentials as variables."""
    clients = {name: boto3.client(name, endpoint_url=server.endpoint_url) for name in ("iam", "sts")}
    role = clients["iam"].create_role(RoleName="app", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    clients["iam"].put_role_policy(RoleName="app", PolicyName="all", PolicyDocument=json.dumps(allowed))
    given = clients["sts"].assume_role(RoleArn=role, RoleSessionName="test")["Credentials"]
    return {
        "AWS_ACCESS_KEY_ID": given["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": given["SecretAccessKey"],
        "AWS_SESSION_TOKEN": given["SessionToken"],
    }


def test_an_s3_store_is_used_with_the_token_of_a_role_in_both_styles_of_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The bucket and the role are made without permission; whatever comes after these four requests is checked.
    monkeypatch.setenv("INITIAL_NO_AUTH_ACTION_COUNT", "4")
    resolved_here(monkeypatch, "s3.test")
    with s3_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        credentials = role_credentials(server)
        port = server.endpoint_url.rpartition(":")[2]
        for endpoint in (server.endpoint_url, f"http://{{bucket}}.s3.test:{port}"):
            for name, value in credentials.items():
                monkeypatch.setenv(name, value)
            store = open_store(f"s3://{server.bucket}/{uuid.uuid4()}?endpoint={endpoint}")
            store.put("some/key", b"text")
            assert store.get("some/key").data == b"text"
            assert [each.key for each in store.list("")] == ["some/key"]
            check_conditional_writes(store)
            monkeypatch.delenv("AWS_SESSION_TOKEN")
            without_token = open_store(f"s3://{server.bucket}/{uuid.uuid4()}?endpoint={endpoint}")
            with pytest.raises(StoreError, match="InvalidAccessKeyId"):
                without_token.put("some/key", b"text")
