"""Errors as problem JSON (RFC 9457). Each error class names its problem type."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from app.broker.errors import BUSY, INTERNAL, INVALID, TIMEOUT, UNAVAILABLE, ApplicationError
from app.errors import (
    BROKEN,
    LIMITED,
    NEVER_INDEXED,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_PLACED,
    TOO_LONG,
    WITH_BODY,
    ResourceNotFound,
)
from app.web.models import Problem, json_response

MEDIA_TYPE = "application/problem+json"

#: Every problem type by its name.
PROBLEMS = {
    problem.name: problem
    for problem in (
        *(INVALID, NEVER_INDEXED, NOT_PLACED, BUSY, UNAVAILABLE, BROKEN, TIMEOUT, LIMITED),
        *(NOT_FOUND, NOT_ALLOWED, TOO_LONG, WITH_BODY, INTERNAL),
    )
}

router = APIRouter(prefix="/problems", include_in_schema=False)


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


@router.get("/{name}")
async def explain_problem(name: str) -> PlainTextResponse:
    """Explain a problem type."""
    if name not in PROBLEMS:
        raise ResourceNotFound
    problem = PROBLEMS[name]
    again = "" if problem.retry_in is None else " Asking again later makes sense: Retry-After says when."
    return PlainTextResponse(f"{name}: {problem.title}. Its status is {problem.status}.{again}\n")
