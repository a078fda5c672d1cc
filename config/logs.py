"""Logging: one line for each event, with the process and, where there is one, the task's id."""

from __future__ import annotations

import logging
import logging.handlers
import re
import sys
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

import structlog
from celery import current_task
from pydantic import SecretStr
from structlog.typing import EventDict, Processor

from config.routes import ROUTE_BY_TYPE
from config.settings import Settings, get_settings

#: Loggers of Celery that write a line for each message or tick ("received", "succeeded", "ignored", "Discarding revoked
#: task"). These lines are for debugging; Flower shows the same. Warnings of these loggers are logged.
CHATTY = ("celery.worker.strategy", "celery.worker.request", "celery.app.trace", "celery.beat")

#: Fields that only JSON has: they make a line of text long.
ONLY_JSON = frozenset({"pid", "url"})

#: Written in place of a secret.
MASK = "********"

#: What a line says of a task, besides its name, id and attempt, by the fields of its message.
ABOUT = ("url", "domain", "crawl_id")

#: The tasks whose message begins a crawl unless it names one. Its id is the crawl's.
BEGINS_CRAWL = frozenset(ROUTE_BY_TYPE[kind].task for kind in ("index+crawl", "crawl"))

#: The password of each URL in a setting. Python 3.13's `urlsplit` refuses several hosts, of which one is IPv6.
_PASSWORD = re.compile(r"://[^:/?#]*:([^/?#]*)@")

#: Characters of the shortest secret that is masked: a shorter one may be a word.
_SHORTEST = 6


def secrets_in(settings: Settings) -> re.Pattern[str]:
    """Return the pattern of what no line may show: user and password of any URL, and each secret of the settings."""
    values = {name: getattr(settings, name) for name in Settings.model_fields}
    given = {name: value.get_secret_value() for name, value in values.items() if isinstance(value, SecretStr)}
    found = {*settings.passwords_of_accounts.values()}
    with suppress(ValueError, OSError):  # What needs them reports it.
        found.update(settings.secrets_of_sites().values())
    for name, value in given.items():
        if name.endswith("_url"):
            found.update(_PASSWORD.findall(value))
        elif name.endswith("archive_keys"):
            found.update(value.split(":"))
        elif name not in ("account_passwords", "site_secrets"):
            found.add(value)
    found |= {unquote(secret) for secret in found}
    longest_first = sorted((secret for secret in found if len(secret) >= _SHORTEST), key=len, reverse=True)
    return re.compile("|".join([r"://[^\s/?#]*@", *map(re.escape, longest_first)]))


def scrub(text: str, secrets: re.Pattern[str]) -> str:
    """Return a text with a mask in place of each secret."""
    return secrets.sub(lambda found: f"://{MASK}@" if found[0].startswith("://") else MASK, text)


def visible(value: object) -> str:
    """Return a text in which each invisible character but spaces and line ends is escaped: a message has any text.

    Among them are control characters, those that change the direction of text, and halves of surrogate pairs.
    """
    text = str(value)
    if text.isprintable():  # Nearly every text is.
        return text
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )


def formatter(settings: Settings, *, as_json: bool, colors: bool = False) -> structlog.stdlib.ProcessorFormatter:
    """Return what makes a line of a record, without secrets: a JSON object, or text for people.

    A traceback is the field `exception` of the object, and lines below the text. Characters that a terminal would
    obey, or that no file can hold, are escaped: texts of servers and clients have any.
    """
    secrets = secrets_in(settings)

    def clean(_logger: Any, _method: str, fields: EventDict) -> EventDict:
        return {
            name: each if isinstance(each, int) else visible(scrub(str(each), secrets)) for name, each in fields.items()
        }

    processors: list[Processor] = [
        structlog.processors.TimeStamper(fmt="iso", key="time"),
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        _add_context,
        structlog.processors.format_exc_info,
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        clean,
    ]
    if as_json:
        renamed = structlog.processors.EventRenamer("message")
        processors += [renamed, structlog.processors.JSONRenderer(ensure_ascii=False)]
    else:
        processors += [
            _for_people,
            structlog.dev.ConsoleRenderer(colors=colors, timestamp_key="time", sort_keys=False),
        ]
    return structlog.stdlib.ProcessorFormatter(processors=processors)


def _add_context(_logger: Any, _method: str, fields: EventDict) -> EventDict:
    record = fields["_record"]
    return {**fields, "process": record.processName, "pid": record.process, **about_task(record)}


def _for_people(_logger: Any, _method: str, fields: EventDict) -> EventDict:
    """Return the fields of a line of text; further lines of its message are below it, as a traceback is."""
    first, _, further = fields["event"].partition("\n")
    below = "\n".join(filter(None, (further, fields.get("exception"))))
    shown = {name: each for name, each in fields.items() if name not in ONLY_JSON}
    return shown | {"event": first} | ({"exception": below} if below else {})


def about_task(record: logging.LogRecord | None) -> dict[str, Any]:
    """Return the task that runs or that a record names, its attempt, and what its message says of the site and crawl.

    A worker's main process runs no task. Its records name the message by `extra={"task_id": ...}`, perhaps with `task`,
    `attempt` and `task_kwargs`, or as Celery does, by an `id` in `extra={"data": ...}`. Only what is given is returned.
    """
    task = current_task
    if task and task.request:
        ident, name, attempt, message = task.request.id, task.name, task.request.retries + 1, task.request.kwargs
    else:
        data = getattr(record, "data", None)
        ident = getattr(record, "task_id", "") or (data.get("id", "") if isinstance(data, dict) else "")
        name, attempt = getattr(record, "task", ""), getattr(record, "attempt", "")
        message = getattr(record, "task_kwargs", None)
    message = message if isinstance(message, dict) else {}
    about = {
        "task_id": ident,
        "task": name,
        "attempt": attempt,
        **{name: message[name] for name in ABOUT if name in message},
    }
    if "domain" not in about and "url" in about:
        with suppress(ValueError):  # The task refuses an invalid URL.
            about["domain"] = urlsplit(str(about["url"])).netloc.rpartition("@")[2].lower()
    if message.get("more"):  # Its lines may be about any of its pages.
        about.pop("url", None)
    if name in BEGINS_CRAWL:
        about.setdefault("crawl_id", ident)
    return {name: value for name, value in about.items() if value}


def configure(level: int | str | None = None, file: str | None = None) -> None:
    """Set up logging of this process to standard error or a file, at `level` or the setting LOG_LEVEL."""
    settings = get_settings()
    handler: logging.Handler = logging.StreamHandler()
    if file:
        # It opens the file again after a rotation.
        handler = logging.handlers.WatchedFileHandler(file, encoding="utf-8")
    handler.setFormatter(
        formatter(settings, as_json=settings.log_format == "json", colors=not file and sys.stderr.isatty())
    )
    logging.basicConfig(level=level or settings.log_level, handlers=[handler], force=True)
    if logging.getLogger().level > logging.DEBUG:
        for name in CHATTY:
            logging.getLogger(name).setLevel(logging.WARNING)
