"""`perennial index`, `pack`, `status`, `pause`, `resume`, `cancel` and `repair`: crawls and packs of a site."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import Annotated

import typer

from app.cli.arguments import AsJson, Domain, Why
from app.cli.context import operator_context
from app.cli.printing import print_json, print_result
from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.values import Progress
from app.crawl.record.crawls import CrawlState
from app.crawl.urls import has_scheme, parse_domain
from app.errors import ActRefused, ForbiddenAddress
from app.operations import crawls
from app.operations.crawls import page_of
from app.redis_state.client import get_redis
from app.sites.status import status as status_of
from config.settings import get_settings

cli = typer.Typer()


@cli.command()
def index(
    url: Annotated[str, typer.Argument(help="A page, or a site's start page with --crawl.")],
    crawl: Annotated[bool, typer.Option("--crawl", help="Follow its links too, and pack the whole site.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="With --crawl: show the progress until the crawl ends.")] = False,
    now: Annotated[bool, typer.Option("--now", help="Pack a page as soon as it is stored.")] = False,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Index a page, or with --crawl the whole site from it."""
    if crawl and now:
        raise typer.BadParameter("--crawl and --now do not go together: a crawl is packed when it has ended")
    if wait and not crawl:
        raise typer.BadParameter("--wait needs --crawl")
    url, note = _with_scheme(url)
    page = page_of(url)
    former = _progress(page.domain) if wait else None
    done = crawls.index(operator_context(), page.url, crawl=crawl, now=now, why=why)
    if not (wait and as_json):  # The status is the one document then.
        more = f"\n`perennial status --watch {page.domain}` shows how far it is" if crawl and not wait else ""
        print_result(asdict(done), f"{done.posted} of {page.url} posted{note}{more}", as_json=as_json)
    if former is not None:
        _watch(page.domain, former=former.crawl.id if former.crawl else "", pages=former.seen, quiet=as_json)
        _show_status(page.domain, as_json)


@cli.command()
def pack(
    domain: Annotated[str, typer.Argument(help="The site's domain.")],
    full: Annotated[bool, typer.Option("--full", help="Pack every stored page.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Build all of it again, even if much smaller.")] = False,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Pack a domain now."""
    done = crawls.pack(operator_context(), domain, full=full, force=force, why=why)
    print_result(asdict(done), f"{done.posted} of {done.domain} posted", as_json=as_json)


@cli.command()
def status(
    domain: Annotated[
        str, typer.Argument(metavar="[DOMAIN]", help="The site's domain; without it, processes and outages.")
    ] = "",
    watch: Annotated[bool, typer.Option("--watch", help="Show the progress of its crawl until that ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Report a domain, or without one the processes of `perennial up` and outages."""
    if watch and not domain:
        raise typer.BadParameter("--watch needs a domain")
    if domain:
        name = parse_domain(domain)
        if watch and _progress(name).crawl is not None:
            _watch(name, quiet=as_json)
        _show_status(name, as_json)
        return
    # Imported for the processes only: the services' clients take a fifth of the CPU time of `perennial status DOMAIN`.
    from app.cli.up import print_processes

    raise typer.Exit(code=not print_processes(as_json=as_json))


@cli.command()
def pause(domain: Domain, why: Why = "", as_json: AsJson = False) -> None:
    """Pause a domain's crawls: open pages go back to their backlogs."""
    _change(domain, "paused", why, as_json)


@cli.command()
def resume(domain: Domain, why: Why = "", as_json: AsJson = False) -> None:
    """Resume a domain's paused crawls."""
    _change(domain, "running", why, as_json)


@cli.command()
def cancel(domain: Domain, why: Why = "", as_json: AsJson = False) -> None:
    """Cancel a domain's crawls for good. Stored pages are packed."""
    _change(domain, "cancelled", why, as_json)


@cli.command()
def repair(
    domain: Annotated[str, typer.Argument(metavar="[DOMAIN]", help="The site's domain; without it, all sites.")] = "",
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Compare the store with Redis, and begin again what is missing there."""
    actions = crawls.repair(operator_context(), domain, why=why)
    if as_json:
        print_json({"domain": action.domain, "action": action.text} for action in actions)
        return
    typer.echo("\n".join(map(str, actions)) or "nothing was missing")


def _change(domain: str, state: CrawlState, why: str, as_json: bool) -> None:
    """Change the state of a domain's crawls, and print which; exit 1 without one."""
    done, refusal = crawls.ChangedCrawls(domain=parse_domain(domain), state=state, crawls=[]), ""
    try:
        done = crawls.change_crawls(operator_context(), domain, state, why=why)
    except ActRefused as error:
        refusal = str(error)
    if as_json or done.crawls:
        text = "\n".join(f"crawl {crawl_id} of {done.domain} is {state}" for crawl_id in done.crawls)
        print_result(asdict(done), text, as_json=as_json)
    else:
        typer.echo(refusal, err=True)
    if not done.crawls:
        raise typer.Exit(code=1)


def _progress(domain: str) -> Progress:
    settings = get_settings()
    return Frontier(get_redis(settings.redis)).progress(domain)


def _watch(domain: str, *, former: str = "", pages: int = 0, quiet: bool) -> None:
    """Show the progress of a crawl until it has ended; Ctrl-C ends the watch, and the crawl goes on."""
    # Imported for a watch only: rich takes as much CPU time as the rest of `perennial status`.
    from rich.console import Console

    from app.cli.progress import watch as watch_crawl

    with suppress(KeyboardInterrupt):
        watch_crawl(
            lambda: _progress(domain), console=Console(quiet=quiet, highlight=False), former=former, former_pages=pages
        )


def _show_status(domain: str, as_json: bool) -> None:
    found = status_of(domain)
    print_result(asdict(found), str(found), as_json=as_json)
    # A mistyped domain, or one without its port, would look like a site that has nothing to report.
    has_work = found.crawl_id is not None or found.timer is not None or found.packing
    if not (has_work or found.pack or found.reasons or as_json):
        failed = f"`perennial dead list --domain {domain}` lists what failed"
        typer.echo(f"perennial: there is no crawl, timer or pack of {domain}; {failed}", err=True)


def _with_scheme(url: str) -> tuple[str, str]:
    """Return a URL with the scheme that its host answers to, and a note about it if the user gave none."""
    if has_scheme(url) or url.startswith("//"):
        return url, ""
    # Imported for `index` only: requests takes a fifth of the CPU time of `perennial status`.
    from app.http.addresses import AddressPolicy
    from app.http.api_client import ApiClient, answering_scheme

    settings = get_settings()
    client = ApiClient(
        user_agent=settings.user_agent,
        connect_timeout=5.0,
        response_timeout=settings.response_timeout,
        policy=AddressPolicy(settings.allow_private_hosts),
    )
    try:
        scheme = answering_scheme(page_of(url).url, client)
    except ForbiddenAddress as error:  # The workers decide, which may have another ALLOW_PRIVATE_HOSTS.
        return f"https://{url}", f" ({error}; https is assumed)"
    if scheme is None:
        return f"https://{url}", " (neither https nor http answers; https is assumed)"
    return f"{scheme}://{url}", f" ({scheme} answers)"
