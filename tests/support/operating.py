"""An operator at the operations page: logs in, reads pages and sends their forms, over real HTTP."""

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

from app.web.application import create_app
from app.web.ops.access import Access
from app.web.ops.visits import OpsState
from config.settings import Settings
from tests.support.scripted import ScriptedSearchClient
from tests.support.waiting import eventually
from tests.support.web import served

PASSWORD, READ_PASSWORD, TOKEN = "a password to act", "a password to read", "correct-horse-battery"
_QUICK = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
HASHES = {
    "ops_password": _QUICK.hash(PASSWORD),
    "ops_read_password": _QUICK.hash(READ_PASSWORD),
    "web_operator_token": TOKEN,
}


@dataclass(slots=True)
class OperatorAtPage:
    """An operator with a session. `api` calls the JSON API with the token."""

    client: httpx.Client
    token: str = ""

    def log_in(self, password: str = PASSWORD, name: str = "kim") -> None:
        """Begin a session."""
        self.client.cookies.clear()
        answer = self.client.post("/ops/login", data={"name": name, "password": password})
        assert answer.status_code == 303, answer.text
        found = re.search(r'name="form_token" value="([^"]+)"', self.client.get("/ops/audit").text)
        assert found
        self.token = found[1]

    def open(self, path: str, *, status: int = 200) -> BeautifulSoup:
        """Return a page."""
        answer = self.client.get(path)
        assert answer.status_code == status, answer.text
        return BeautifulSoup(answer.text, "html.parser")

    def send(self, path: str, **fields: Any) -> httpx.Response:
        """Send a form."""
        return self.client.post(path, data={"form_token": self.token, **fields})

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
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = self.client.request(method, f"/api/v1/ops{path}", headers=headers, **options)
        assert answer.status_code == status, answer.text
        return answer.json()


def text_of(page: BeautifulSoup) -> str:
    """Return the text of a page's content, with single spaces."""
    return " ".join((page.find("main") or page).get_text(" ").split())


def with_passwords(settings: Settings) -> Settings:
    """Return settings with the passwords and the token."""
    return settings.model_copy(update={name: SecretStr(value) for name, value in HASHES.items()})


@contextmanager
def operated(settings: Settings) -> Iterator[OperatorAtPage]:
    """Serve the operations page for the block, and log an operator in."""
    own = with_passwords(settings)
    app = create_app(ScriptedSearchClient([]), ops=OpsState(own, Access.of(own)), rate_limit="1000000/second")
    with served(app) as client:
        operator = OperatorAtPage(client)
        operator.log_in()
        yield operator
