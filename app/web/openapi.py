"""The description of the API: FastAPI's, with every fault and header field that it cannot know of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from app.web.faults import (
    BROKEN,
    BUSY,
    INTERNAL,
    INVALID,
    LIMITED,
    NEVER_INDEXED,
    NOT_PLACED,
    TIMEOUT,
    TOO_LONG,
    UNAVAILABLE,
    WITH_BODY,
    Fault,
)
from app.web.models import Problem
from app.web.problems import MEDIA_TYPE, type_of

TEXT = """\
Search the sites that are indexed here.

What is not understood is refused, parameters that are not listed too: left out in silence, a filter that is mistyped
would change what the answer means.

A fault is answered with `application/problem+json` (RFC 9457), and its `type` tells the kinds of faults apart. Where
asking again makes sense, `Retry-After` says after how many seconds. Searches and suggestions of one address are
limited: `RateLimit-Policy` and `RateLimit` say to how many, and how many are left.
"""

#: Faults of every operation, and of those that search.
_ANY = (INVALID, WITH_BODY, TOO_LONG, INTERNAL, UNAVAILABLE)
_SEARCHING = (*_ANY, NEVER_INDEXED, LIMITED, NOT_PLACED, BUSY, BROKEN, TIMEOUT)
_FAULTS = {"/api/v1/search": _SEARCHING, "/api/v1/suggest": _SEARCHING}

_QUOTA = {
    "RateLimit-Policy": {
        "schema": {"type": "string"},
        "description": 'Quota and window in s: `"searches";q=600;w=60`.',
    },
    "RateLimit": {
        "schema": {"type": "string"},
        "description": 'What is left, and s until more: `"searches";r=599;t=1`.',
    },
}
_RETRY_AFTER = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}, "description": "Seconds."}}
_REF = "#/components/schemas/{model}"


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description of an application."""
    found = get_openapi(title=app.title, version=app.version, description=TEXT, routes=app.routes)
    schemas = found["components"]["schemas"]
    # FastAPI would answer what is invalid with these; ours are problems.
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    schemas["Problem"] = TypeAdapter(Problem).json_schema(ref_template=_REF, mode="serialization")
    for path, item in found["paths"].items():
        faults = _FAULTS.get(path, _ANY)
        responses = item["get"]["responses"]
        responses.pop("422", None)
        if LIMITED in faults:
            responses["200"]["headers"] = _QUOTA
        responses.update(_responses(faults))
    return found


def _responses(faults: Iterable[Fault]) -> dict[str, Any]:
    by_status: dict[int, list[Fault]] = {}
    for fault in faults:
        by_status.setdefault(fault.status, []).append(fault)
    return {str(status): _response(kinds) for status, kinds in sorted(by_status.items())}


def _response(kinds: list[Fault]) -> dict[str, Any]:
    """Describe the answer with one status, which tells of one of several kinds of faults."""
    types = [type_of(fault) for fault in kinds]
    schema = {"allOf": [{"$ref": _REF.format(model="Problem")}, {"properties": {"type": {"enum": types}}}]}
    headers = (_RETRY_AFTER if any(fault.retry_after for fault in kinds) else {}) | (_QUOTA if LIMITED in kinds else {})
    return {
        "description": "; ".join(f"{fault.title} (`{type_of(fault)}`)" for fault in kinds),
        "content": {MEDIA_TYPE: {"schema": schema}},
        **({"headers": headers} if headers else {}),
    }
