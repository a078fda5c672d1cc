"""Make the broker's accounts by the management API, each with a password in a file of its own."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from app.broker.errors import ManagementFailed
from app.errors import FetchError, ServicesError
from app.http.api_client import ApiClient
from app.http.response import Response
from app.machine import make_directory, write_private
from app.topology.accounts import Account, accounts, pattern
from app.topology.queues import events_exchange
from config.settings import Settings

_CLIENT = ApiClient(response_timeout=10.0, keeps_connections=True)

#: Seconds in which a request without an answer is sent again: while containers start, a name is not always found.
_PATIENCE = 5.0
_PAUSE = 0.5


def make_accounts(settings: Settings, directory: Path, *, prefix: str = "perennial") -> list[Path]:
    """Make or change the accounts `<prefix>-<kind>` of the broker's vhost; return the environment files in `directory`.

    Each file sets what a process of its kind needs to use its account. A password is that of ACCOUNT_PASSWORDS, else
    that of the file, else a random one. Raises ServicesError without BROKER_API_URL, ManagementFailed if it refuses.
    """
    if not settings.broker_api:
        raise ServicesError(
            "accounts are made by the management API: set BROKER_API_URL, with an administrator's account"
        )
    make_directory(directory, named_by="--directory")
    # Of a cluster each node makes accounts for all.
    broker, api = (urlsplit(url.partition(";")[0]) for url in (settings.broker, settings.broker_api))
    given, wanted = settings.passwords_of_accounts, accounts(settings)
    names = [account.name for account in wanted]
    if unknown := given.keys() - names:
        raise ServicesError(f"ACCOUNT_PASSWORDS: {', '.join(sorted(unknown))}: expected {', '.join(names)}")
    files = []
    for account in wanted:
        file = directory / f"{account.name}.env"
        user = f"{prefix}-{account.name}"
        password = given.get(account.name) or _kept_password(file) or secrets.token_urlsafe(24)
        _put(api.geturl(), account, user=user, password=password, vhost=unquote(broker.path[1:]) or "/")
        login = f"{quote(user, safe='')}:{quote(password, safe='')}"
        lines = [f"BROKER_URL={_with_login(settings.broker, login)}", "DECLARE_TOPOLOGY=false"]
        if account.tags:
            lines.append(f"BROKER_API_URL={_with_login(settings.broker_api, login)}")
        write_private(file, "\n".join(lines) + "\n")
        files.append(file)
    return files


def _put(api: str, account: Account, *, user: str, password: str, vhost: str) -> None:
    """Make an account, or change its password and permissions."""
    place = f"{quote(vhost, safe='')}/{quote(user, safe='')}"
    events = {
        "exchange": events_exchange.name,
        "write": pattern(account.events_written),
        "read": pattern(account.events_read),
    }
    permissions = {kind: pattern(getattr(account, kind)) for kind in ("configure", "write", "read")}
    requests: dict[str, dict[str, Any]] = {
        f"users/{quote(user, safe='')}": {"password": password, "tags": account.tags},
        f"permissions/{place}": permissions,
        f"topic-permissions/{place}": events,
    }
    for path, value in requests.items():
        response = _send(f"{api.rstrip('/')}/{path}", value)
        if not response.ok:
            raise ManagementFailed(f"management API (BROKER_API_URL) answers {response.status} to PUT {path}")


def _send(url: str, value: Mapping[str, Any]) -> Response:
    """Send a value, which has the same effect each time, until the API answers; raises ManagementFailed."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            headers = {"Content-Type": "application/json"}
            return _CLIENT.send("PUT", url, headers=headers, body=json.dumps(value).encode())
        except FetchError as error:
            if time.monotonic() > deadline:
                raise ManagementFailed(f"management API (BROKER_API_URL) does not answer: {error}") from error
        time.sleep(_PAUSE)


def _kept_password(file: Path) -> str:
    try:
        lines = file.read_text().splitlines()
    except FileNotFoundError:
        return ""
    urls = (line.partition("=")[2] for line in lines if line.startswith("BROKER_URL="))
    return unquote(urlsplit(next(urls, "").partition(";")[0]).password or "")


def _with_login(url: str, login: str) -> str:
    """Return a URL, or several separated by semicolons, with another user and password."""
    parts = (urlsplit(each) for each in url.split(";"))
    return ";".join(each._replace(netloc=f"{login}@{each.netloc.rpartition('@')[2]}").geturl() for each in parts)
