"""Error reports are an extra: without it a process says so, and no event has a secret."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
from pydantic import SecretStr

from app import error_reports
from config.logs import MASK
from config.settings import Settings

pytestmark = pytest.mark.unit

SETTINGS = Settings(sentry_dsn=SecretStr("http://key4711@127.0.0.1:1/1"), archive_keys=SecretStr("access:archive4711"))


def line(**extra: Any) -> dict[str, Any]:
    """Return the hint of an event that was made of a log line."""
    record = logging.getLogger("app").makeRecord("app", logging.ERROR, "a.py", 1, "lost", (), None, extra=extra)
    return {"log_record": record}


def test_without_the_extra_a_process_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "sentry_sdk", None)
    with caplog.at_level(logging.WARNING):
        error_reports.begin("worker", SETTINGS)
    assert "install perennial[sentry]" in caplog.text
    assert "key4711" not in caplog.text


def test_an_event_says_what_it_is_about_and_has_no_secret() -> None:
    prepared = error_reports.before_send(SETTINGS)
    event = {"exception": {"values": [{"value": "archive4711 of https://kim:hush@site.example/ refused"}]}, "level": 1}
    about = {"task_id": "abc", "task": "site.page", "attempt": 2}
    of_page = line(**about, task_kwargs={"url": "https://kim:hush@site.example/a", "crawl_id": "c1"})
    sent = prepared(event, of_page)
    assert sent is not None
    assert sent["tags"] == {**about, "domain": "site.example", "crawl_id": "c1"}
    assert sent["extra"] == {"url": f"https://{MASK}@site.example/a"}
    assert sent["exception"] == {"values": [{"value": f"{MASK} of https://{MASK}@site.example/ refused"}]}
    assert not {"archive4711", "hush"} & set(json.dumps(sent).split('"'))


def test_a_failure_that_the_process_of_the_run_has_sent_is_not_sent_again_for_its_line() -> None:
    prepared = error_reports.before_send(SETTINGS)
    assert prepared({}, line(is_announced=True)) is None
    assert prepared({}, line(is_announced=False)) is not None
    assert prepared({}, line()) is not None
