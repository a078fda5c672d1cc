"""The act that serves the pack again that a site had before its last crawl."""

from __future__ import annotations

from fastapi import Response
from fastapi.responses import HTMLResponse
from pydantic import Field

from app.crawl.urls import parse_domain
from app.operations import removal
from app.web.ops.api_requests import ActBody, Calling, answer
from app.web.ops.page_requests import Reading
from app.web.ops.parameters import Domain
from app.web.ops.site_page import site_path
from app.web.ops.subject_routes import Done, Subject

subject = Subject()


class RollbackBody(ActBody):
    """The confirmation of a rollback."""

    replaces: int = Field(ge=1, description="The generation that is served now, as the plan has it.")


@subject.pages.get("/sites/{domain}/rollback", response_class=HTMLResponse)
def confirm(visit: Reading, domain: str) -> HTMLResponse:
    """Show what a rollback would serve, and the form that does it."""
    name = parse_domain(domain)
    plan = removal.rollback_of(visit.ops, name)
    return visit.page("site_rollback.html", domain=name, base=site_path(name), plan=plan)


@subject.api.get("/sites/{domain}/rollback", response_model=removal.RollbackReport, operation_id="site_rollback")
def show_rollback(ops: Calling, domain: Domain) -> Response:
    """Report what a rollback would serve, and change nothing."""
    return answer(removal.RollbackReport.of(removal.rollback_of(ops, domain)))


@subject.act("/sites/{domain}/rollback", response_model=removal.RollbackReport, operation_id="roll_back_site")
def roll_back(ops: Calling, domain: Domain, body: RollbackBody) -> Done:
    """Serve the pack again that a site had before its last crawl. Stored pages stay as they are."""
    plan = removal.rollback_of(ops, domain, replaces=body.replaces)
    served = removal.roll_back(ops, plan, why=body.why)
    note = f"{served.domain} serves {plan}. Searchers follow. The next pack has the stored pages as they are."
    return Done(removal.RollbackReport.of(plan, served.generation), site_path(served.domain), note)
