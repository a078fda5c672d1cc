"""`perennial password`: the hash of a password, for OPS_PASSWORD and OPS_READ_PASSWORD."""

from __future__ import annotations

import sys

import typer
from argon2 import PasswordHasher

cli = typer.Typer()

#: Characters of the shortest password.
_LEAST = 12


@cli.command()
def password() -> None:
    """Print the hash of a password that is typed or read from standard input, for OPS_PASSWORD."""
    if sys.stdin.isatty():
        given = str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    else:
        given = sys.stdin.readline().removesuffix("\n")
    if len(given) < _LEAST:
        raise typer.BadParameter(f"expected {_LEAST} characters or more, and not {len(given)}")
    typer.echo(PasswordHasher().hash(given))
