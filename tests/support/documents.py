"""Parse the project's Markdown: fenced blocks with the comment before them, tables, commands with their output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from config.settings import ROOT

#: A comment on the line before a fence, then the fence.
_FENCE = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*?) -->\n+)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
NOT_RUN = "not run: "


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. `note` is the HTML comment before it, or empty."""

    kind: str
    text: str
    note: str

    @property
    def runs(self) -> bool:
        """Whether a test runs its commands."""
        return not self.note.startswith(NOT_RUN)


@dataclass(frozen=True, slots=True)
class Command:
    """A line after `$ `, and the lines that the page shows as its output; `…` matches any text."""

    line: str
    output: str


def pages() -> list[str]:
    """Return the names of all documents, relative to the checkout."""
    docs = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", *docs]


def read(name: str) -> str:
    """Return the text of a document, given by its path relative to the checkout."""
    return (ROOT / name).read_text()


def blocks(text: str, *kinds: str) -> list[Block]:
    """Return the fenced blocks of the given kinds in their order."""
    found = (Block(match["kind"], match["text"], match["note"] or "") for match in _FENCE.finditer(text))
    return [block for block in found if block.kind in kinds]


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a console block."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, _, output = part.partition("\n")
        yield Command(line, output.strip("\n"))


def matches(expected: str, printed: str) -> bool:
    """Return whether the output matches: `…` within a line matches any text, a line of `…` any number of lines.

    A page shows a tab as two spaces.
    """
    lines = [line.rstrip() for line in expected.splitlines()]
    pattern = "".join(r"(?:.*\n)*?" if line == "…" else _line(line) for line in lines)
    lines = printed.replace("\t", "  ").strip("\n").splitlines()
    return re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in lines)) is not None


def _line(line: str) -> str:
    return ".*?".join(re.escape(part) for part in line.split("…")) + r"\n"


def table(text: str, heading: str) -> list[list[str]]:
    """Return the rows of the first table below a heading, as cells, without its head."""
    _, _, below = f"\n{text}".partition(f"\n{heading}\n")
    assert below, f"no heading {heading!r}"
    rows = []
    for line in below.splitlines():
        if line.startswith("|"):
            rows.append([cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif rows:
            break
    return rows[2:]


def metrics() -> dict[str, list[list[str]]]:
    """Return the rows of the reference of the metrics by type: name, labels, meaning."""
    page = read("docs/reference/metrics.md")
    return {kind: table(page, f"## {kind.title()}s") for kind in ("gauge", "counter", "histogram")}
