"""`perennial doctor`: prove that no message can be lost, by doing, and say what was proven and how."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from app.doctor.checks import examine
from config.settings import get_settings

cli = typer.Typer()

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@cli.command()
def doctor(as_json: AsJson = False) -> None:
    """Prove by trying that no message can be lost here; exit 1 on a problem. What it makes on the broker it deletes."""
    # Wrong settings are the command's to tell of, and this module needs some to be imported.
    from app.celery import app

    results = []
    for result in examine(get_settings(), app.conf):
        results.append(result)
        if not as_json:
            typer.echo(f"{result.status:<8} {result.check + ':':<17} {result.told}")
    if as_json:
        typer.echo(json.dumps([asdict(result) for result in results]))
    raise typer.Exit(1 if any(result.status == "problem" for result in results) else 0)
