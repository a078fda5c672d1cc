"""Errors of a command as text: one place for the services that do not run, wrong settings and our own errors."""

from __future__ import annotations

import errno
from collections.abc import Mapping

import redis.exceptions
from kombu.exceptions import OperationalError
from pydantic import ValidationError

from app.broker.errors import ApplicationError, BrokerUnreachable, PublishFailed, RequestTimedOut
from app.errors import NotPlaced, PackNotFound, SearchUnavailable
from app.operations.unreachable import unreachable_text
from config.settings import get_settings

_SEARCH_REMEDY = (
    "start the orchestrator and searchers with `perennial up`, or search a pack's file with"
    " `perennial search --pack FILE`"
)
#: Numbers of errors without a file's name that come of the standard output. A reader that has ended needs no line.
_OUTPUT_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE})
#: What a user can do about errors of searches.
_REMEDIES: Mapping[type[Exception], str] = {
    SearchUnavailable: _SEARCH_REMEDY,
    RequestTimedOut: _SEARCH_REMEDY,
    PackNotFound: "`perennial index --crawl URL` indexes a site, and `perennial status DOMAIN` shows how far it is",
    NotPlaced: "`perennial searchers` shows where every pack is",
}


def explained(error: BaseException) -> tuple[int, list[str]] | None:
    """Return exit code and lines on standard error for an expected error, None for any other one."""
    if isinstance(error, ValidationError):
        names = (".".join(str(part) for part in wrong["loc"]).upper() for wrong in error.errors())
        texts = (wrong["msg"].removeprefix("Value error, ") for wrong in error.errors())
        return 2, [f"{name}: {text}" if name else text for name, text in zip(names, texts, strict=True)]
    if isinstance(error, (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError)):
        return 1, [unreachable_text("Redis", error, get_settings())]
    if isinstance(error, redis.exceptions.RedisError):
        return 1, [f"Redis refuses: {error}. Check REDIS_URL, and the log of Redis"]
    if isinstance(error, PublishFailed) and isinstance(error.__cause__, ConnectionError):
        return 1, [unreachable_text("RabbitMQ", error, get_settings())]
    # A search client tries again, and then reports what failed as the cause.
    cause = error.__cause__ if isinstance(error, SearchUnavailable) else error
    if isinstance(cause, (BrokerUnreachable, OperationalError)):
        return 1, [unreachable_text("RabbitMQ", cause, get_settings())]
    if isinstance(error, OSError) and error.errno in _OUTPUT_ERRORS and error.filename is None:
        return 1, [f"the output cannot be written: {error.strerror}"] if error.errno != errno.EPIPE else []
    remedy = next((text for kind, text in _REMEDIES.items() if isinstance(error, kind)), None)
    return (1, [str(error), *([remedy] if remedy else [])]) if isinstance(error, ApplicationError) else None
