"""The audit: every act and every refusal, the latest first."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from fastapi import Query, Response
from fastapi.responses import HTMLResponse
from pydantic import Field

from app.operations.audit import AuditEntry
from app.web.models import StrictParameters
from app.web.ops.requests import Calling, Reading, Subject, answer

subject = Subject()

#: Entries of one page.
_PER_PAGE = 50


class AuditParameters(StrictParameters):
    """Query parameters of the audit."""

    before: str = Field("", max_length=200, description="The `key` of the last entry that was read.")
    limit: int = Field(_PER_PAGE, ge=1, le=500, description="Entries to answer with, at most.")


@subject.pages.get("/audit", response_class=HTMLResponse)
def show_audit(visit: Reading, before: str = "") -> HTMLResponse:
    """Show a page of entries; `before` is the key of the last entry of the page before."""
    found = list(islice(visit.ops.audit.entries(before=before), _PER_PAGE + 1))
    older = found[_PER_PAGE - 1].key if len(found) > _PER_PAGE else ""
    return visit.page("audit.html", entries=found[:_PER_PAGE], older=older, is_first=not before)


@subject.api.get("/audit", response_model=list[AuditEntry], operation_id="audit")
def audit(ops: Calling, parameters: Annotated[AuditParameters, Query()]) -> Response:
    """List the acts of operators and the refusals, the latest first."""
    return answer(list(islice(ops.audit.entries(before=parameters.before), parameters.limit)))
