"""Errors as problem JSON (RFC 9457), and what the public may read of them. Each error class names its problem type."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from app.broker.errors import INTERNAL, UNAVAILABLE, ApplicationError, ProblemType
from app.errors import BROKEN, ResourceNotFound
from app.web.models import Problem, json_response

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
#: Problem types whose details are for the operator: they name brokers, files and other insides.
_FOR_OPERATORS = frozenset({BROKEN, UNAVAILABLE, INTERNAL})
#: Seconds in which errors with one reason are logged once. A line for each search would fill the log of an outage.
LOG_INTERVAL = 60.0


def _problems(error: type[ApplicationError]) -> Iterator[ProblemType]:
    yield error.problem
    for each in error.__subclasses__():
        yield from _problems(each)


#: Every problem type by its name.
PROBLEMS = {problem.name: problem for problem in _problems(ApplicationError)}

router = APIRouter(prefix="/problems", include_in_schema=False)

#: When errors with a reason were logged last, in monotonic seconds.
_logged_at: dict[str, float] = {}


def type_of(error: type[ApplicationError]) -> str:
    """Return the problem type: a path of this server that explains it (RFC 9457 section 3.1.1)."""
    return f"{router.prefix}/{error.problem.name}"


def problem_response(error: type[ApplicationError], detail: str = "") -> Response:
    """Return the answer for an error class; `detail` says what is wrong this time."""
    problem = error.problem
    document = Problem(type=type_of(error), title=problem.title, status=problem.status, detail=detail or problem.title)
    response = json_response(document, status=problem.status, media_type=MEDIA_TYPE)
    if problem.retry_in is not None:
        response.headers["Retry-After"] = str(problem.retry_in)
    return response


def detail_of(faults: Iterable[Mapping[str, Any]]) -> str:
    """Return what pydantic says of invalid values, each with the name of its parameter or field.

    A fault of an entry of a list has the name of the list. One of a whole form has no name.
    """
    texts = []
    for each in faults:
        names = [part for part in each["loc"] if isinstance(part, str)]
        texts.append(": ".join((*names[-1:], each["msg"])))
    return "; ".join(texts)


def public_detail(error: ApplicationError) -> str:
    """Return the text of an error, or an empty string if it is for the operator only: then it is logged instead."""
    if error.problem not in _FOR_OPERATORS:
        return str(error)
    now = time.monotonic()
    if now - _logged_at.get(error.reason, -LOG_INTERVAL) >= LOG_INTERVAL:
        _logged_at[error.reason] = now
        log.warning(
            "Searches fail (%s), the next line about it in %g s: %s",
            error.reason,
            LOG_INTERVAL,
            str(error) or repr(error),
        )
    return ""


@router.get("/{name}")
async def explain_problem(name: str) -> PlainTextResponse:
    """Explain a problem type."""
    if name not in PROBLEMS:
        raise ResourceNotFound
    problem = PROBLEMS[name]
    again = "" if problem.retry_in is None else " Asking again later makes sense: Retry-After says when."
    return PlainTextResponse(f"{name}: {problem.title}. Its status is {problem.status}.{again}\n")
