"""Log lines: for people or for programs, with the task that they are about and without a secret."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from celery import Celery
from pydantic import SecretStr

from config.logs import MASK, TEXT, JsonFormatter, LineFormatter, ScrubbingFormatter, secrets_in
from config.settings import Settings

pytestmark = pytest.mark.unit

SETTINGS = Settings(
    broker_url=SecretStr("amqp://me:hush%2F4711@mq.example//;amqp://me:other4711@two.example//"),
    archive_secret_key=SecretStr("archive4711"),
    account_passwords=SecretStr("worker=worker4711,web=web4711"),
    site_secrets=SecretStr('{"token": "site4711"}'),
    webhook_secret=SecretStr(""),
)


def formatted(formatter: type[ScrubbingFormatter], message: str, *arguments: object, **extra: Any) -> str:
    """Return the line of a record."""
    fmt = TEXT if formatter is LineFormatter else "%(message)s"
    record = logging.getLogger("app.crawl").makeRecord(
        "app.crawl", logging.WARNING, "page.py", 1, message, arguments, None, extra=extra
    )
    return formatter(fmt, secrets=secrets_in(SETTINGS)).format(record)


@pytest.mark.parametrize("formatter", [LineFormatter, JsonFormatter])
@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("no answer from https://user:pass@site.example/a?b=1", f"no answer from https://{MASK}@site.example/a?b=1"),
        ("https://site.example/@kim?to=a@b", "https://site.example/@kim?to=a@b"),
        ("login hush/4711 or hush%2F4711 refused", f"login {MASK} or {MASK} refused"),
        ("other4711 archive4711 worker4711 web4711 site4711", " ".join([MASK] * 5)),
    ],
)
def test_no_line_shows_a_secret(formatter: type[ScrubbingFormatter], said: str, written: str) -> None:
    line = formatted(formatter, "%s", said)
    assert (json.loads(line)["message"] if formatter is JsonFormatter else line.split("app.crawl ")[1]) == written


def test_a_line_of_the_main_process_names_the_message_that_it_is_about() -> None:
    assert "app.crawl [abc] retry [] of it" in formatted(LineFormatter, "retry [] of it", task_id="abc")
    assert "app.crawl retry" in formatted(LineFormatter, "retry")
    line = json.loads(formatted(JsonFormatter, "retry", data={"id": "abc"}))
    assert (line["task_id"], line["level"], line["logger"]) == ("abc", "WARNING", "app.crawl")
    assert {"time", "process", "pid"} <= set(line)
    assert "task_id" not in json.loads(formatted(JsonFormatter, "retry"))
    begins = {"task": "site.index_and_crawl", "task_id": "c1", "attempt": 2}
    line = json.loads(formatted(JsonFormatter, "retry", **begins, task_kwargs={"url": "https://kim@Site.example/"}))
    assert line | begins | {"crawl_id": "c1", "domain": "site.example"} == line
    assert line["url"] == f"https://{MASK}@Site.example/"
    text = formatted(LineFormatter, "retry", **begins, task_kwargs={"url": "https://kim@Site.example/"})
    assert "app.crawl [c1 site.index_and_crawl attempt=2 domain=site.example crawl_id=c1] retry" in text


def test_a_line_of_a_task_names_its_site_and_crawl_and_json_is_one_line() -> None:
    app = Celery("lines", set_as_current=False)
    lines: list[str] = []

    @app.task(name="site.page")  # type: ignore[untyped-decorator]
    def page(**_message: Any) -> None:
        lines.extend(formatted(formatter, "first\nsecond") for formatter in (LineFormatter, JsonFormatter))

    url = "https://kim:secret@site.example/a"
    page.apply(kwargs={"url": url, "domain": "site.example", "crawl_id": "c1", "depth": 1}, task_id="abc")
    [text, line] = lines
    assert "app.crawl [abc site.page attempt=1 domain=site.example crawl_id=c1] first\nsecond" in text
    assert "\n" not in line
    entry = json.loads(line)
    assert entry["message"] == "first\nsecond"
    assert {name: entry[name] for name in ("task_id", "task", "attempt", "url", "domain", "crawl_id")} == {
        "task_id": "abc",
        "task": "site.page",
        "attempt": 1,
        "url": f"https://{MASK}@site.example/a",
        "domain": "site.example",
        "crawl_id": "c1",
    }
