"""The settings as documents show them; `python -m tests.support.setting_tables` writes `.env.example`."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Collection
from pathlib import Path

from pydantic import SecretStr

from app.cli.config import meaning_of, shown, text_of, variable_of
from config.settings import ROOT, Settings

EXAMPLE = ROOT / ".env.example"

#: The first setting, with which the generated part of `.env.example` begins, and the line after that part.
_FIRST, _END = "\nPERENNIAL_DATA_DIR=", "\n\n# "


def sections() -> dict[str, list[str]]:
    """Return the settings by the comments between them, such as `# Broker`."""
    found: dict[str, list[str]] = {}
    for title, name in re.findall(r"^\n    # (.+)|^    (\w+):", inspect.getsource(Settings), re.MULTILINE):
        if title:
            found[title] = []
        elif name in Settings.model_fields:
            found[list(found)[-1]].append(name)
    return {title: names for title, names in found.items() if names}


def to_markdown(names: Collection[str] = Settings.model_fields) -> str:
    """Return a Markdown table of variable, default and meaning."""
    lines = ["| Variable | Default | Meaning |", "| --- | --- | --- |"]
    for name in names:
        field = Settings.model_fields[name]
        default, variable = shown(name, field.default), variable_of(name, field)
        cells = (
            f"`{variable}`" + ("\\*" if field.annotation is SecretStr else ""),
            f"`{default}`" if default else "",
            meaning_of(field),
        )
        row = " | ".join(cell.replace("|", r"\|") for cell in cells)
        lines.append(f"| {row} |")
    return "\n".join(lines)


def to_env() -> str:
    """Return every variable with its default, in lines that a shell, Docker Compose and python-dotenv read alike."""
    lines: list[str] = []
    for name, field in Settings.model_fields.items():
        # A relative folder would depend on the folder that a process was started in.
        default = "" if isinstance(field.default, Path) else text_of(field.default)
        lines += [f"# {meaning_of(field)}", f"{variable_of(name, field)}={shlex.quote(default) if default else ''}"]
    return "\n".join(lines)


def env_example(text: str) -> str:
    """Return the text of `.env.example` with its generated part as it must be."""
    begin = text.rindex("\n", 0, text.index(_FIRST)) + 1
    return text[:begin] + to_env() + text[text.index(_END, begin) :]


if __name__ == "__main__":
    EXAMPLE.write_text(env_example(EXAMPLE.read_text()))
