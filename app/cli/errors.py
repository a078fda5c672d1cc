"""Errors of a command as text: one place for the services that do not run, wrong settings and our own errors."""

from __future__ import annotations

from dataclasses import dataclass

import redis.exceptions
from kombu.exceptions import OperationalError
from pydantic import ValidationError

from app.broker.errors import ApplicationError, BrokerUnreachable, PublishFailed
from app.errors import unreachable_text
from config.settings import get_settings


@dataclass(frozen=True, slots=True)
class ErrorOutput:
    """What a command prints on standard error, and its exit code."""

    lines: tuple[str, ...]
    exit_code: int = 1


def explained(error: BaseException) -> ErrorOutput | None:
    """Return the output for an expected error, None for any other one."""
    if isinstance(error, ValidationError):
        names = (".".join(str(part) for part in wrong["loc"]).upper() for wrong in error.errors())
        texts = (wrong["msg"].removeprefix("Value error, ") for wrong in error.errors())
        lines = (f"{name}: {text}" if name else text for name, text in zip(names, texts, strict=True))
        return ErrorOutput(tuple(lines), exit_code=2)
    if isinstance(error, (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError)):
        return ErrorOutput((_unreachable("Redis", "REDIS_URL", error),))
    refused = isinstance(error, PublishFailed) and isinstance(error.__cause__, ConnectionError)
    if isinstance(error, (BrokerUnreachable, OperationalError)) or refused:
        return ErrorOutput((_unreachable("RabbitMQ", "BROKER_URL", error),))
    return ErrorOutput((str(error),)) if isinstance(error, ApplicationError) else None


def _unreachable(service: str, variable: str, error: BaseException) -> str:
    url_is_set = bool(getattr(get_settings(), variable.lower()).get_secret_value())
    return unreachable_text(service, variable, error, url_is_set=url_is_set)
