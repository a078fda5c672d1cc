"""`perennial site`: add, list, change, pause and remove sites, apply a file of them, block pages, roll a pack back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.arguments import AsJson, Domain, DryRun, Why, Yes
from app.cli.context import operator_context
from app.cli.printing import confirm, print_json, print_lines, print_result
from app.crawl.record.removed_sites import unfinished_removals
from app.crawl.urls import parse_domain
from app.errors import InvalidSite
from app.operations import removal, sites
from app.sites.declared import differences, read_declared
from app.sites.site import Site
from app.sites.stored import list_sites

cli = typer.Typer(no_args_is_help=True, help="Sites: start URLs, schedule, limits, and what their requests need.")

Values = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FIELD=VALUE]...", help="Fields, such as delay=2; a list's field once for each element."),
]
OfSite = Annotated[str, typer.Option("--site", metavar="DOMAIN", help="The site, if it is not the host of the URL.")]
Url = Annotated[str, typer.Argument(help="A page.")]


@cli.command()
def add(domain: Domain, values: Values = None, why: Why = "", as_json: AsJson = False) -> None:
    """Add a site. If it has a schedule, its first crawl starts."""
    site = sites.add(operator_context(), domain, assigned(values or []), why=why)
    _print_site(site, f"{site.domain} added", as_json)


@cli.command("list")
def list_(as_json: AsJson = False) -> None:
    """List all sites with their schedules. Exit 1 without a site."""
    rows = sites.site_rows(operator_context())
    lines = (
        (row["domain"], row["state"], row["schedule"] or "no schedule", f"next {row['next_start'] or 'never'}")
        for row in rows
    )
    if not (print_json(rows) if as_json else print_lines(lines)):
        typer.echo("there is no site", err=True)
        raise typer.Exit(code=1)


@cli.command()
def show(domain: Domain, as_json: AsJson = False) -> None:
    """Show a site: fields that differ from their defaults, last and next start."""
    ops = operator_context()
    site = sites.required_site(ops, domain)
    row = {**site.fields(), **sites.site_row(ops, site)}
    if as_json:
        typer.echo(json.dumps(row))
    else:
        print_lines(
            (name, json.dumps(value) if isinstance(value, list | dict) else "never" if value is None else value)
            for name, value in row.items()
        )


@cli.command("set")
def set_(
    domain: Domain,
    values: Annotated[
        list[str],
        typer.Argument(metavar="FIELD=VALUE...", help="Fields, such as delay=2; an empty value is the default."),
    ],
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Change fields of a site. Workers follow within ten seconds."""
    site, changed = sites.change(operator_context(), domain, partial(assigned, values), why=why)
    changes = "; ".join(f"{name} {old!r} -> {new!r}" for name, (old, new) in changed.items())
    _print_site(site, f"{site.domain}: {changes or 'nothing changes'}", as_json)


@cli.command()
def pause(domain: Domain, why: Why = "", as_json: AsJson = False) -> None:
    """Pause a site: its crawls and its schedule."""
    site, crawls = sites.pause(operator_context(), domain, why=why)
    _print_site(site, f"{site.domain} is paused; crawls that are paused now: {len(crawls)}", as_json)


@cli.command()
def resume(domain: Domain, why: Why = "", as_json: AsJson = False) -> None:
    """Resume a paused site and its crawls. A crawl that was due meanwhile starts once."""
    site, crawls = sites.resume(operator_context(), domain, why=why)
    _print_site(site, f"{site.domain} is active; crawls that go on: {len(crawls)}", as_json)


@cli.command()
def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML with a table [[sites]] for each site.")],
    dry_run: DryRun = False,
    prune: Annotated[bool, typer.Option("--prune", help="Remove the sites that the file does not name.")] = False,
    yes: Yes = False,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Make the sites as a file declares them. Without --prune, those that it does not name stay."""
    ops = operator_context()
    declared = read_declared(file)
    removing = unfinished_removals(ops.store) if prune else ()
    found = differences(declared, list_sites(ops.store), removing=removing)
    removed = [each.domain for each in found if each.act == "remove"] if prune and not dry_run else []
    if removed and not yes:
        confirm(f"Delete all of {', '.join(removed)}, their messages and dead letters?")
    if not dry_run:
        sites.apply(ops, found, declared, why=why)
    if removed:  # At last: it waits for packers, and fails where one does not end.
        removal.remove_sites(ops, removed, why=why)
    differing = [each for each in found if prune or each.act != "remove"]
    if as_json:
        print_json({"act": each.act, "domain": each.domain, "fields": dict(each.fields)} for each in differing)
        return
    for each in found:
        text = f"not in the file: {each.domain}" if each.act == "remove" and not prune else str(each)
        typer.echo(f"would {text}" if dry_run and (prune or each.act != "remove") else text)
    typer.echo(f"{len(declared)} sites declared, {len(differing)} differ")


@cli.command()
def remove(domain: Domain, yes: Yes = False, why: Why = "", as_json: AsJson = False) -> None:
    """Delete all there is of a site, and drop its messages."""
    ops, name = operator_context(), parse_domain(domain)
    found = removal.inventory(ops, name)
    if not as_json:
        typer.echo(f"{name}: {found}" if found else f"{name}: there is nothing but messages, if any")
    if not yes:
        confirm(f"Delete all of {name}, its messages and dead letters?")
    [deleted], letters = removal.remove_sites(ops, [name], why=why)
    text = f"{name}: deleted, and {letters} dead letters; workers drop its messages, searchers follow"
    print_result({**asdict(deleted), "removed_dead_letters": letters}, text, as_json=as_json)


@cli.command()
def block(url: Url, site: OfSite = "", why: Why = "", as_json: AsJson = False) -> None:
    """Remove one page from store, pack and searchers, and never request it again."""
    page = removal.block(operator_context(), url, site=site, why=why)
    text = "removed; searchers follow" if page.stored else "it was not stored"
    print_result(asdict(page), f"{page.url} blocked, and {text}", as_json=as_json)


@cli.command()
def unblock(url: Url, site: OfSite = "", why: Why = "", as_json: AsJson = False) -> None:
    """Allow a blocked page again. The next crawl, or `perennial index --now`, indexes it."""
    page = removal.unblock(operator_context(), url, site=site, why=why)
    print_result(asdict(page), f"{page.url} is no longer blocked", as_json=as_json)


@cli.command()
def rollback(domain: Domain, dry_run: DryRun = False, yes: Yes = False, why: Why = "", as_json: AsJson = False) -> None:
    """Serve the pack again that a site had before its last crawl."""
    ops, name = operator_context(), parse_domain(domain)
    plan = removal.rollback_of(ops, name)
    counts = {"serves": plan.former.generation, "replaces": plan.present.generation, "fetched": plan.fetched}
    if dry_run:
        print_result({"domain": name, **counts}, f"{name}: would serve {plan}", as_json=as_json)
        return
    if not yes:
        confirm(f"{name}: serve {plan}?")
    generation = removal.roll_back(ops, plan, why=why).generation
    text = (
        f"{name}: serves {plan}; searchers follow\n"
        "The next pack has the stored pages as they are: pause the site until its settings are right, or block pages"
    )
    print_result({"domain": name, "generation": generation, **counts}, text, as_json=as_json)


def assigned(values: Sequence[str], former: Site | None = None) -> dict[str, Any]:
    """Return the fields of `FIELD=VALUE` texts: `headers.NAME=SECRET` for tables, a default for an empty value.

    A table keeps the other names of the former site; an empty value removes a name. Raises InvalidSite for a text
    without `=`, and for a field that has no such form or cannot be changed.
    """
    fields: dict[str, Any] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidSite(f"{text!r}: expected FIELD=VALUE")
        field, dot, key = name.strip().partition(".")
        field = field.replace("-", "_")
        default = Site.model_fields[field].get_default(call_default_factory=True) if field in Site.model_fields else ""
        if field == "domain":
            raise InvalidSite("domain: a site keeps its domain; add another site")
        if isinstance(default, dict):
            if not key and value:
                raise InvalidSite(f"{field}: expected {field}.NAME=SECRET")
            table = fields.get(field, getattr(former, field, {}))
            others = {each: secret for each, secret in table.items() if each != key} if key else {}
            fields[field] = {**others, key: value} if value else others
        elif dot:
            raise InvalidSite(f"{field} is no table: expected {field}=VALUE")
        elif not value:
            fields[field] = default
        elif isinstance(default, tuple):
            fields[field] = (*fields.get(field, ()), value)
        else:
            fields[field] = value
    return fields


def _print_site(site: Site, text: str, as_json: bool) -> None:
    print_result({"domain": site.domain, **site.fields()}, text, as_json=as_json)
