"""The export of a crawl's URLs: a row for each with its reason, as JSON Lines or CSV, in pieces of text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import chain, islice
from typing import Any, Final

from app.broker.errors import InvalidMessage
from app.crawl.record.entries import is_reason_code
from app.crawl.reports.crawl_report import CrawlReport

#: Columns of CSV; JSON Lines have the same names.
COLUMNS: Final = ("url", "state", "reason", "detail", "status", "at", "depth", "referrer")
#: A spreadsheet takes a cell that begins so for a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
#: Rows of one piece.
_ROWS: Final = 500


class Format(StrEnum):
    """The format of an export."""

    JSONL = "jsonl"
    CSV = "csv"


#: The media type of each format.
MEDIA_TYPES: Final = {Format.JSONL: "application/x-ndjson", Format.CSV: "text/csv"}


def export_urls(report: CrawlReport, form: Format, *, reason: str = "") -> Iterator[str]:
    """Return the export of a crawl's URLs in pieces, or only of those with a reason code; raises InvalidMessage."""
    if reason and reason not in report.totals and not is_reason_code(reason):
        found = ", ".join(report.totals)
        raise InvalidMessage(f"reason {reason!r}: unknown reason code; this crawl has {found or 'none'}")
    rows = report.rows(reason)
    if form is Format.JSONL:
        return _pieces(f"{json.dumps(row)}\n" for row in rows)
    return _pieces(chain([f"{','.join(COLUMNS)}\r\n"], map(_csv_line, rows)))


def _pieces(lines: Iterable[str]) -> Iterator[str]:
    lines = iter(lines)
    while piece := "".join(islice(lines, _ROWS)):
        yield piece


def _csv_line(row: Mapping[str, Any]) -> str:
    line = io.StringIO()
    cells = {
        name: f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
        for name, value in row.items()
    }
    csv.DictWriter(line, COLUMNS).writerow(cells)
    return line.getvalue()
