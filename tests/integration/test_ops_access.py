"""Access to the operations page, over real HTTP: passwords, sessions, roles, forms, a user header of a proxy."""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import Request
from pydantic import SecretStr

from app.errors import OperatorRequired
from app.operations.audit import AuditEntry, AuditLog
from app.storage.folder import FolderStore
from app.storage.open import create_store, store_of
from app.web.application import create_app
from app.web.middleware import refusal
from app.web.ops import access
from app.web.ops.access import Access
from app.web.ops.requests import OpsState
from config.settings import Settings
from tests.support.operators import HASHES, PASSWORD, QUICK, form_token, log_in
from tests.support.scripted import ScriptedSearchClient
from tests.support.waiting import eventually
from tests.support.web import served

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    found = Settings(data_dir=tmp_path, broker_url=SecretStr("amqp://127.0.0.1:1")).model_copy(update=HASHES)
    create_store(found.store)
    return found


@contextmanager
def page_of(settings: Settings, *, proxies: tuple[str, ...] = ()) -> Iterator[httpx.Client]:
    app = create_app(ScriptedSearchClient([]), ops=OpsState(settings, Access.of(settings)))
    with served(app, proxies=proxies) as client:
        yield client


@pytest.fixture
def client(settings: Settings) -> Iterator[httpx.Client]:
    with page_of(settings) as client:
        yield client


def audit(settings: Settings) -> list[AuditEntry]:
    return list(AuditLog(FolderStore(settings.data_dir / "store")).entries())


def test_without_a_way_to_log_in_there_is_no_page(tmp_path: Path) -> None:
    with page_of(Settings(data_dir=tmp_path)) as client:
        for path in ("/ops", "/ops/login", "/ops/audit"):
            assert client.get(path).status_code == 404
        assert client.post("/ops/logout").status_code == 404


def test_a_password_opens_a_session_and_logging_out_ends_it(settings: Settings, client: httpx.Client) -> None:
    assert client.get("/ops/audit").headers["location"] == "/ops/login"
    answer = log_in(client)
    assert (answer.status_code, answer.headers["location"]) == (303, "/ops")
    cookie = answer.headers["set-cookie"]
    assert all(part in cookie for part in ("HttpOnly", "SameSite=lax", "Path=/ops"))
    page = client.get("/ops/audit")
    assert page.status_code == 200
    assert page.headers["cache-control"] == "no-store"
    assert "kim" in page.text
    assert "may act" in page.text
    assert [(entry.act, entry.role) for entry in audit(settings)] == [("log in", "act")]
    kept = client.cookies[access.COOKIE]
    assert client.post("/ops/logout", data={"form_token": form_token(client)}).status_code == 303
    client.cookies.set(access.COOKIE, kept, path="/ops")
    assert client.get("/ops/audit").status_code == 303


def test_a_session_goes_on_at_a_web_process_whose_clock_is_a_little_behind(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    for ahead, status in ((600.0, 303), (5.0, 200)):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: now() + ahead)  # noqa: B023 - Called within this turn.
            log_in(client)
            token = form_token(client)
        assert client.get("/ops/audit").status_code == status
        posted = client.post("/ops/logout", data={"form_token": token})
        assert posted.status_code == (303 if status == 200 else 401)


def test_wrong_passwords_and_names_are_refused_audited_and_limited(settings: Settings, client: httpx.Client) -> None:
    answer = log_in(client, "a wrong password")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="operators"')
    assert "the password is wrong" in answer.text
    assert access.COOKIE not in client.cookies
    assert log_in(client, name="").status_code == 400
    assert log_in(client, name="k\x1bm").status_code == 400
    assert log_in(client, name="k" * 81).status_code == 400
    refused = [entry for entry in audit(settings) if entry.act == "refused"]
    assert {entry.result for entry in refused} >= {"the password is wrong"}
    assert PASSWORD not in str(refused)
    statuses = [log_in(client, "a wrong password").status_code for _ in range(20)]
    assert statuses[-1] == 429
    assert len([entry for entry in audit(settings) if entry.result == "the password is wrong"]) == 1


def test_refusals_at_the_same_time_are_all_audited(settings: Settings) -> None:
    state = OpsState(settings, Access.of(settings))

    def refuse(number: int) -> None:
        scope = {"type": "http", "method": "GET", "path": "/ops", "headers": [], "client": (f"10.0.0.{number}", 1)}
        state.note_refusal(Request(scope), OperatorRequired("log in first"))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(32) as threads:
            list(threads.map(refuse, range(250)))
    finally:
        sys.setswitchinterval(interval)
    assert len(audit(settings)) == 250


def test_a_form_of_another_site_is_refused_and_audited(settings: Settings, client: httpx.Client) -> None:
    log_in(client)
    token = form_token(client)
    for name, value in (
        ("Origin", "https://other.example"),
        ("Origin", "null"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
    ):
        answer = client.post("/ops/logout", data={"form_token": token}, headers={name: value})
        assert (answer.status_code, client.get("/ops/audit").status_code) == (403, 200), value
    assert audit(settings)[0].operator == "kim"
    assert "another site" in audit(settings)[0].result


def test_a_form_without_the_token_of_its_operator_is_refused(settings: Settings, client: httpx.Client) -> None:
    with page_of(settings) as other:
        log_in(other, name="lee")
        of_another = form_token(other)
    log_in(client)
    for token in ("", "wrong", of_another):
        assert client.post("/ops/logout", data={"form_token": token}).status_code == 403
        assert client.post("/ops/logout", json={"form_token": token}).status_code == 400
        assert client.get("/ops/audit").status_code == 200


def test_a_session_ends_when_it_is_not_used_and_when_it_is_old(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(client)
    began = time.time()
    monkeypatch.setattr("app.web.ops.access.time.time", lambda: began + access.IDLE_SECONDS - 60)
    assert client.get("/ops/audit").status_code == 200
    monkeypatch.setattr("app.web.ops.access.time.time", lambda: began + 2 * access.IDLE_SECONDS - 180)
    assert client.get("/ops/audit").status_code == 200
    monkeypatch.setattr("app.web.ops.access.time.time", lambda: began + 4 * access.IDLE_SECONDS)
    assert client.get("/ops/audit").status_code == 303


def test_a_new_password_ends_all_sessions(settings: Settings, client: httpx.Client) -> None:
    log_in(client)
    other = settings.model_copy(update={"ops_password": SecretStr(QUICK.hash("another password"))})
    with page_of(other) as changed:
        changed.cookies.set(access.COOKIE, client.cookies[access.COOKIE], path="/ops")
        assert changed.get("/ops/audit").status_code == 303


def test_the_user_header_counts_from_a_trusted_proxy_only(settings: Settings) -> None:
    own = settings.model_copy(update={"ops_user_header": "X-Forwarded-User", "ops_actors": ("kim",)})
    kim, lee = {"X-Forwarded-User": "kim"}, {"X-Forwarded-User": "lee"}
    with page_of(own, proxies=("127.0.0.1",)) as client:
        assert "may act" in client.get("/ops/audit", headers=kim).text
        assert "may read" in client.get("/ops/audit", headers={**lee, "X-Forwarded-For": "192.0.2.7"}).text
        assert client.get("/ops/audit").status_code == 303
        assert client.get("/api/v1/ops/status", headers=kim, params={"domain": "a.gov"}).status_code != 401
    with page_of(own, proxies=("192.0.2.1",)) as client:
        assert client.get("/ops/audit", headers=kim).status_code == 303
        assert client.get("/ops/audit", headers={**kim, "X-Forwarded-For": "192.0.2.1"}).status_code == 303
        assert client.get("/api/v1/ops/status", headers=kim, params={"domain": "a.gov"}).status_code == 401


def test_a_name_that_a_proxy_sends_as_utf_8_is_the_one_of_the_settings(settings: Settings) -> None:
    own = settings.model_copy(update={"ops_user_header": "X-Forwarded-User", "ops_actors": ("Jürgen Żółw",)})
    with page_of(own, proxies=("127.0.0.1",)) as client:
        page = client.get("/ops/audit", headers={b"X-Forwarded-User": "Jürgen Żółw".encode()}).text
        assert "Jürgen Żółw" in page
        assert "may act" in page
        assert "J\xfcrgen" in client.get("/ops/audit", headers={b"X-Forwarded-User": b"J\xfcrgen"}).text


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"x" * 3_000_000, {"Content-Type": "application/x-www-form-urlencoded"}),
        (iter([b"name=kim"]), {"Content-Type": "application/x-www-form-urlencoded"}),
    ],
)
def test_a_body_that_is_too_long_or_of_unknown_length_is_refused(
    client: httpx.Client, body: bytes | Iterator[bytes], headers: dict[str, str]
) -> None:
    try:
        answer = client.post("/ops/login", content=body, headers=headers)
    except httpx.HTTPError:
        return  # The answer came before the rest of the body, and the connection was closed.
    assert (answer.status_code, "none of this or of an unknown length" in answer.text) == (413, True)


def test_a_length_of_many_zeros_is_a_length() -> None:
    fields = [(b"content-length", b"0" * 5_000)]
    assert refusal({"path": "/ops", "raw_path": b"/ops", "query_string": b"", "headers": fields}) is None


def test_an_unreadable_form_is_a_page_that_says_why(client: httpx.Client) -> None:
    log_in(client)
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = client.post("/ops/logout", content=b"form_token=%ff%fe", headers=headers)
    assert answer.status_code == 400
    assert "the form cannot be read" in answer.text


def test_the_refusal_of_a_method_names_those_of_the_address(client: httpx.Client) -> None:
    for method, path, allowed in (
        ("PUT", "/ops/login", "GET, HEAD, POST"),
        ("GET", "/ops/logout", "POST"),
        ("DELETE", "/ops/audit", "GET, HEAD"),
        ("PATCH", "/api/v1/ops/sites/a.gov", "GET, HEAD, POST"),
    ):
        answer = client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed), path


def test_a_form_that_is_cut_off_is_a_refusal_and_no_unforeseen_error(
    client: httpx.Client, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    head = "POST /ops/login HTTP/1.1\r\nHost: ops\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    with socket.create_connection((client.base_url.host, client.base_url.port or 80)) as visitor:
        visitor.sendall(f"{head}Content-Length: 100\r\n\r\nname=kim".encode())
    entries = eventually(lambda: audit(settings), "the refusal is in the audit")
    assert "before its end" in entries[0].result
    assert not [record for record in caplog.records if record.exc_info]


def test_a_form_with_a_query_of_too_many_fields_is_refused(client: httpx.Client) -> None:
    log_in(client)
    fields = {"form_token": form_token(client), "verb": "replay", "scope": "all", "query": "&".join(["task=a"] * 51)}
    answer = client.post("/ops/dead/acts", data=fields)
    assert answer.status_code == 400
    assert "the query cannot be read" in answer.text


def test_guesses_from_one_ipv6_network_are_one_entry_of_the_audit(settings: Settings) -> None:
    with page_of(settings, proxies=("127.0.0.1",)) as client:
        for number in range(3):
            headers = {"X-Forwarded-For": f"2001:db8::{number + 1}", "Authorization": "Bearer guess"}
            assert client.get("/api/v1/ops/acts", headers=headers).status_code == 401
    assert [entry.details for entry in audit(settings)] == [{"address": "2001:db8::1"}]


def test_what_a_stranger_writes_into_the_audit_is_shown_with_its_invisible_characters_escaped(
    client: httpx.Client,
) -> None:
    log_in(client, "wrong", name="kim\u202enimda")
    client.post("/ops/acts/\u202ex/pause", data={"why": ""})
    log_in(client)
    page = client.get("/ops/audit").text
    assert "\u202e" not in page
    assert "kim\\u202enimda" in page
    assert "/ops/acts/\\u202ex/pause" in page
    assert "\u202e" not in client.get("/ops/acts/\u202ex").text


def test_a_stream_that_cannot_go_on_ends_without_an_unforeseen_error(
    client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    log_in(client)
    with client.stream("GET", "/ops/live", params={"act": "20261128T101010.000000-0a1b2c3d"}) as answer:
        assert answer.status_code == 200
        assert [line for line in answer.iter_lines() if line] == ["retry: 3000"]
    assert not [record for record in caplog.records if record.exc_info]


def test_an_entry_without_a_time_hides_no_other_entry(settings: Settings, client: httpx.Client) -> None:
    log_in(client)
    entry = json.loads(store_of(settings).get(audit(settings)[0].key).data)
    for number, at in enumerate(("yesterday", 5, None, "")):
        store_of(settings).put(f"audit/2026-11-25/damaged-{number}", json.dumps(entry | {"at": at}).encode())
    assert [each.act for each in audit(settings)] == ["log in", *["unreadable"] * 4]
    assert client.get("/ops/audit").status_code == 200


def test_a_damaged_act_hides_no_other_act(settings: Settings, client: httpx.Client) -> None:
    log_in(client)
    act = {"operator": "kim", "subject": "all", "why": "", "began": 1.0, "updated": 1.0, "total": 1, "left": 0}
    damages: tuple[dict[str, object], ...] = (
        {"began": "yesterday"},
        {"began": 1e300},
        {"order": {"verb": "burn"}},
        {"listed": ["a"]},
        {"total": "x"},
    )
    for number, changed in enumerate(({}, *damages)):
        ident = f"20261128T101010.000000-0a1b2c3{number}"
        whole = act | {"id": ident, "order": {"verb": "replay"}, "run": "r", "phase": "done"} | changed
        store_of(settings).put(f"acts/{ident}.json", json.dumps(whole).encode())
    page = client.get("/ops/acts")
    assert page.status_code == 200
    assert set(re.findall("0a1b2c3[0-9]", page.text)) == {"0a1b2c30"}
