"""`perennial store`: make the object store, and prove that its conditional writes hold."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from app.storage.open import check_conditional_writes, create_store, open_store
from app.storage.store import ObjectStore
from config.settings import get_settings

cli = typer.Typer(no_args_is_help=True, help="The object store of STORE_URL.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@cli.command()
def create(as_json: AsJson = False) -> None:
    """Make the bucket or folder, and the marker that identifies the store, where missing; then check the store."""
    settings = get_settings()
    store, made = create_store(settings.store, endpoint_url=settings.s3_endpoint_url)
    _check(store, made=made, as_json=as_json)


@cli.command()
def check(as_json: AsJson = False) -> None:
    """Try conditional writes, also by several writers at once; exit 1 where they do not hold."""
    settings = get_settings()
    _check(open_store(settings.store, endpoint_url=settings.s3_endpoint_url), made=False, as_json=as_json)


def _check(store: ObjectStore, *, made: bool, as_json: bool) -> None:
    check_conditional_writes(store)
    url = get_settings().store
    if as_json:
        typer.echo(json.dumps({"store": url, "created": made, "conditional_writes": True}))
    else:
        typer.echo(f"{url}: {'created; ' if made else ''}conditional writes hold")
