"""`perennial site`: add, list, show, change, pause and resume sites, and apply a file of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli import site_removal
from app.cli.arguments import AsJson, Domain, Why, Yes
from app.cli.context import operations
from app.cli.printing import confirm, print_json, print_lines, print_result
from app.errors import InvalidSite
from app.operations import sites
from app.operations.removal import remove_sites
from app.sites.declared import differences, read_declared
from app.sites.site import Site
from app.sites.stored import list_sites

cli = typer.Typer(no_args_is_help=True, help="Sites: start URLs, schedule, limits, and what their requests need.")

cli.command()(site_removal.remove)
cli.command()(site_removal.block)
cli.command()(site_removal.unblock)
cli.command()(site_removal.rollback)

Values = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FIELD=VALUE]...", help="Fields, such as delay=2; a list's field once for each element."),
]


@cli.command()
def add(domain: Domain, values: Values = None, why: Why = "", as_json: AsJson = False) -> None:
    """Add a site. If it has a schedule, its first crawl starts."""
    site = sites.add(operations(), domain, assigned(values or []), why=why)
    _print_site(site, f"{site.domain} added", as_json)


@cli.command("list")
def list_(as_json: AsJson = False) -> None:
    """List all sites with their schedules. Exit 1 without a site."""
    rows = sites.site_rows(operations())
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
    ops = operations()
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
    site, changed = sites.change(operations(), domain, partial(assigned, values), why=why)
    changes = "; ".join(f"{name} {old!r} -> {new!r}" for name, (old, new) in changed.items())
    _print_site(site, f"{site.domain}: {changes or 'nothing changes'}", as_json)


@cli.command()
def pause(domain: Domain, why: Why = "", as_json: AsJson = False) -> None:
    """Pause a site: its crawls and its schedule."""
    site, crawls = sites.pause(operations(), domain, why=why)
    _print_site(site, f"{site.domain} is paused, and {len(crawls)} crawls of it", as_json)


@cli.command()
def resume(domain: Domain, why: Why = "", as_json: AsJson = False) -> None:
    """Resume a paused site and its crawls. A crawl that was due meanwhile starts once."""
    site, crawls = sites.resume(operations(), domain, why=why)
    _print_site(site, f"{site.domain} is active, and {len(crawls)} crawls of it go on", as_json)


@cli.command()
def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML with a table [[sites]] for each site.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would change.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Remove the sites that the file does not name.")] = False,
    yes: Yes = False,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Make the sites as a file declares them. Without --prune, those that it does not name stay."""
    ops = operations()
    declared = read_declared(file)
    found = differences(declared, list_sites(ops.store))
    removed = [each.domain for each in found if each.act == "remove"] if prune and not dry_run else []
    if removed and not yes:
        question = f"Delete all of {', '.join(removed)}, their messages and dead letters?"
        confirm(question, without_terminal="without a terminal, add --yes")
    if removed:
        remove_sites(ops, removed, why=why)
    if not dry_run:
        sites.apply(ops, found, declared, why=why)
    differing = [each for each in found if prune or each.act != "remove"]
    if as_json:
        print_json({"act": each.act, "domain": each.domain, "fields": dict(each.fields)} for each in differing)
        return
    for each in found:
        text = f"not in the file: {each.domain}" if each.act == "remove" and not prune else str(each)
        typer.echo(f"would {text}" if dry_run and (prune or each.act != "remove") else text)
    typer.echo(f"{len(declared)} sites declared, {len(differing)} differ")


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
