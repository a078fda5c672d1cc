"""The `perennial` command. Exit codes: 0 done, 1 failed, 2 wrong usage or settings."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup


class LazyCommand(TyperCommand):
    """A subcommand whose module is imported when it is called: `perennial --help` imports none of them.

    Each module has a Typer application named `cli`. It either is the subcommand, or has a command of its name.
    """

    def __init__(self, name: str, module: str, help_: str) -> None:
        super().__init__(name, help=help_)
        self._module = module

    def load(self) -> Any:
        """Import the module and return its command, whose help and usage errors are plain text as those of `cli`."""
        application = import_module(self._module).cli
        application.rich_markup_mode = None
        group = typer.main.get_group(application)
        return group.commands.get(str(self.name), group)


#: Every subcommand: its name, its module and the first line of its help, which a test compares with the module's.
COMMANDS = tuple(
    LazyCommand(name, f"app.cli.{module}", text)
    for name, module, text in (
        ("index", "crawl", "Index a page, or with --crawl the whole site from it."),
        ("pack", "crawl", "Pack a domain now."),
        ("status", "crawl", "Report a domain, or without one the processes of `perennial up` and outages."),
        ("explain", "urls", "Explain one URL: its reason in the crawl, and what is stored of it."),
        ("urls", "urls", "Print every URL of a domain's latest crawl with its reason."),
        (
            "broken-links",
            "urls",
            "List a domain's broken links, and the pages that have them. Exit 1 if there are any.",
        ),
        ("pause", "crawl", "Pause a domain's crawls: open pages go back to their backlogs."),
        ("resume", "crawl", "Resume a domain's paused crawls."),
        ("cancel", "crawl", "Cancel a domain's crawls for good. Stored pages are packed."),
        ("repair", "crawl", "Compare the store with Redis, and begin again what is missing there."),
        ("doctor", "doctor", "Prove by trying that no message can be lost here; exit 1 on a problem."),
        ("up", "up", "Start private services where no URLs are given, and all processes, until Ctrl-C or `down`."),
        ("down", "up", "Stop the processes of `perennial up`, then the private services; their data stay."),
        ("search", "search", "Search indexed sites. Exit 1 without hits or answer."),
        ("search-report", "search_report", "Report a site's searches without results, and clicks."),
        (
            "searchers",
            "searchers",
            "Show searchers and packs. Exit 1 if the orchestrator is unreachable or a pack is unassigned.",
        ),
        ("site", "sites", "Sites: start URLs, schedule, limits, and what their requests need."),
        ("services", "services", "The private RabbitMQ and Redis of this checkout."),
        ("systemd", "up", "Write systemd units of the Procfile's processes, and a target of all."),
        ("topology", "topology", "Exchanges, queues and bindings."),
        ("dead", "dead", "Messages that spent their retries, or that nothing can be done with."),
        ("caa", "caa", "Cover art and event art: what the archive holds, and what it should."),
        ("store", "store", "The object store of STORE_URL."),
        (
            "password",
            "password",
            "Print the hash of a password, for OPS_PASSWORD. It is typed, or read from standard input.",
        ),
        ("config", "config", "The settings, which come from the environment."),
    )
)


class LazyGroup(TyperGroup):
    """Lists every subcommand by its name and help, and imports the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes | {"commands": {str(command.name): command for command in COMMANDS}})

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the subcommand that the arguments call; typer's documented hook."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, LazyCommand) else command, rest


cli = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Importing rich for boxes around the help takes as much CPU time as the rest of `perennial --help`.
    rich_markup_mode=None,
    # The lines of help are up to this long where the terminal is as wide.
    context_settings={"max_content_width": 120},
    help="Crawl and search web sites; every delay and every failure is a message in RabbitMQ.",
)


def print_version(wanted: bool) -> None:
    """Print the version and exit, if `--version` is given."""
    if wanted:
        typer.echo(f"perennial {version('perennial')}")
        raise typer.Exit


@cli.callback()
def options(
    shown: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version, and exit.")
    ] = False,
) -> None:
    """Declare the options before a subcommand."""
    del shown


def main() -> None:
    """Run the command. An expected error is one line on standard error; any other one is a traceback."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # A shell may close it.
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - it stays open.
    # A terminal of Latin-1 cannot show every title and every line of a log: that ends no command, and not `up`.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            cli()
        finally:
            # What is left in the buffer: Python would report a full disk after the exit code is chosen.
            sys.stdout.flush()
    except Exception as error:
        # Imported on failure only: the clients' error classes cost more CPU time than the rest of the start.
        from app.cli.errors import explained

        explanation = explained(error)
        if explanation is None:
            raise
        exit_code, lines = explanation
        for line in lines:
            typer.echo(f"perennial: {line}", err=True)
        if isinstance(error, OSError):
            # Python writes the buffer once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(exit_code)


if __name__ == "__main__":
    main()
