"""The parts of the documents that are generated from the code; `python -m tests.support.generated` writes them."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import typer.main

from app.cli.main import LazyCommand, cli
from app.notifications.events import EVENTS, PublicEvent
from app.topology.declare import all_queues
from app.web.application import create_app
from config.settings import ROOT, Settings
from tests.support.setting_tables import sections, to_markdown

FOLDERS = ("config", "tasks", "app")
#: Where the addresses for operators begin.
_FOR_OPERATORS = "/api/v1/ops/"


def modules() -> list[Path]:
    """Return every module of the application."""
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


def architecture(text: str) -> str:
    """Return ARCHITECTURE with its folders, captioned by the first lines of their `__init__`, and its layers."""
    packages = [path for path in modules() if path.stem == "__init__"]
    packages.sort(key=lambda path: (FOLDERS.index(path.relative_to(ROOT).parts[0]), path.parent))
    rows = ((f"`{path.parent.relative_to(ROOT)}/`", caption(path)[0]) for path in packages)
    text = _with_table(text, "## Where things are", ("Folder", "Content"), rows)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = "\n".join(next(contract["layers"] for contract in contracts if contract["type"] == "layers"))
    return re.sub(r"(?<=## Layers\n\n```text\n).*?(?=\n```)", layers, text, flags=re.DOTALL)


def settings_page(text: str) -> str:
    """Return the reference of the settings, with a table for each section of the code."""
    tables = (f"\n## {title}\n\n{to_markdown(names)}\n" for title, names in sections().items())
    return "".join([text.partition("\n## ")[0], *tables])


def commands_page(text: str) -> str:
    """Return the reference of the commands: name and arguments, and the first sentence of the help text."""
    rows = (
        (f"`{' '.join([name, *_arguments(command)])}`", re.split(r"(?<=\.)\s", command.help)[0])
        for name, command in commands().items()
    )
    return _with_table(text, "## All commands", ("Command", "What it does"), rows)


def topology_page(text: str) -> str:
    """Return the reference of the topology: the table of its queues."""
    rows: dict[str, list[str]] = {}
    for queue in all_queues(Settings()):
        # Delay queues differ in their duration only.
        name = re.sub(r"(?<=delay\.)\d+", "<ms>", queue.name)
        arguments = {**(queue.queue_arguments or {}), **({"x-message-ttl": "<ms>"} if name != queue.name else {})}
        listed = ", ".join(f"`{key}={value}`" for key, value in arguments.items())
        names = rows.setdefault(listed, [])
        if f"`{name}`" not in names:
            names.append(f"`{name}`")
    cells = ((", ".join(names), listed or "none") for listed, names in rows.items())
    return _with_table(text, "## Queues", ("Queue", "Arguments"), cells)


def http_page(text: str) -> str:
    """Return the reference of the HTTP API: the parameters of its OpenAPI description."""
    paths = create_app(cast(Any, None)).openapi()["paths"]
    rows: dict[tuple[str, ...], list[str]] = {}
    for path, item in paths.items():
        if path.startswith(_FOR_OPERATORS):
            continue
        for operation in item.values():
            for each in operation.get("parameters", []):
                parameter = (f"`{each['name']}`", _limits(each), each.get("description", ""))
                rows.setdefault(parameter, []).append(f"`{path.removeprefix('/api/v1/')}`")
    parameters = ((name, ", ".join(addresses), *others) for (name, *others), addresses in rows.items())
    return _with_table(text, "## Parameters", ("Parameter", "Of", "Type and limits", "Meaning"), parameters)


def events_page(text: str) -> str:
    """Return the reference of the events: what each says, and the names of its own fields."""
    common = PublicEvent.model_fields
    rows = []
    first: dict[str, str] = {}
    for kind, event in EVENTS.items():
        own = ", ".join(f"`{name}`" for name in event.model_fields if name not in common)
        alike = first.setdefault(own, kind)
        own = own if alike == kind else f"as `{alike}`"
        rows.append((f"[`{kind}`](schemas/{kind}.v1.json)", " ".join((event.__doc__ or "").split()), own))
    return _with_table(text, "## Types", ("Type and schema", "Meaning", "Its own fields"), rows)


def event_schema(kind: str, _text: str) -> str:
    """Return the JSON schema of an event."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(head | EVENTS[kind].model_json_schema(mode="serialization"), indent=2) + "\n"


def decisions_page(text: str) -> str:
    """Return the index of the decisions: titles up to date, new records at the end, removed ones left out."""
    folder = ROOT / "docs" / "decisions"
    titles = {path.name: path.read_text().splitlines()[0].removeprefix("# ") for path in folder.glob("*.md")}
    lines = []
    for line in text.splitlines():
        link = re.fullmatch(r"- \[.*\]\((.+)\)", line)
        if link is None:
            lines.append(line)
        elif link[1] in titles:
            lines.append(f"- [{titles.pop(link[1])}]({link[1]})")
    lines += [f"- [{titles[name]}]({name})" for name in sorted(titles) if name != "index.md"]
    return "\n".join(lines) + "\n"


#: Document -> function from its text to the text with the generated parts up to date.
DOCUMENTS: dict[str, Callable[[str], str]] = {
    "ARCHITECTURE.md": architecture,
    "docs/decisions/index.md": decisions_page,
    "docs/reference/settings.md": settings_page,
    "docs/reference/commands.md": commands_page,
    "docs/reference/topology.md": topology_page,
    "docs/reference/http-api.md": http_page,
    "docs/reference/events.md": events_page,
    **{f"docs/reference/schemas/{kind}.v1.json": partial(event_schema, kind) for kind in EVENTS},
}


def _arguments(command: Any) -> list[str]:
    """Return the arguments of a command as its help names them; optional ones are in brackets."""
    arguments = (each for each in command.params if each.param_type_name == "argument")
    return [str(each.metavar or each.name).upper() for each in arguments]


def _limits(parameter: dict[str, Any]) -> str:
    """Return type, default and bounds of a parameter, of its JSON schema."""
    schema = parameter["schema"]
    if "enum" in schema:
        kind = " or ".join(f"`{value}`" for value in schema["enum"])
    elif schema["type"] == "array":
        kind = f"{schema.get('minItems', 0)} to {schema['maxItems']} times"
    elif schema["type"] == "boolean":
        kind = "`true` or `false`"
    elif schema["type"] == "integer":
        most = schema.get("maximum", schema.get("exclusiveMaximum", 0) - 1)
        kind = f"{schema['minimum']} to {most:,}"
    else:
        kind = f"up to {schema['maxLength']} characters"
    default = schema.get("default")
    if isinstance(default, bool):
        default = str(default).lower()
    return f"{kind}; default `{default}`" if default not in (None, "", []) else kind


def _with_table(text: str, heading: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return the text with the first table below a heading replaced."""
    cells = [tuple(head), *(tuple(row) for row in rows)]
    lines = ["| " + " | ".join(re.sub(r"(?<!\\)\|", r"\|", cell) for cell in row) + " |" for row in cells]
    table = "\n".join([lines[0], f"|{' --- |' * len(cells[0])}", *lines[1:]])
    pattern = rf"(^{re.escape(heading)}\n(?:(?!\||#).*\n)*)(?:\|.*\n)+"
    changed, count = re.subn(pattern, lambda match: f"{match[1]}{table}\n", text, count=1, flags=re.MULTILINE)
    assert count == 1, f"no table below {heading!r}"
    return changed


if __name__ == "__main__":
    for name, render in DOCUMENTS.items():
        (ROOT / name).write_text(render((ROOT / name).read_text()))
