"""`perennial config`: every setting with its value; the README's table and `.env.example`, made from the settings."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.table import Table

from config.settings import ROOT, Settings, get_settings

cli = typer.Typer(no_args_is_help=True, help="The settings, which come from the environment.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

#: What stands for a secret.
MASK = "********"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as text: no secret is in it."""

    variable: str
    value: str
    default: str
    given: bool
    description: str


@cli.command()
def show(as_json: AsJson = False) -> None:
    """Print every setting, its value here, its unit and meaning. Passwords are masked."""
    settings = describe(get_settings())
    if as_json:
        typer.echo(json.dumps([asdict(setting) for setting in settings], indent=1))
        return
    table = Table("variable", "value", "meaning", caption="* given by the environment", caption_justify="left")
    for setting in settings:
        name = f"{setting.variable} *" if setting.given else setting.variable
        # Text from outside must not be read as markup.
        table.add_row(name, setting.value.replace("[", r"\["), setting.description.replace("[", r"\["))
    Console().print(table)


@cli.command()
def markdown() -> None:
    """Print the settings table of the README."""
    typer.echo(to_markdown())


@cli.command()
def env() -> None:
    """Print every variable with its default, as `.env.example` has them."""
    typer.echo(to_env())


def describe(settings: Settings) -> list[Setting]:
    """Return every setting in the order of its class."""
    return [
        Setting(
            variable=variable_of(name, field),
            value=_shown(name, getattr(settings, name)),
            default=_shown(name, field.default),
            given=name in settings.model_fields_set,
            description=_meaning(field),
        )
        for name, field in Settings.model_fields.items()
    ]


def to_markdown() -> str:
    """Return a Markdown table of variable, default and meaning."""
    lines = ["| Variable | Default | Meaning |", "| --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        default = _shown(name, field.default)
        cells = (f"`{variable_of(name, field)}`", f"`{default}`" if default else "", _meaning(field))
        row = " | ".join(cell.replace("|", r"\|") for cell in cells)
        lines.append(f"| {row} |")
    return "\n".join(lines)


def to_env() -> str:
    """Return lines that a shell, Docker Compose and python-dotenv read alike: nothing changes by them."""
    lines: list[str] = []
    for name, field in Settings.model_fields.items():
        # A relative folder would depend on where a process was started.
        default = "" if isinstance(field.default, Path) else _text(field.default)
        lines += [f"# {_meaning(field)}", f"{variable_of(name, field)}={shlex.quote(default) if default else ''}"]
    return "\n".join(lines)


def variable_of(name: str, field: FieldInfo) -> str:
    """Return the environment variable that a field is read from."""
    return str(field.validation_alias or name).upper()


def _meaning(field: FieldInfo) -> str:
    """Return the description, and the values there are where they are few."""
    description = field.description or ""
    if get_origin(field.annotation) is not Literal:
        return description
    return f"{description} One of {', '.join(f'`{value}`' for value in get_args(field.annotation))}."


def _shown(name: str, value: Any) -> str:
    text = _text(value)
    if name.endswith("_url") or name == "result_backend":
        return _masked_url(text)
    return MASK if isinstance(value, SecretStr) and text else text


def _masked_url(url: str) -> str:
    """Return a URL without user, password and query, however wrongly they are written.

    A password may hold any character unescaped by mistake, so what follows the last `@` is shown only if nothing in
    the URL could be a query that holds a secret and an `@` of its own.
    """
    if "@" not in url and "?" not in url:
        return url
    scheme, separator, rest = url.partition("://")
    if not separator:
        return MASK
    host = "" if "?" in rest else rest.rpartition("@")[2]
    return f"{scheme}://{MASK}@{host}" if host else f"{scheme}://{MASK}"


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case SecretStr():
            return value.get_secret_value()
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case tuple():
            return ",".join(value)
        case Path() if value.is_relative_to(ROOT):
            return str(value.relative_to(ROOT))
    return str(value)
