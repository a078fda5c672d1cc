"""Faults as answers to programs: application/problem+json of RFC 9457."""

from __future__ import annotations

from fastapi import Response

from app.web.faults import Fault
from app.web.models import Problem, as_json

MEDIA_TYPE = "application/problem+json"


def problem(fault: Fault, detail: str = "") -> Response:
    """Return a fault, with what is at fault this time."""
    answer = as_json(
        Problem(
            type=f"/problems/{fault.name}",
            title=fault.title,
            status=fault.status,
            detail=detail or fault.title,
        ),
        status=fault.status,
        media_type=MEDIA_TYPE,
    )
    if fault.retry_after is not None:
        answer.headers["Retry-After"] = str(fault.retry_after)
    return answer
