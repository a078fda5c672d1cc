"""What is known of the private services between two commands: passwords, ports, URLs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import secrets
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.errors import ServicesError

USER = "perennial"


@dataclass(frozen=True, slots=True)
class Urls:
    """Where the services are, passwords included; `broker_api_url` is empty where nobody named one."""

    broker_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    broker_api_url: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class State:
    """One checkout's private services. `ports` and `pids` are by name; `urls` are those of what was ever started."""

    node: str
    password: str = field(repr=False)
    ports: dict[str, int] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
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


def node_name(directory: Path) -> str:
    """Return the Erlang node name of the services in `directory`: two checkouts never share one."""
    digest = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()
    return f"perennial-{digest[:12]}@localhost"


def load(directory: Path) -> State:
    """Return the state kept in `directory`, or a new one; a lost file is made again from the broker's configuration."""
    try:
        kept = json.loads((directory / "state.json").read_text())
        known = {item.name for item in dataclasses.fields(State)}
        return State(**{key: value for key, value in kept.items() if key in known})
    except (FileNotFoundError, ValueError, TypeError):
        return State(node=node_name(directory), password=_kept_password(directory) or secrets.token_hex(20))


def save(directory: Path, state: State) -> None:
    """Write `state` to `directory` at once or not at all, readable by its owner only."""
    write_private(directory / "state.json", json.dumps(dataclasses.asdict(state), indent=2) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace the file at `path` by `text` with mode 0600; readers see the old text or the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def make_directory(path: Path) -> Path:
    """Make the folder `path` for its owner only and return it.

    Raises:
        ServicesError: it cannot be made or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ServicesError(f"{path} cannot be made: {error.strerror}; name another by PERENNIAL_DATA_DIR") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ServicesError(f"{path} belongs to another user; name another folder by PERENNIAL_DATA_DIR")
    return path


def _kept_password(directory: Path) -> str | None:
    # The broker knows its user from its first boot on: a new password would lock us out of our own data.
    try:
        found = re.search(
            r"^default_pass = (\w+)$", (directory / "rabbitmq" / "rabbitmq.conf").read_text(), re.MULTILINE
        )
    except OSError:
        return None
    return found[1] if found else None


def with_ports(state: State, ports: dict[str, int]) -> State:
    """Return `state` with `ports` in place of those of the same names."""
    return dataclasses.replace(state, ports={**state.ports, **ports})


def with_urls(state: State, urls: dict[str, str], pids: dict[str, int]) -> State:
    """Return `state` with these URLs and process ids added."""
    merged: dict[str, Any] = {"urls": {**state.urls, **urls}, "pids": {**state.pids, **pids}}
    return dataclasses.replace(state, **merged)
