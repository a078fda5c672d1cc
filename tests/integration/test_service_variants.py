"""Services as people run them: TLS, few permissions, IPv6, Sentinels, Valkey, roles. Crawls and the doctor use each."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from pydantic import SecretStr

from app.errors import StoreError
from app.operations.doctor.checks import run_checks
from app.redis_state.client import get_redis, open_redis
from app.storage.open import check_conditional_writes, open_store
from app.topology.queues import DEAD_SET
from config.settings import Settings
from tests.servers.s3 import S3Server, s3_server
from tests.servers.site import Site, page
from tests.support.command import perennial
from tests.support.corner import environment_of, own_vhost, settings_for
from tests.support.service_variants import (
    MASTER,
    PASSWORD,
    Certificates,
    RabbitVariants,
    Sentinels,
    certificates,
    rabbitmq,
    running,
    with_acl_and_tls,
)
from tests.support.system import running_system
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.slow]

#: Fewer than the crawl's budget of pages with equal texts.
PAGES = [f"/{number}" for number in range(40)]

#: Debian 12 has no Valkey; from Debian 13 on the package is `valkey-server`.
FAMILY = [name for name in ("redis-server", "valkey-server") if name == "redis-server" or shutil.which(name)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, files: Certificates) -> Iterator[RabbitVariants]:
    with rabbitmq(tmp_path_factory.mktemp("broker") / "data", files) as variants:
        yield variants


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


def resolved_here(monkeypatch: pytest.MonkeyPatch, domain: str) -> None:
    """Let each name below a domain be this machine."""
    resolve = socket.getaddrinfo

    def resolve_here(host: str, *rest: Any, **options: Any) -> Any:
        return resolve("127.0.0.1" if str(host).endswith(f".{domain}") else host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_here)


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
