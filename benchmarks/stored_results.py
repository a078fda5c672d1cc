"""The last results of each row, stored as JSON, so that a run of some rows keeps the results of the others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import FigureTable
from benchmarks.plots import Plot


@dataclass(frozen=True, slots=True)
class Section:
    """The results of one row as shown; `aims` are its rows in the page's table of aims."""

    row: str
    date: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    aims: tuple[tuple[str, ...], ...]
    warnings: tuple[str, ...]
    tables: tuple[FigureTable, ...]
    plots: tuple[Plot, ...] = ()


def store_section(folder: Path, section: Section) -> None:
    """Write a section in place of the former one of its row."""
    folder.mkdir(exist_ok=True)
    _file(folder, section.row).write_text(json.dumps(asdict(section), indent=1) + "\n")


def load_sections(folder: Path, rows: Iterable[str]) -> list[Section]:
    """Return the stored sections of the rows, in this order."""
    files = [_file(folder, row) for row in rows]
    return [_section(json.loads(file.read_text())) for file in files if file.exists()]


def _file(folder: Path, row: str) -> Path:
    return folder / f"{row}.json"


def _section(loaded: Mapping[str, Any]) -> Section:
    tables = tuple(FigureTable(each["title"], *map(_rows, (each["header"], each["rows"]))) for each in loaded["tables"])
    plots = tuple(Plot(**each) for each in loaded.get("plots", ()))
    warnings = tuple(loaded["warnings"])
    return Section(**{**loaded, "aims": _rows(loaded["aims"]), "warnings": warnings, "tables": tables, "plots": plots})


def _rows(lists: list[Any]) -> Any:
    """Turn the lists of JSON into tuples."""
    return tuple(_rows(each) if isinstance(each, list) else each for each in lists)
