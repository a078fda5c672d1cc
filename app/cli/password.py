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
    """Print the hash of a password, for OPS_PASSWORD. It is typed, or read from standard input."""
    if sys.stdin.isatty():
        given = str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    else:
        try:
            # Some systems end the line with a carriage return, too.
            given = sys.stdin.buffer.readline().decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise typer.BadParameter("the password is not UTF-8") from error
    if len(given) < _LEAST:
        raise typer.BadParameter(f"expected {_LEAST} characters or more, and not {len(given)}")
    typer.echo(PasswordHasher().hash(given))
