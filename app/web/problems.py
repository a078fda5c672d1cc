"""Errors as problem JSON (RFC 9457). The error classes carry type, status and title."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from app.broker.errors import ApplicationError, InvalidMessage, Overloaded
from app.errors import (
    BodyRefused,
    MethodNotAllowed,
    NotPlaced,
    PackError,
    PackNotFound,
    ResourceNotFound,
    SearchTimeout,
    SearchUnavailable,
    TooManySearches,
    UriTooLong,
)
from app.web.models import Problem, json_response

MEDIA_TYPE = "application/problem+json"

#: One error class for each problem type. Every other error class has the type of one in this list.
PROBLEMS: tuple[type[ApplicationError], ...] = (
    InvalidMessage,
    PackNotFound,
    NotPlaced,
    Overloaded,
    SearchUnavailable,
    PackError,
    SearchTimeout,
    TooManySearches,
    ResourceNotFound,
    MethodNotAllowed,
    UriTooLong,
    BodyRefused,
    ApplicationError,
)

router = APIRouter(prefix="/problems", include_in_schema=False)


def type_of(error: type[ApplicationError]) -> str:
    """Return the problem type: a path of this server that explains it (RFC 9457 section 3.1.1)."""
    return f"{router.prefix}/{error.problem}"


def problem_response(error: type[ApplicationError], detail: str = "") -> Response:
    """Return the answer for an error class; `detail` says what is wrong this time."""
    document = Problem(type=type_of(error), title=error.title, status=error.status, detail=detail or error.title)
    response = json_response(document, status=error.status, media_type=MEDIA_TYPE)
    if error.retry_in is not None:
        response.headers["Retry-After"] = str(error.retry_in)
    return response


@router.get("/{name}")
async def explain_problem(name: str) -> PlainTextResponse:
    """Explain a problem type."""
    for error in PROBLEMS:
        if error.problem == name:
            again = "" if error.retry_in is None else " Asking again later makes sense: Retry-After says when."
            return PlainTextResponse(f"{name}: {error.title}. Its status is {error.status}.{again}\n")
    raise ResourceNotFound
