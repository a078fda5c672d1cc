"""The man page `perennial.1`, made of the commands' help; `python -m tests.support.manual` prints it for a release."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import typer

from app.cli.main import cli
from tests.support.generated import commands


def manual() -> str:
    """Return the page in roff, with a section for each command."""
    group = typer.main.get_command(cli)
    lines = [
        f'.TH PERENNIAL 1 "" "Perennial {version("perennial")}" "User Commands"',
        ".SH NAME",
        f"perennial \\- {_escaped(group.help)}",
        ".SH SYNOPSIS",
        ".B perennial",
        "COMMAND [OPTIONS] [ARGUMENTS]",
        ".SH EXIT STATUS",
        "0 when the command succeeded, 1 when it failed or found nothing, 2 for wrong usage or settings.",
        ".SH COMMANDS",
    ]
    for name, command in commands().items():
        lines += _section(name, command)
    return "\n".join(lines) + "\n"


def _section(name: str, command: Any) -> Iterator[str]:
    context = typer.Context(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    yield f'.SS "{_escaped(f"{name} {usage}")}"'
    yield _escaped(re.sub(r"\s+", " ", command.help or ""))
    for parameter in command.get_params(context):
        if record := parameter.get_help_record(context):
            left, text = record
            yield from (".TP", rf"\fB{_escaped(left)}\fR", _escaped(text))


def _escaped(text: str | None) -> str:
    """Return a line of text whose characters mean nothing to roff."""
    found = (text or "").replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return rf"\&{found}" if found.startswith((".", "'")) else found


if __name__ == "__main__":
    print(manual(), end="")
