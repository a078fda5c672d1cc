"""Acts that take a site, one page of it, or the pack of its last crawl out of what is searched."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from fastapi import Response
from fastapi.responses import HTMLResponse
from pydantic import Field

from app.broker.errors import InvalidMessage
from app.crawl.urls import parse_domain
from app.operations import removal
from app.sites.removal import SiteInventory
from app.web.models import MAX_DOMAIN
from app.web.ops.requests import ActBody, Calling, Domain, Done, OfSite, Reading, Subject, Url, Visit, answer
from app.web.ops.site_page import site_page, site_path
from app.web.paths import OPS_PAGES

subject = Subject()

#: Seconds that a request waits for a packer at work on the site.
PACKER_WAIT: Final = 20.0


class RemoveBody(ActBody):
    """The confirmation of a removal."""

    confirm: str = Field(max_length=MAX_DOMAIN, description="The domain once more.")


class PageBody(ActBody):
    """A page to block or unblock."""

    url: Url
    domain: OfSite = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedAnswer(SiteInventory):
    """What there was of a site that was removed."""

    removed_dead_letters: int


@subject.pages.get("/sites/{domain}/remove", response_class=HTMLResponse)
def confirm(visit: Reading, domain: str) -> HTMLResponse:
    """Show what there is of a site, and the form that deletes it."""
    return _confirm_page(visit, domain)


def _confirm_page(visit: Visit, domain: str, *, fault: str = "") -> HTMLResponse:
    """Return the page with the form; with a `fault`, also what was entered, and why it was refused."""
    name = parse_domain(domain)
    return visit.page(
        "site_remove.html",
        status=400 if fault else 200,
        found=removal.inventory(visit.ops, name),
        domain=name,
        base=site_path(name),
        entered=visit.value("confirm"),
        why=visit.value("why"),
        fault=fault,
    )


@subject.api.get("/sites/{domain}/inventory", response_model=SiteInventory, operation_id="site_inventory")
def site_inventory(ops: Calling, domain: Domain) -> Response:
    """Report what there is of a site, all of which its removal deletes."""
    return answer(removal.inventory(ops, domain))


@subject.act("/sites/{domain}/remove", response_model=RemovedAnswer, operation_id="remove_site", form=_confirm_page)
def remove_site(ops: Calling, domain: Domain, body: RemoveBody) -> Done:
    """Delete all there is of a site, and drop its messages. Waits for requests to the site that are under way."""
    name = parse_domain(domain)
    if body.confirm != name:
        raise InvalidMessage(f"nothing was deleted: type {name} to delete all of it")
    [deleted], letters = removal.remove_sites(ops, [name], why=body.why, packer_wait=PACKER_WAIT)
    note = f"{name} is deleted: {deleted}; {letters} dead letters. Workers drop its messages, searchers follow."
    return Done(RemovedAnswer(**asdict(deleted), removed_dead_letters=letters), f"{OPS_PAGES}/sites", note)


def _site_page(visit: Visit, *, fault: str) -> HTMLResponse:
    """Return the page of the site, which has the form of both acts on a page."""
    return site_page(visit, visit.value("domain"), url_fault=fault)


@subject.act("/block", response_model=removal.BlockedPage, operation_id="block", form=_site_page)
def block(ops: Calling, body: PageBody) -> Done:
    """Remove one page from store, pack and searchers, and never request it again."""
    page = removal.block(ops, body.url, site=body.domain, why=body.why)
    text = "removed; searchers follow" if page.stored else "it was not stored"
    return Done(page, site_path(page.domain), f"{page.url} is blocked, and {text}.")


@subject.act("/unblock", response_model=removal.BlockedPage, operation_id="unblock", form=_site_page)
def unblock(ops: Calling, body: PageBody) -> Done:
    """Allow a blocked page again. The next crawl indexes it."""
    page = removal.unblock(ops, body.url, site=body.domain, why=body.why)
    return Done(page, site_path(page.domain), f"{page.url} is no longer blocked. The next crawl indexes it.")


class RollbackBody(ActBody):
    """The confirmation of a rollback."""

    replaces: int = Field(ge=1, description="The generation that is served now, as the plan has it.")


@subject.pages.get("/sites/{domain}/rollback", response_class=HTMLResponse)
def confirm_rollback(visit: Reading, domain: str) -> HTMLResponse:
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
