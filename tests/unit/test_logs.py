"""Log lines: for people or for programs, with the task that they are about and without a secret."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from pydantic import SecretStr

from app.machine import touch_heartbeat
from config.logs import MASK, formatter
from config.settings import Settings

pytestmark = pytest.mark.unit

SETTINGS = Settings(
    broker_url=SecretStr("amqp://me:hush%2F4711@mq.example//;amqp://me:other4711@two.example//"),
    archive_keys=SecretStr("access:archive4711"),
    account_passwords=SecretStr("worker=worker4711,web=web4711"),
    site_secrets=SecretStr('{"token": "site4711"}'),
    webhook_secret=SecretStr(""),
)


TEXT, JSON = formatter(SETTINGS, as_json=False), formatter(SETTINGS, as_json=True)


def formatted(
    form: logging.Formatter, message: str, *arguments: object, exc_info: BaseException | None = None, **extra: Any
) -> str:
    """Return the line of a record."""
    exception = (type(exc_info), exc_info, exc_info.__traceback__) if exc_info else None
    record = logging.getLogger("app.crawl").makeRecord(
        "app.crawl", logging.WARNING, "page.py", 1, message, arguments, exception, extra=extra
    )
    return form.format(record)


@pytest.mark.parametrize("form", [TEXT, JSON], ids=["text", "json"])
@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("no answer from https://user:pass@site.example/a?b=1", f"no answer from https://{MASK}@site.example/a?b=1"),
        ("https://site.example/@kim?to=a@b", "https://site.example/@kim?to=a@b"),
        ("login hush/4711 or hush%2F4711 refused", f"login {MASK} or {MASK} refused"),
        ("other4711 archive4711 worker4711 web4711 site4711", " ".join([MASK] * 5)),
    ],
)
def test_no_line_shows_a_secret(form: logging.Formatter, said: str, written: str) -> None:
    line = formatted(form, "%s", said)
    assert json.loads(line)["message"] == written if form is JSON else f"] {written} " in line


@pytest.mark.parametrize("form", [TEXT, JSON], ids=["text", "json"])
def test_no_line_has_what_a_terminal_obeys_or_a_file_cannot_hold(form: logging.Formatter) -> None:
    line = formatted(form, "400: %s", "\x1b[2J\r\u202eno\ud800\ttab\nmore", task_id="\x1b]0;title\x07")
    assert line.encode().decode().replace("\n", "").replace("\t", "").isprintable()
    assert r"400: \x1b[2J\r\u202eno\ud800" in (json.loads(line)["message"] if form is JSON else line)
    assert r"\x1b]0;title\x07" in (json.loads(line)["task_id"] if form is JSON else line)


def test_a_line_of_the_main_process_names_the_message_that_it_is_about() -> None:
    text = formatted(TEXT, "retry [] of it", task_id="abc")
    assert "[warning  ] retry [] of it" in text
    assert text.endswith("[app.crawl] process=MainProcess task_id=abc")
    assert formatted(TEXT, "retry").endswith("[app.crawl] process=MainProcess")
    line = json.loads(formatted(JSON, "retry", data={"id": "abc"}))
    assert (line["task_id"], line["level"], line["logger"]) == ("abc", "warning", "app.crawl")
    assert {"time", "process", "pid"} <= set(line)
    assert "task_id" not in json.loads(formatted(JSON, "retry"))
    begins: dict[str, Any] = {"task": "site.index_and_crawl", "task_id": "c1", "attempt": 2}
    line = json.loads(formatted(JSON, "retry", **begins, task_kwargs={"url": "https://kim@Site.example/"}))
    assert line | begins | {"crawl_id": "c1", "domain": "site.example"} == line
    assert line["url"] == f"https://{MASK}@Site.example/"
    shared = {"url": "https://site.example/a", "more": [{"url": "https://site.example/b"}]}
    line = json.loads(formatted(JSON, "retry", task="site.page", task_kwargs=shared))
    assert line["domain"] == "site.example"
    assert "url" not in line
    text = formatted(TEXT, "retry", **begins, task_kwargs={"url": "https://kim@Site.example/"})
    assert text.endswith("task_id=c1 task=site.index_and_crawl attempt=2 domain=site.example crawl_id=c1")


def test_a_line_of_a_task_names_its_site_and_crawl_and_json_is_one_line_with_its_traceback() -> None:
    app = Celery("lines", set_as_current=False)
    lines: list[str] = []

    # Not shared: Celery would give it to the applications of other tests, too.
    @app.task(name="site.page", shared=False)  # type: ignore[untyped-decorator]
    def page(**_message: Any) -> None:
        lines.extend(formatted(form, "first\nsecond", exc_info=ValueError("site4711")) for form in (TEXT, JSON))

    url = "https://kim:secret@site.example/a"
    page.apply(kwargs={"url": url, "domain": "site.example", "crawl_id": "c1", "depth": 1}, task_id="abc")
    [text, line] = lines
    assert "] first " in text
    assert "task_id=abc task=site.page attempt=1 domain=site.example crawl_id=c1\nsecond\n" in text
    assert text.endswith(f"ValueError: {MASK}")
    assert "\n" not in line
    entry = json.loads(line)
    assert entry["message"] == "first\nsecond"
    assert entry["exception"].endswith(f"ValueError: {MASK}")
    assert {name: entry[name] for name in ("task_id", "task", "attempt", "url", "domain", "crawl_id")} == {
        "task_id": "abc",
        "task": "site.page",
        "attempt": 1,
        "url": f"https://{MASK}@site.example/a",
        "domain": "site.example",
        "crawl_id": "c1",
    }


def test_a_heartbeat_is_a_file_and_one_that_cannot_be_written_is_a_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "new" / "worker@here"
    touch_heartbeat(file)
    assert file.exists()
    touch_heartbeat(file / "below")
    assert f"Heartbeat file {file / 'below'} not written: " in caplog.text
