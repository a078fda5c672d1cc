"""Accounts of the broker for one test, as `perennial services accounts` makes them for each kind of process."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import requests
from dotenv import dotenv_values

from app.broker.connection import connected
from app.operations.broker_accounts import make_accounts
from app.topology.declare import declare_all
from config.settings import Settings


@contextmanager
def accounts_of(settings: Settings, folder: Path) -> Iterator[Mapping[str, Mapping[str, str]]]:
    """Declare the topology, make the accounts for the block and yield the environment of each kind of process."""
    prefix = f"test-{secrets.token_hex(4)}"
    with connected(settings.broker) as connection:
        declare_all(connection, settings)
    files = make_accounts(settings, folder, prefix=prefix)
    try:
        yield {file.stem: {name: value or "" for name, value in dotenv_values(file).items()} for file in files}
    finally:
        with requests.Session() as session:
            session.trust_env = False
            users = {"users": [f"{prefix}-{file.stem}" for file in files]}
            url = f"{settings.broker_api.rstrip('/')}/users/bulk-delete"
            session.post(url, json=users, timeout=30).raise_for_status()
