"""Operators of the operations page in tests: passwords, a served page, its forms and its JSON API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from argon2 import PasswordHasher
from bs4 import BeautifulSoup
from pydantic import SecretStr

from app.cluster.client.contract import SearchClient
from app.web.application import create_app
from app.web.ops.access import Access
from app.web.ops.requests import OpsState
from config.settings import Settings
from tests.support.scripted import ScriptedSearchClient
from tests.support.waiting import eventually
from tests.support.web import served

PASSWORD, READ_PASSWORD, TOKEN = "a password to act", "a password to read", "correct-horse-battery"
QUICK = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
HASHES = {
    "ops_password": SecretStr(QUICK.hash(PASSWORD)),
    "ops_read_password": SecretStr(QUICK.hash(READ_PASSWORD)),
    "web_operator_token": SecretStr(TOKEN),
}
#: The same as variables of a process.
VARIABLES = {name.upper(): value.get_secret_value() for name, value in HASHES.items()}


def with_operators(settings: Settings, **others: Any) -> Settings:
    """Return the settings with the passwords and the token of operators."""
    return settings.model_copy(update={**HASHES, **others})


@contextmanager
def operated(
    settings: Settings, client: SearchClient | None = None, *, password: str = PASSWORD
) -> Iterator[httpx.Client]:
    """Serve the operations page, and yield a client that has logged in as `kim`."""
    ops = OpsState(settings, Access.of(settings))
    with served(create_app(client or ScriptedSearchClient([]), ops=ops, rate_limit="1000000/second")) as browser:
        assert log_in(browser, password).status_code == 303
        yield browser


def log_in(client: httpx.Client, password: str = PASSWORD, name: str = "kim") -> httpx.Response:
    """Send the login form; a session begins if the password is right."""
    return client.post("/ops/login", data={"name": name, "password": password})


def form_token(client: httpx.Client, page: str = "/ops/audit") -> str:
    """Return the token of the forms of a page, which is that of all forms of a session."""
    found = re.search(r'name="form_token" value="([^"]+)"', client.get(page).text)
    assert found
    return found[1]


def send_form(client: httpx.Client, path: str, /, page: str = "/ops/audit", **fields: Any) -> httpx.Response:
    """Send a form of a page as its browser does."""
    return client.post(path, data={"form_token": form_token(client, page), **fields})


def api_headers() -> dict[str, str]:
    """Return the header fields of a program that acts by the API."""
    return {"Authorization": f"Bearer {TOKEN}"}


@dataclass(slots=True)
class OperatorAtPage:
    """An operator with a session. `api` calls the JSON API with the token."""

    client: httpx.Client

    def log_in(self, password: str = PASSWORD, name: str = "kim") -> None:
        """Begin another session."""
        self.client.cookies.clear()
        assert log_in(self.client, password, name).status_code == 303

    def open(self, path: str, *, status: int = 200) -> BeautifulSoup:
        """Return a page."""
        answer = self.client.get(path)
        assert answer.status_code == status, answer.text
        return BeautifulSoup(answer.text, "html.parser")

    def send(self, path: str, **fields: Any) -> httpx.Response:
        """Send a form."""
        return send_form(self.client, path, **fields)

    def begin(self, path: str = "/ops/dead/acts", **fields: Any) -> str:
        """Send a form that begins an act; return the address of the act's page."""
        answer = self.send(path, **fields)
        assert answer.status_code == 303, text_of(BeautifulSoup(answer.text, "html.parser"))
        return str(answer.headers["location"])

    def ended(self, act: str, *, seconds: float = 60) -> str:
        """Wait until an act does not run; return the text of its page."""

        def page() -> BeautifulSoup | None:
            answer = self.client.get(act)
            assert answer.status_code == 200, answer.text
            return None if "data-live" in answer.text else BeautifulSoup(answer.text, "html.parser")

        found = eventually(page, f"{act} ends", seconds=seconds)
        assert found is not None
        return text_of(found)

    def api(self, method: str, path: str, *, status: int = 200, **options: Any) -> Any:
        """Call the JSON API."""
        answer = self.client.request(method, f"/api/v1/ops{path}", headers=api_headers(), **options)
        assert answer.status_code == status, answer.text
        return answer.json()


def text_of(page: BeautifulSoup) -> str:
    """Return the text of a page's content, with single spaces."""
    return " ".join((page.find("main") or page).get_text(" ").split())
