"""The state of the private services between two commands: password, ports and URLs, in one file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from app.machine import write_private

USER = "perennial"


@dataclass(frozen=True, slots=True)
class Urls:
    """URLs of the services, with passwords; `broker_api_url` is empty where the management API is unknown."""

    broker_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    broker_api_url: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ServicesState:
    """The private services of one checkout. `ports` are by name; `urls` are of services that ever ran."""

    node: str
    password: str = field(repr=False)
    ports: dict[str, int] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def broker_url(self) -> str:
        """AMQP URL of the private broker's default vhost."""
        return f"amqp://{USER}:{self.password}@127.0.0.1:{self.ports['amqp']}//"

    @property
    def broker_api_url(self) -> str:
        """URL of the private broker's management API."""
        return f"http://{USER}:{self.password}@127.0.0.1:{self.ports['management']}/api/"

    @property
    def redis_url(self) -> str:
        """URL of the private Redis's first database."""
        return f"redis://:{self.password}@127.0.0.1:{self.ports['redis']}/0"


_READER: Final = TypeAdapter(ServicesState)


def node_name(directory: Path) -> str:
    """Return the Erlang node name of the services in `directory`: two checkouts never share one."""
    digest = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()
    return f"perennial-{digest[:12]}@localhost"


def load(directory: Path) -> ServicesState:
    """Return the state of the file in `directory`; without a valid file a new one, with the broker's password."""
    try:
        return _READER.validate_json((directory / "state.json").read_bytes())
    except (FileNotFoundError, ValueError):
        # The broker keeps the password of its first boot with its data: a new one would not be accepted.
        file = directory / "rabbitmq" / "rabbitmq.conf"
        found = re.search(r"^default_pass = (\w+)$", file.read_text() if file.is_file() else "", re.MULTILINE)
        return ServicesState(node=node_name(directory), password=found[1] if found else secrets.token_hex(20))


def save(directory: Path, state: ServicesState) -> None:
    """Write `state` to `directory` atomically, readable by its owner only."""
    write_private(directory / "state.json", json.dumps(dataclasses.asdict(state), indent=2) + "\n")
