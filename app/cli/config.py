"""`perennial config`: every setting with its value, its default and its meaning."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.arguments import AsJson
from app.cli.printing import print_json
from config.settings import ROOT, Settings, get_settings

cli = typer.Typer(no_args_is_help=True, help="The settings, which come from the environment.")


#: Printed in place of a secret.
MASK = "********"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as text, without secrets."""

    variable: str
    value: str
    default: str
    given: bool
    description: str


@cli.command()
def show(as_json: AsJson = False) -> None:
    """Print every setting with its value, unit and meaning. Passwords are masked."""
    settings = describe(get_settings())
    if as_json:
        print_json(map(asdict, settings))
        return
    table = Table(caption="* given by the environment", caption_justify="left")
    for column in ("variable", "value", "meaning"):
        table.add_column(column, overflow="fold")  # By default rich cuts a word that is wider than its column.
    for setting in settings:
        name = f"{setting.variable} *" if setting.given else setting.variable
        # In a plain string rich would read `[...]` as markup, and `:key:` as an emoji.
        table.add_row(name, Text(setting.value), Text(setting.description))
    Console().print(table)


def describe(settings: Settings) -> list[Setting]:
    """Return every setting in the order of its class."""
    return [
        Setting(
            variable=variable_of(name, field),
            value=shown(name, getattr(settings, name)),
            default=shown(name, field.default),
            given=name in settings.model_fields_set,
            description=meaning_of(field),
        )
        for name, field in Settings.model_fields.items()
    ]


def variable_of(name: str, field: FieldInfo) -> str:
    """Return the environment variable that a field is read from."""
    return str(field.validation_alias or name).upper()


def meaning_of(field: FieldInfo) -> str:
    """Return the description, and the allowed values where they are enumerated."""
    description = field.description or ""
    if get_origin(field.annotation) is not Literal:
        return description
    return f"{description} One of {', '.join(f'`{value}`' for value in get_args(field.annotation))}."


def shown(name: str, value: Any) -> str:
    """Return a value as text, its secrets masked."""
    text = text_of(value)
    if not name.endswith(("_url", "_endpoint")) or name == "store_url":  # That one has no login.
        return MASK if isinstance(value, SecretStr) and text else text
    # A URL is shown without user, password and query, also where they are not escaped as they must be.
    if "@" not in text and "?" not in text:
        return text
    scheme, separator, rest = text.partition("://")
    if not separator:
        return MASK
    # A password may contain any character by mistake. What follows the last `@` is shown only if the URL has no `?`,
    # since a query may contain a secret and an `@`.
    host = "" if "?" in rest else rest.rpartition("@")[2]
    return f"{scheme}://{MASK}@{host}" if host else f"{scheme}://{MASK}"


def text_of(value: Any) -> str:
    """Return a value as the environment has it; may contain a secret."""
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
