"""Tables that fit the terminal."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from app.cli.printing import printable


def table(rows: Sequence[Mapping[str, object]], *, whole: Collection[str], numbers: Collection[str]) -> Table:
    """Return a table of one or more rows by column; columns of `numbers` are right-aligned.

    rich narrows the widest columns to the terminal, and their cells are cut at the end. Those in `whole` and of
    numbers stay as they are.
    """
    made = Table(box=None, pad_edge=False)
    for name in rows[0]:
        is_number = name in numbers
        made.add_column(name, no_wrap=is_number or name in whole, justify="right" if is_number else "left")
    for row in rows:
        made.add_row(*(Text(printable(str(cell)), no_wrap=True, overflow="ellipsis") for cell in row.values()))
    return made
