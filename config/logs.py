"""Logging: one line for each event, with the process and, where there is one, the task's id."""

from __future__ import annotations

import logging
import logging.config

from celery.app.log import TaskFormatter

from config.settings import get_settings

#: Loggers of Celery that write a line for each message or tick ("received", "succeeded", "ignored", "Discarding revoked
#: task"). These lines are for debugging; Flower shows the same. Warnings of these loggers are logged.
CHATTY = ("celery.worker.strategy", "celery.worker.request", "celery.app.trace", "celery.beat")


class LineFormatter(TaskFormatter):  # type: ignore[misc]
    """Add the id of a record's task in brackets: of the running task, or of the message that the record is about.

    A worker's main process runs no task. Its records name the message by `extra={"task_id": ...}`, or as Celery does,
    by an `id` in `extra={"data": ...}`. A record that is about no message has no brackets.
    """

    def format(self, record: logging.LogRecord) -> str:
        data = getattr(record, "data", None)
        task_id = getattr(record, "task_id", None) or (data.get("id") if isinstance(data, dict) else None)
        record.task_id = task_id or ""
        line: str = super().format(record)
        return line.replace(" [] ", " ", 1)


def configure(level: int | str | None = None) -> None:
    """Set up logging of this process to standard error, at `level` or the setting LOG_LEVEL."""
    chosen = level or get_settings().log_level
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "line": {
                    "()": LineFormatter,
                    "fmt": "%(asctime)s %(levelname)-7s %(processName)s %(name)s [%(task_id)s] %(message)s",
                    "use_color": False,
                }
            },
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
            "root": {"level": chosen, "handlers": ["stderr"]},
        }
    )
    if logging.getLogger().level > logging.DEBUG:
        for name in CHATTY:
            logging.getLogger(name).setLevel(logging.WARNING)
