"""The parts of our documents that are made from the code; `python -m tests.support.generated` writes them anew."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer.main

from app.cli.main import LazyCommand, cli
from app.cli.mermaid import convention
from app.cli.topology import conventions, search_picture, site_picture
from config.settings import ROOT, Settings
from tests.support.setting_tables import to_markdown

FOLDERS = ("config", "tasks", "app")


def modules() -> list[Path]:
    """Return every module of ours, tests and benchmarks left out."""
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def caption(module: Path) -> list[str]:
    """Return the lines of a module's docstring."""
    return (ast.get_docstring(ast.parse(module.read_text())) or "").splitlines()


def commands() -> dict[str, Any]:
    """Return every command by its name, `perennial dead list`."""

    def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        if not hasattr(command, "commands"):
            yield name, command
        for part, child in getattr(command, "commands", {}).items():
            yield from walk(child.load() if isinstance(child, LazyCommand) else child, f"{name} {part}")

    return dict(walk(typer.main.get_command(cli), "perennial"))


def options(command: Any) -> set[str]:
    """Return the options of a command."""
    return {option for parameter in command.params for option in parameter.opts}


def command_table() -> str:
    """Return every command with the first line of its help, and whether it prints JSON."""
    rows = (
        (f"`{name}`", command.help.splitlines()[0], "yes" if "--json" in options(command) else "")
        for name, command in commands().items()
    )
    return _table(("Command", "What it does", "`--json`"), rows)


def folder_table() -> str:
    """Return every folder, and every module that stands right below a top-level one, with what it says it is."""
    return _table(("Place", "What it is"), ((f"`{place}`", caption(module)[0]) for place, module in _places()))


def readme(text: str) -> str:
    """Return the README with its generated parts as they are to be."""
    drawn = iter(pictures())
    text = re.sub(r"(?<=```mermaid\n).*?(?=\n```)", lambda _: next(drawn), text, flags=re.DOTALL)
    return _with_table(_with_table(text, "## Commands", command_table()), "## Settings", to_markdown())


def pictures() -> list[str]:
    """Return the flowcharts of the README in their order: the site, searching, then each policy beside its own."""
    groups = [site_picture(Settings()), search_picture(Settings())]
    return [*groups, *(convention(policy, work, worker=worker) for policy, work, worker in conventions())]


def architecture(text: str) -> str:
    """Return ARCHITECTURE with its generated part as it is to be."""
    return _with_table(text, "## Where things are", folder_table())


def _places() -> Iterator[tuple[str, Path]]:
    for top in FOLDERS:
        here = [path for path in modules() if path.is_relative_to(ROOT / top)]
        yield f"{top}/", ROOT / top / "__init__.py"
        for path in here:
            if path.parent.name == top and path.stem != "__init__":
                yield f"{top}/{path.name}", path
        for path in here:
            if path.parent.name != top and path.stem == "__init__":
                yield f"{path.parent.relative_to(ROOT)}/", path


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = [tuple(head), *(tuple(row) for row in rows)]
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in cells]
    return "\n".join([lines[0], f"|{' --- |' * len(cells[0])}", *lines[1:]])


def _with_table(text: str, heading: str, table: str) -> str:
    """Return the text with the first table below a heading replaced."""
    pattern = rf"(^{re.escape(heading)}\n(?:(?!\||#).*\n)*)(?:\|.*\n)+"
    changed, count = re.subn(pattern, lambda match: f"{match[1]}{table}\n", text, count=1, flags=re.MULTILINE)
    assert count == 1, f"no table below {heading!r}"
    return changed


if __name__ == "__main__":
    for name, render in (("README.md", readme), ("ARCHITECTURE.md", architecture)):
        (ROOT / name).write_text(render((ROOT / name).read_text()))
