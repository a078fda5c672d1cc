"""What each row measured last, kept as JSON beside the page, so that a run of some rows leaves the others' results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Table


@dataclass(frozen=True, slots=True)
class Section:
    """The results of one row as they are shown; `aims` are rows of the page's table of aims."""

    row: str
    date: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    aims: tuple[tuple[str, ...], ...]
    warnings: tuple[str, ...]
    tables: tuple[Table, ...]


def keep(folder: Path, section: Section) -> None:
    """Write a section, instead of what was kept of its row."""
    folder.mkdir(exist_ok=True)
    _file(folder, section.row).write_text(json.dumps(asdict(section), indent=1) + "\n")


def kept(folder: Path, rows: Iterable[str]) -> list[Section]:
    """Return the sections of those rows that were ever measured, in this order."""
    files = [_file(folder, row) for row in rows]
    return [_section(json.loads(file.read_text())) for file in files if file.exists()]


def _file(folder: Path, row: str) -> Path:
    return folder / f"{row}.json"


def _section(told: Mapping[str, Any]) -> Section:
    tables = tuple(Table(each["title"], *map(_rows, (each["header"], each["rows"]))) for each in told["tables"])
    return Section(**{**told, "aims": _rows(told["aims"]), "warnings": tuple(told["warnings"]), "tables": tables})


def _rows(lists: list[Any]) -> Any:
    """Turn lists, which JSON knows, into tuples."""
    return tuple(_rows(each) if isinstance(each, list) else each for each in lists)
