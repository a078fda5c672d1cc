"""Operators of the operations page in tests: passwords, a served page, and its forms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from argon2 import PasswordHasher
from pydantic import SecretStr

from app.cluster.client.contract import SearchClient
from app.web.application import create_app
from app.web.ops.access import Access
from app.web.ops.visits import OpsState
from config.settings import Settings
from tests.support.scripted import ScriptedSearchClient
from tests.support.web import served

PASSWORD, READ_PASSWORD, TOKEN = "a password to act", "a password to read", "correct-horse-battery"
_QUICK = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
_HASHES = {
    "ops_password": SecretStr(_QUICK.hash(PASSWORD)),
    "ops_read_password": SecretStr(_QUICK.hash(READ_PASSWORD)),
    "web_operator_token": SecretStr(TOKEN),
}


def with_operators(settings: Settings, **others: Any) -> Settings:
    """Return the settings with the passwords and the token of operators."""
    return settings.model_copy(update={**_HASHES, **others})


@contextmanager
def operated(
    settings: Settings, client: SearchClient | None = None, *, password: str = PASSWORD
) -> Iterator[httpx.Client]:
    """Serve the operations page, and yield a client that has logged in as `kim`."""
    app = create_app(client or ScriptedSearchClient([]), ops=OpsState(settings, Access.of(settings)))
    with served(app) as browser:
        answer = browser.post("/ops/login", data={"name": "kim", "password": password})
        assert answer.status_code == 303, answer.text
        yield browser


def send_form(client: httpx.Client, path: str, /, page: str = "/ops/audit", **fields: Any) -> httpx.Response:
    """Send a form of a page as its browser does."""
    token = re.search(r'name="form_token" value="([^"]+)"', client.get(page).text)
    assert token
    return client.post(path, data={"form_token": token[1], **fields})


def api_headers() -> dict[str, str]:
    """Return the header fields of a program that acts by the API."""
    return {"Authorization": f"Bearer {TOKEN}"}
