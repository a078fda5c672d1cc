"""`perennial config` and `.env.example`: complete, true to the settings, and without a secret."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest
from dotenv import dotenv_values
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from app.cli.config import describe, variable_of
from app.errors import InvalidKey
from app.storage.open import open_store
from app.storage.s3 import S3Store
from app.topology.accounts import accounts
from config.checks import host_and_port
from config.settings import ROOT, Settings, misspelt_variables
from tests.support.command import as_process_with, invoked, perennial
from tests.support.setting_tables import EXAMPLE, env_example

pytestmark = pytest.mark.unit

VARIABLES = [variable_of(name, field) for name, field in Settings.model_fields.items()]

#: Variables of `.env.example` that are not settings, and what reads them.
OTHERS = {
    "RABBITMQ_PASSWORD": "docker-compose.yml",
    "REDIS_PASSWORD": "docker-compose.yml",
    "REDIS_MAXMEMORY": "docker-compose.yml",
    **{f"RABBITMQ_{account.name.upper()}_PASSWORD": "docker-compose.yml" for account in accounts(Settings())},
    "S3_ACCESS_KEY": "docker-compose.yml",
    "S3_SECRET_KEY": "docker-compose.yml",
    "WEB_PORT": "docker-compose.yml",
    "FLOWER_PORT": "docker-compose.yml",
    "AMQP_PORT": "docker-compose.yml",
    "RABBITMQ_PORT": "docker-compose.yml",
    "AWS_ACCESS_KEY_ID": "boto3",
    "AWS_SECRET_ACCESS_KEY": "boto3",
    "AWS_DEFAULT_REGION": "boto3",
}

#: Every way in which a setting can hold a secret.
SECRETS = {
    "BROKER_URL": "amqp://indexer:{}@mq.example:5672/site",
    "REDIS_URL": "redis://:{}@cache.example:6379/0",
    "BROKER_API_URL": "http://indexer:{}@mq.example:15672/api/",
    "FLOWER_BASIC_AUTH": "flower:{}",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://indexer:{}@otel.example:4318",
}


@pytest.mark.parametrize("arguments", [["show"], ["show", "--json"]])
def test_no_secret_is_printed(arguments: list[str]) -> None:
    secrets = {variable: value.format("hush4711") for variable, value in SECRETS.items()}
    with as_process_with({**secrets, "WEB_OPERATOR_TOKEN": "hush4711" * 2, "COLUMNS": "300"}):
        printed = invoked("config", *arguments)
    assert "hush4711" not in printed
    assert "mq.example:5672" in printed


def printed_or_refused(variable: str, value: str) -> str:
    """Return what `perennial config` prints of a value, or a mask and why the value is refused."""
    name = next(name for name, field in Settings.model_fields.items() if variable_of(name, field) == variable)
    try:
        settings = Settings.model_validate({name: value})
    except ValidationError as error:
        return f"********: {error}"
    return {setting.variable: setting.value for setting in describe(settings)}[variable]


@given(st.sampled_from(sorted(SECRETS)), st.text("a/?#@:%[&= ", min_size=6, max_size=12))
def test_a_password_with_characters_that_should_have_been_escaped_is_masked_too(variable: str, odd: str) -> None:
    found = printed_or_refused(variable, SECRETS[variable].format(f"{odd}hush4711"))
    assert "hush4711" not in found
    assert "********" in found


def test_a_value_is_printed_as_it_is_also_if_it_looks_like_markup() -> None:
    with as_process_with({"USER_AGENT": "Bot :key: [bold]x", "COLUMNS": "300"}):
        assert "Bot :key: [bold]x" in invoked("config", "show")


def test_no_name_and_no_value_is_cut_in_a_narrow_terminal() -> None:
    with as_process_with({"STORE_URL": f"file:///{'folder/' * 20}end", "COLUMNS": "60"}):
        printed = invoked("config", "show")
    columns = [line.split("│") for line in printed.splitlines() if line.count("│") == 4]
    assert "folder/" * 20 + "end" in "".join(line[2].strip() for line in columns)
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in "".join(line[1].strip() for line in columns)


def test_json_tells_what_the_environment_gave() -> None:
    with as_process_with({"HOST_DELAY": "2.5", "ALLOW_PRIVATE_HOSTS": "a.example, 10.0.0.0/8"}):
        found = {setting["variable"]: setting for setting in json.loads(invoked("config", "show", "--json"))}
    assert list(found) == VARIABLES
    assert (found["HOST_DELAY"]["value"], found["HOST_DELAY"]["default"]) == ("2.5", "1")
    assert found["ALLOW_PRIVATE_HOSTS"]["value"] == "a.example,10.0.0.0/8"
    assert {name for name, setting in found.items() if setting["given"]} == {"HOST_DELAY", "ALLOW_PRIVATE_HOSTS"}
    assert all(setting["description"] for setting in found.values())


def test_env_example_has_the_settings_defaults_and_descriptions() -> None:
    current = EXAMPLE.read_text()
    assert env_example(current) == current, "run python -m tests.support.setting_tables"


def test_env_example_has_every_setting_and_no_unknown_variable() -> None:
    assert set(dotenv_values(EXAMPLE)) == {*VARIABLES, *OTHERS}
    for variable, reader in OTHERS.items():
        if reader != "boto3":
            text = (ROOT / reader).read_text()
            assert re.search(rf"\$\{{{variable}:[-?]", text), f"{reader} does not read {variable}"


@pytest.mark.parametrize(
    "url",
    [
        *("s3://b/p?endpoint=https://key:hush4711@s3.example", "s3://b?endpoint=ftp://s3.example", "s3://b?endpoint="),
        *("s3://b?endpoint=https://a;https://b", "s3://b?endpoint=https://", "s3://b?endpoint=https://s3_1.example"),
        *("s3://b?endpoint=https://s3.example&region=x", "s3://b?endpoint=https://s3.example/{bucket}"),
        *("s3://b?endpoint=https://s3.example?endpoint=https://b", "file:///folder?endpoint=https://s3.example"),
    ],
)
def test_the_endpoint_of_a_bucket_is_one_url_without_login_and_query(url: str) -> None:
    with pytest.raises(ValueError, match=r"store_url\n.*expected") as caught:
        Settings(store_url=url)
    assert "hush4711" not in str(caught.value)
    with pytest.raises(InvalidKey, match="store URL: expected"):
        open_store(url)


@pytest.mark.parametrize("endpoint", ["http://store:8333", "https://{bucket}.s3.example/path", "http://[::1]:9000"])
def test_an_endpoint_that_boto3_accepts_is_one_of_a_bucket(endpoint: str) -> None:
    store = open_store(Settings(store_url=f"s3://bucket/prefix?endpoint={endpoint}").store)
    assert repr(store) == repr(S3Store("bucket", "prefix", endpoint))


@pytest.mark.parametrize(
    "address", ["*:8000", "http://host:8000", "user@host:8000", "a/b:8000", ":8000", "8000", "[]:80"]
)
def test_an_address_to_bind_to_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        Settings(web_address=address)


@pytest.mark.parametrize(
    ("address", "parts"), [("[::1]:80", ("::1", 80)), ("web_1.site.example:0", ("web_1.site.example", 0))]
)
def test_an_address_to_bind_to_has_a_name_or_a_number(address: str, parts: tuple[str, int]) -> None:
    assert host_and_port(Settings(web_address=address).web_address) == parts


def test_env_example_changes_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Settings()
    for variable, value in dotenv_values(EXAMPLE).items():
        monkeypatch.setenv(variable, value or "")
    assert Settings() == plain


def test_a_shell_reads_env_example_as_docker_compose_does() -> None:
    script = f"set -a; . {EXAMPLE}; env -0"
    clean = {"PATH": os.environ["PATH"]}
    output = subprocess.run(["sh", "-euc", script], env=clean, capture_output=True, check=True, text=True).stdout
    read = dict(entry.split("=", 1) for entry in output.split("\0") if entry)
    assert {name: read[name] for name in dotenv_values(EXAMPLE)} == dotenv_values(EXAMPLE)


def test_wrong_settings_are_a_line_each_that_names_the_variable_and_exit_2() -> None:
    wrong = {"RETRY_MAX": "x", "WEB_RATE_LIMIT": "600 a minute", "WEB_ADDRESS": "127.0.0.1:99999"}
    done = perennial({**os.environ, **wrong}, "status", "site.example")
    first, second, third = done.stderr.splitlines()
    assert done.returncode == 2
    assert first.startswith("perennial: RETRY_MAX: ")
    assert second.startswith("perennial: WEB_RATE_LIMIT: ")
    assert "expected <number>/<second|minute|hour>" in second
    assert third.startswith("perennial: WEB_ADDRESS: ")


def test_variables_with_nearly_the_name_of_a_setting_are_found_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, *OTHERS, "WEBHOOK_SECRET_FILE", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "PATH", "STORE"):
        monkeypatch.setenv(name, "1")
    assert misspelt_variables() == {}
    for name in ("RETRY_MX", "STORE_URI", "timertimeout"):
        monkeypatch.setenv(name, "1")
    assert misspelt_variables() == {"RETRY_MX": "RETRY_MAX", "STORE_URI": "STORE_URL", "timertimeout": "TIMER_TIMEOUT"}
