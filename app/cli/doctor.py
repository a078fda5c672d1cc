"""`perennial doctor`: verify by trying that no message can be lost."""

from __future__ import annotations

from dataclasses import asdict

import typer

from app.cli.arguments import AsJson
from app.cli.printing import print_json
from app.operations.doctor.checks import run_checks
from config.settings import get_settings

cli = typer.Typer()


@cli.command()
def doctor(as_json: AsJson = False) -> None:
    """Prove by trying that no message can be lost here; exit 1 on a problem."""
    results = []
    for result in run_checks(get_settings()):
        results.append(result)
        if not as_json:
            typer.echo(f"{result.status:<8} {result.check + ':':<17} {result.text}")
    if as_json:
        print_json(map(asdict, results))
    raise typer.Exit(1 if any(result.status == "problem" for result in results) else 0)
