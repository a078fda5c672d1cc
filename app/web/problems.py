"""Faults as answers to programs: application/problem+json of RFC 9457."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException

from app.web.faults import FAULTS, Fault
from app.web.models import Problem, as_json

MEDIA_TYPE = "application/problem+json"
_PATH = "/problems/"

router = APIRouter(include_in_schema=False)


def type_of(fault: Fault) -> str:
    """Return the problem type: a path of this server (RFC 9457 section 3.1.1), where it says what it means."""
    return f"{_PATH}{fault.name}"


def problem(fault: Fault, detail: str = "") -> Response:
    """Return a fault, with what is at fault this time."""
    told = Problem(type=type_of(fault), title=fault.title, status=fault.status, detail=detail or fault.title)
    answer = as_json(told, status=fault.status, media_type=MEDIA_TYPE)
    if fault.retry_after is not None:
        answer.headers["Retry-After"] = str(fault.retry_after)
    return answer


@router.get(f"{_PATH}{{name}}")
async def explained(name: str) -> PlainTextResponse:
    """Say what a problem type means."""
    fault = next((fault for fault in FAULTS if fault.name == name), None)
    if fault is None:
        raise HTTPException(404)
    again = "" if fault.retry_after is None else " Asking again later makes sense: Retry-After says when."
    return PlainTextResponse(f"{fault.name}: {fault.title}. Its status is {fault.status}.{again}\n")
