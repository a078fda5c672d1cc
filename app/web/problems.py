"""Faults as answers to programs: application/problem+json of RFC 9457."""

from __future__ import annotations

from fastapi import Response

from app.web.faults import Fault
from app.web.models import Problem, as_json

MEDIA_TYPE = "application/problem+json"


def problem(fault: Fault, detail: str = "", *, status: int | None = None) -> Response:
    """Return a fault, with what is at fault this time; `status` where the kind of fault has several."""
    answer = as_json(
        Problem(
            type=f"/problems/{fault.name}",
            title=fault.title,
            status=status or fault.status,
            detail=detail or fault.title,
        ),
        status=status or fault.status,
        media_type=MEDIA_TYPE,
    )
    if fault.retry_after is not None:
        answer.headers["Retry-After"] = str(fault.retry_after)
    return answer
