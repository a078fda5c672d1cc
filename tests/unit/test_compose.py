"""`docker-compose.yml` and `Dockerfile`: valid, and true to the Procfile, the settings and the package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from dotenv import dotenv_values
from pydantic import SecretStr
from ruamel.yaml import YAML

from app.cli.config import variable_of
from app.processes.procfile import formation, procfile
from app.topology.accounts import accounts
from config.settings import ROOT, Settings

pytestmark = pytest.mark.unit

COMPOSE = ROOT / "docker-compose.yml"
DOCUMENT: dict[str, Any] = YAML(typ="safe").load(COMPOSE.read_text())
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]

#: Services of our image.
OURS = {name: service for name, service in SERVICES.items() if "build" in service}

#: Services that do one thing and end; the others are processes.
ONCE = {"bucket", "accounts", "operator"}
PROCESSES = {name: service for name, service in OURS.items() if name not in ONCE}

#: What boto3 reads by itself.
BOTO3 = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_EC2_METADATA_DISABLED"}


#: Keys of the store, which no setting has.
KEYS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}

TASKS = {"worker", "packer", "coverart", "eventart", "orchestrator"}
ART = {"coverart", "eventart"}

#: Which services get a secret besides their own account at the broker.
NEEDS = {
    "BROKER_API_URL": {"flower", "web", "accounts", "operator"},
    "ACCOUNT_PASSWORDS": {"accounts", "operator"},
    "REDIS_URL": {*TASKS, "web", "eventreader", "operator"},
    **{key: {"worker", "packer", "orchestrator", "searcher", "web", "bucket", "operator"} for key in KEYS},
    "SITE_SECRETS": {"worker", "packer", "operator"},
    "WEB_OPERATOR_TOKEN": {"web", "accounts"},
    "OPS_PASSWORD": {"web", "accounts"},
    "OPS_READ_PASSWORD": {"web", "accounts"},
    "FLOWER_BASIC_AUTH": {"flower"},
    "ARCHIVE_KEYS": {*ART, "operator"},
    "EVENT_ART_KEYS": {"eventart", "operator"},
    "MUSICBRAINZ_URL": {*ART, "eventreader", "accounts", "operator"},
    "ART_EVENT_QUEUE_URL": {*ART, "eventreader", "operator"},
    "SENTRY_DSN": set(OURS),
    **{key: {"worker", "accounts", "operator"} for key in ("WEBHOOK_URL", "WEBHOOK_SECRET", "SMTP_URL")},
}


def copied() -> list[str]:
    """Return the sources in this checkout of the Dockerfile's COPY instructions."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


def test_the_file_is_valid_by_the_compose_specification() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_processes_are_those_of_the_procfile_with_the_same_commands() -> None:
    assert {name: service["command"] for name, service in PROCESSES.items()} == procfile()


def test_there_are_as_many_searchers_as_copies_of_each_pack() -> None:
    assert OURS["searcher"]["deploy"]["replicas"] == Settings().replicas
    names = list(formation(procfile(), searchers=Settings().replicas))
    assert names[names.index("searcher.1") :][:2] == ["searcher.1", "searcher.2"]
    assert "searcher" not in names


def test_every_variable_that_a_process_gets_is_a_setting_or_boto3s() -> None:
    settings = {variable_of(name, field) for name, field in Settings.model_fields.items()}
    for name, service in OURS.items():
        given = {variable for variable, value in service["environment"].items() if value}
        assert given <= settings | BOTO3, name


def without_env(value: str) -> str:
    """Return a value as Compose makes it while no variable is set but those that it requires, each to its own name."""
    value = re.sub(r"\$\{(\w+):\?[^${}]*\}", lambda match: f"<{match[1]}>", value)
    return re.sub(r"\$\{\w+:-([^${}]*)\}", r"\1", value)


def password(account: str) -> str:
    return f"<RABBITMQ_{account.upper()}_PASSWORD>"


def test_each_process_has_the_account_of_its_kind_and_no_other_password() -> None:
    for name, service in PROCESSES.items():
        given = {variable: without_env(value) for variable, value in service["environment"].items()}
        assert given["BROKER_URL"] == f"amqp://perennial-{name}:{password(name)}@rabbitmq:5672//"
        assert given["DECLARE_TOPOLOGY"] == "false"
        assert set(re.findall(r"<RABBITMQ_\w+>", str(given))) == {password(name)}


def test_each_service_gets_the_secrets_that_it_needs_and_of_the_others_an_empty_text() -> None:
    secrets = {
        variable_of(name, field) for name, field in Settings.model_fields.items() if field.annotation is SecretStr
    }
    required = set(re.findall(r"\$\{(\w+):\?", COMPOSE.read_text()))
    # The file `.env` is given to each service, so what it must not have is set to an empty text.
    for name, service in OURS.items():
        environment = service["environment"]
        given = {variable for variable in secrets | KEYS if environment[variable]}
        assert given - {"BROKER_URL"} == {variable for variable, needed_by in NEEDS.items() if name in needed_by}, name
        assert all(environment[variable] == "" for variable in required), name


def test_every_password_must_be_given_and_none_is_made_of_another(tmp_path: Path) -> None:
    text = COMPOSE.read_text()
    variables = set(re.findall(r"\$\{(\w+)", text))
    required = set(re.findall(r"\$\{(\w+):\?run make passwords\}", text))
    assert {each for each in variables if re.search("RABBITMQ.*PASSWORD|REDIS_PASSWORD|S3", each)} == required
    assert not re.search(r"\$\{\w+:[-?][^}]*\$\{", text)

    for file in (COMPOSE, ROOT / "Makefile"):
        shutil.copy(file, tmp_path)
    env = tmp_path / ".env"
    # The last line has no end.
    env.write_text("HOST_DELAY=2\nRABBITMQ_WEB_PASSWORD=\nREDIS_PASSWORD=mine")
    texts = []
    for _ in range(2):
        subprocess.run(["make", "passwords"], cwd=tmp_path, check=True)
        texts.append(env.read_text())
    assert texts[0] == texts[1]
    values = dotenv_values(env)
    assert (values.pop("HOST_DELAY"), values["REDIS_PASSWORD"]) == ("2", "mine")
    assert values.keys() == required
    assert len(set(values.values())) == len(values)
    assert all(re.fullmatch(r"mine|[0-9a-f]{32}", str(value)) for value in values.values())
    env.unlink()
    subprocess.run(["make", "passwords"], cwd=tmp_path, check=True)
    assert env.stat().st_mode & 0o777 == 0o600
    assert dotenv_values(env).keys() == required


def test_the_accounts_that_are_made_are_those_that_the_processes_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in OURS["accounts"]["environment"].items():
        monkeypatch.setenv(variable, without_env(value))
    expected = {account.name: password(account.name) for account in accounts(Settings())}
    assert Settings().passwords_of_accounts == expected
    assert set(PROCESSES) == set(expected) - {"client"}


def test_no_password_is_on_a_command_line() -> None:
    for name, service in SERVICES.items():
        assert not re.search(r"PASSWORD|SECRET|_KEY|perennial:", str(service.get("command", ""))), name
        assert not re.search(r"PASSWORD|SECRET|_KEY|perennial:", str(service.get("healthcheck", ""))), name
    assert "requirepass ${REDIS_PASSWORD:?run make passwords}" in DOCUMENT["configs"]["redis"]["content"]


def test_redis_has_a_limit_of_memory_and_evicts_nothing() -> None:
    content = DOCUMENT["configs"]["redis"]["content"]
    assert "maxmemory ${REDIS_MAXMEMORY:-1gb}\nmaxmemory-policy noeviction\n" in content


def test_the_settings_read_what_compose_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OURS["flower"]["environment"].items():
        monkeypatch.setenv(name, without_env(value).replace(password("flower"), "secret"))
    settings = Settings()
    assert settings.broker == "amqp://perennial-flower:secret@rabbitmq:5672//"
    assert settings.broker_api == "http://perennial-flower:secret@rabbitmq:15672/api/"
    assert settings.store == "s3://perennial?endpoint=http://store:8333"
    assert settings.web_address == f"0.0.0.0:{published('web')[2]}"
    assert settings.flower_address == f"0.0.0.0:{published('flower')[2]}"


def published(service: str) -> tuple[str, str, str]:
    """Return address, host's port and container's port of a service that publishes one."""
    (port,) = SERVICES[service]["ports"]
    address, host, container = re.fullmatch(r"([\d.]+):(.+):(\d+)", port).groups()  # type: ignore[union-attr]
    return address, host, container


def test_ports_are_published_on_the_loopback_address_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_server_has_a_healthcheck_and_whoever_needs_it_waits() -> None:
    for name, service in SERVICES.items():
        assert ("healthcheck" in service) == (name not in ONCE), name
        for needed, wait in service.get("depends_on", {}).items():
            ends = SERVICES[needed]["restart"] == "no"
            assert wait["condition"] == ("service_completed_successfully" if ends else "service_healthy")
    assert all({"bucket", "accounts"} <= set(service["depends_on"]) for service in PROCESSES.values())
    assert (set(OURS["bucket"]["depends_on"]), set(OURS["accounts"]["depends_on"])) == ({"store"}, {"rabbitmq"})


def test_every_volume_is_named_and_declared_and_every_foreign_image_has_a_minor_version() -> None:
    mounts = [mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", ())]
    assert set(mounts) == set(DOCUMENT["volumes"])
    for name, service in SERVICES.items():
        if name not in OURS:
            assert re.fullmatch(r"[\w/]+:\d+\.\d+(-\w+)?", service["image"]), service["image"]


def test_a_warm_shutdown_outlasts_the_longest_page() -> None:
    seconds = int(SERVICES["worker"]["stop_grace_period"].removesuffix("s"))
    assert seconds > 2 * Settings().response_timeout


def test_the_image_gets_what_the_package_needs_and_the_context_holds_nothing_else() -> None:
    assert set(copied()) == {"app", "config", "tasks", "Procfile", "pyproject.toml", "constraints.txt"}
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    first, *allowed = [rule for rule in rules if rule and not rule.startswith(("#", "**/"))]
    assert first == "*"
    assert sorted(allowed) == sorted(f"!{source}" for source in copied())


def test_the_image_does_not_run_as_root_and_installs_wheels_of_no_development_dependencies() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^USER \d+$", text, re.MULTILINE)
    assert "--group" not in text
    assert "--only-binary :all: --constraint constraints.txt" in text


def test_a_container_of_the_image_writes_to_volumes_and_to_memory_only() -> None:
    for name, service in OURS.items():
        assert service["read_only"], name
        assert service["tmpfs"] == ["/tmp"], name


def test_the_images_version_is_that_of_the_package() -> None:
    version = re.search(r"^ARG VERSION=(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert version is not None
    assert version[1] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
