"""PDF to text: a section for each page, extracted in a process with limits of time and memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from app.crawl.parse.cpu_limit import child_at_work
from app.crawl.parse.extract.contract import Extract, collapsed, paragraphs
from app.storage.page_parts import Block, body_of

#: Seconds of CPU time, seconds altogether, and bytes of memory of the process. 300 pages take less than a second.
CPU_SECONDS = 10
SECONDS = 30
MEMORY = 1 << 30

_PROCESS = Path(__file__).with_name("pdf_process.py")
#: A date of PDF: `D:20261121120000Z` (ISO 32000-1 section 7.9.4).
_DATE = re.compile(r"D?:?(\d{4})(\d\d)(\d\d)")
_MAX_ERROR = 200


class UnreadablePdf(Exception):
    """A PDF that is damaged, encrypted, or beyond the limits."""


def extract_pdf(data: bytes, *, name: str) -> Extract:
    """Return the content of a PDF; `name` is its title if it has none. Raises UnreadablePdf.

    Each of its pages is a section with the id `page=<number>`, which browsers take as a fragment.
    """
    command = [sys.executable, "-I", str(_PROCESS), str(CPU_SECONDS), str(MEMORY)]
    try:
        with child_at_work():
            # Its parser is C++: it gets none of the worker's secrets and, by default, no open file but its pipes.
            ran = subprocess.run(command, input=data, capture_output=True, timeout=SECONDS, check=False, env={})  # noqa: S603 - no part of it is from the PDF.
    except subprocess.TimeoutExpired:
        raise UnreadablePdf(f"it took over {SECONDS} s") from None
    if ran.returncode < 0:
        raise UnreadablePdf(f"it took over {CPU_SECONDS} s of CPU, or crashed its process: signal {-ran.returncode}")
    if ran.returncode:
        raise UnreadablePdf(ran.stderr.decode(errors="replace").strip().rpartition("\n")[2][:_MAX_ERROR])
    found = json.loads(ran.stdout)
    blocks: list[Block] = []
    for number, text in enumerate(found["pages"], start=1):
        # A lone surrogate cannot be stored; a soft hyphen at the end of a line divides a word.
        clean = text.encode(errors="replace").decode().replace("\ufffe\r\n", "").replace("\xad\r\n", "")
        if lines := paragraphs(clean.replace("\r\n", "\n")):
            blocks += [Block((f"Page {number}",), "h2", f"page={number}"), Block(lines)]
    date = _DATE.match(found["changed"])
    return Extract(
        title=collapsed(found["title"]) or name,
        body=body_of(blocks),
        blocks=tuple(blocks),
        dates=("-".join(date.groups()),) if date else (),
    )
