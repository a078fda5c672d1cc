"""`perennial store`: make the object store, copy it, tidy it, and prove that its conditional writes hold."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from app.cli.arguments import AsJson, DryRun, Why
from app.cli.context import operator_context
from app.cli.printing import print_json, print_lines, print_result
from app.operations.garbage_collection import collect as collect_unused
from app.storage.copying import copy_store
from app.storage.open import check_conditional_writes, create_store, open_store, store_of
from app.storage.store import ObjectStore
from config.settings import get_settings

cli = typer.Typer(no_args_is_help=True, help="The object store of STORE_URL.")


@cli.command()
def create(as_json: AsJson = False) -> None:
    """Make the bucket or folder and the store's marker, where missing; then check the store."""
    settings = get_settings()
    store, made = create_store(settings.store)
    _check(store, made=made, as_json=as_json)


@cli.command()
def check(as_json: AsJson = False) -> None:
    """Try conditional writes; exit 1 where they do not hold."""
    settings = get_settings()
    _check(store_of(settings), made=False, as_json=as_json)


@cli.command()
def copy(
    source: Annotated[str, typer.Option("--from", metavar="URL", help="The store to copy; default: STORE_URL.")] = "",
    target: Annotated[str, typer.Option("--to", metavar="URL", help="The store to copy to; default: STORE_URL.")] = "",
    create: Annotated[bool, typer.Option("--create", help="Make the folder or bucket of the target.")] = False,
    as_json: AsJson = False,
) -> None:
    """Back up or restore: copy every object that differs; delete nothing."""
    settings = get_settings()
    source_url, target_url = source or settings.store, target or settings.store
    if source_url == target_url:
        raise typer.BadParameter("give --to URL for a backup, or --from URL to restore one")
    opened = (open_store(url) for url in (source_url, target_url))
    result = copy_store(*opened, create=create)
    text = f"{result.copied:,} copied, {result.unchanged:,} unchanged: {source_url} to {target_url}"
    print_result({"from": source_url, "to": target_url, **asdict(result)}, text, as_json=as_json)


@cli.command()
def collect(
    days: Annotated[
        int, typer.Option("--days", min=1, max=36_500, help="Only what was written before these days.")
    ] = 90,
    dry_run: DryRun = False,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Delete what nothing uses: frames, tombstones, and what crawls and removed sites left."""
    collected = collect_unused(operator_context(), days=days, dry_run=dry_run, why=why)
    if as_json:
        print_json(asdict(each) for each in collected)
    elif not print_lines([f"{'would delete' if dry_run else 'deleted'} {each}"] for each in collected):
        typer.echo(f"nothing that is older than {days} days is unused")


def _check(store: ObjectStore, *, made: bool, as_json: bool) -> None:
    check_conditional_writes(store)
    url = get_settings().store
    text = f"{url}: {'created; ' if made else ''}conditional writes hold"
    print_result({"store": url, "created": made, "conditional_writes": True}, text, as_json=as_json)
