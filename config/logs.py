"""Logging: one line an event, with the process and, within a task, the task's id."""

from __future__ import annotations

import logging
import logging.config

from config.settings import get_settings

#: Celery's two lines a message ("received", "succeeded") and one a tick are for debugging; Flower shows the same.
CHATTY = ("celery.worker.strategy", "celery.app.trace", "celery.beat")


def configure(level: int | str | None = None) -> None:
    """Set up logging of this process to standard error, at `level` or the setting LOG_LEVEL."""
    chosen = level or get_settings().log_level
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "line": {
                    "()": "celery.app.log.TaskFormatter",
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
