"""The containers of docker-compose.yml: settings, commands, kills, and what `make chaos` observes of a system."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from dotenv import dotenv_values
from redis import Redis

from app.private_services.ports import choose
from config.settings import ROOT, Settings
from tests.chaos.sites import Get
from tests.containers.engine import FOLDER, SOURCES, Engine
from tests.containers.site import JOURNAL, REPAIR
from tests.support.clients import SystemClients
from tests.support.waiting import eventually

PROJECT = "perennial-test"
IMAGE = "docker.io/library/perennial:local"
CHECKOUT = FOLDER / "checkout"

PORTS = (
    "WEB_PORT",
    "FLOWER_PORT",
    "AMQP_PORT",
    "RABBITMQ_PORT",
    "REDIS_PORT",
    "STORE_PORT",
    "SMALL_PORT",
    "LARGE_PORT",
)
#: Settings of the containers and of the test. The retry budget outlasts what is killed: 1 + 2 + 4 + 8 + 16 s.
SETTINGS = {
    "ALLOW_PRIVATE_HOSTS": "small.test,large.test",
    "HOST_DELAY": "0.08",
    "TIMER_TIMEOUT": "3",
    "RETRY_TIMEOUT_MS": "1000",
    "WORKER_CONCURRENCY": "2",
    "HEARTBEAT": "1",
}


def clean_checkout() -> None:
    """Copy what git has of this checkout, with changes that are not committed."""
    shutil.rmtree(CHECKOUT, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (source := ROOT / name).exists():
            (target := CHECKOUT / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


@dataclass(frozen=True, slots=True)
class Stack(SystemClients):
    """The containers. `env` is what the file `.env` has; `settings` reach the services over published ports."""

    engine: Engine
    compose_program: Path
    env: Mapping[str, str]
    settings: Settings
    redis: Redis

    def compose(self, *arguments: str) -> str:
        """Run Docker Compose and return what it prints to standard output."""
        files = (CHECKOUT / "docker-compose.yml", SOURCES / "override.yml")
        options = [
            "--project-name",
            PROJECT,
            "--project-directory",
            str(CHECKOUT),
            *(f"--file={file}" for file in files),
        ]
        return self.engine.run([str(self.compose_program), *options, *arguments])

    def up(self, **replicas: int) -> None:
        """Start what does not run or has changed; return when every container is healthy."""
        scale = [f"--scale={service}={count}" for service, count in replicas.items()]
        self.compose("up", "--no-build", "--detach", "--wait", "--wait-timeout=300", *scale)

    def down(self) -> None:
        """Remove containers, networks and volumes."""
        self.compose("--profile=*", "down", "--volumes", "--remove-orphans", "--timeout=5")

    def perennial(self, *arguments: str) -> str:
        """Run a command as the operator."""
        return self.compose("run", "--rm", "--no-deps", "-T", "operator", "perennial", *arguments)

    def containers(self, service: str = "") -> list[str]:
        """Return the ids of the running containers, of one service or of all."""
        label = (
            f"label=com.docker.compose.service={service}" if service else f"label=com.docker.compose.project={PROJECT}"
        )
        return self.engine.podman("ps", "--quiet", f"--filter={label}").split()

    def inspect(self, *containers: str) -> list[dict[str, Any]]:
        """Return what podman has of containers."""
        return list(json.loads(self.engine.podman("inspect", "--type=container", *containers)))

    def checked(self) -> list[str]:
        """Return the names of the running containers that have a health check."""
        return [each["Name"] for each in self.inspect(*self.containers()) if each["Config"].get("Healthcheck")]

    def kill(self, service: str) -> None:
        """SIGKILL one container of a service from outside; return when it runs again by its restart policy."""
        container = self.containers(service)[0]
        (before,) = self.inspect(container)
        os.kill(before["State"]["Pid"], signal.SIGKILL)
        eventually(lambda: self._runs_again(container, before["State"]["Pid"]), f"{service} runs again", seconds=60)

    def _runs_again(self, container: str, killed: int) -> bool:
        (now,) = self.inspect(container)
        return bool(now["State"]["Running"]) and now["State"]["Pid"] not in (0, killed)

    def search(self, domain: str, query: str) -> dict[str, Any]:
        """Search over the published port; an empty answer while nothing can be found."""
        url = f"http://127.0.0.1:{self.env['WEB_PORT']}/api/v1/search"
        response = requests.get(url, params={"domain": domain, "q": query}, timeout=30)
        return dict(response.json()) if response.ok else {"total": 0, "status": response.status_code}

    def journal(self, site: str) -> list[Get]:
        """Return what a site has answered."""
        response = requests.get(f"http://127.0.0.1:{self.env[site]}{JOURNAL}", timeout=30)
        return [Get(**each) for each in response.json()]

    def repair(self, site: str) -> None:
        """Let the failing page of a site answer."""
        requests.post(f"http://127.0.0.1:{self.env[site]}{REPAIR}", timeout=30).raise_for_status()

    def log(self, name: str) -> str:
        """Return what the containers of a service have printed."""
        return self.compose("logs", "--no-color", name)

    def not_running(self) -> list[str]:
        """Return the names of the containers that should run and do not."""
        listed = json.loads(self.engine.podman("ps", "--all", "--format=json"))
        return [each["Names"][0] for each in listed if each["State"] != "running" and each["ExitCode"]]


@contextmanager
def stack(engine: Engine, compose_program: Path) -> Iterator[Stack]:
    """Yield the stack of a new checkout with passwords of its own. All of it but the images goes with the block."""
    subprocess.run(["make", "--silent", "passwords"], cwd=CHECKOUT, check=True)
    own = SETTINGS | {"CHECKOUT": str(CHECKOUT)} | {name: str(port) for name, port in choose(PORTS).items()}
    with (CHECKOUT / ".env").open("a") as file:
        file.writelines(f"{name}={value}\n" for name, value in own.items())
    env = {name: str(value) for name, value in dotenv_values(CHECKOUT / ".env").items()}
    os.environ.update(AWS_ACCESS_KEY_ID=env["S3_ACCESS_KEY"], AWS_SECRET_ACCESS_KEY=env["S3_SECRET_KEY"])
    os.environ.update(AWS_DEFAULT_REGION="us-east-1", AWS_EC2_METADATA_DISABLED="true")
    user = f"perennial:{env['RABBITMQ_PASSWORD']}@127.0.0.1"
    redis_url = f"redis://:{env['REDIS_PASSWORD']}@127.0.0.1:{env['REDIS_PORT']}/0"
    settings = Settings.model_validate(
        {name.lower(): value for name, value in SETTINGS.items()}
        | {
            "data_dir": FOLDER / "data",
            "broker_url": f"amqp://{user}:{env['AMQP_PORT']}//",
            "broker_api_url": f"http://{user}:{env['RABBITMQ_PORT']}/api/",
            "redis_url": redis_url,
            "store_url": f"s3://perennial?endpoint=http://127.0.0.1:{env['STORE_PORT']}",
        }
    )
    made = Stack(engine, compose_program, env, settings, Redis.from_url(redis_url, decode_responses=True))
    made.down()  # What a run that was killed has left.
    try:
        yield made
    except AssertionError:
        print(made.compose("logs", "--no-color", "--tail=20"))
        raise
    finally:
        made.down()
        made.redis.close()
