"""Extract the text of a PDF in a process of its own: the PDF on standard input, JSON on standard output."""

from __future__ import annotations

import json
import resource
import sys

import pypdfium2

#: Pages that are read; further ones are left out.
MAX_PAGES = 2_000
#: Characters of all pages together.
MAX_CHARACTERS = 20_000_000


def main() -> None:
    """Read a PDF within the limits of the arguments: seconds of CPU time, and bytes of memory."""
    seconds, memory = int(sys.argv[1]), int(sys.argv[2])
    for limit, value in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (value, value))
    document = pypdfium2.PdfDocument(sys.stdin.buffer.read())
    named = document.get_metadata_dict()
    pages, left = [], MAX_CHARACTERS
    for number in range(min(len(document), MAX_PAGES)):
        page = document[number]
        text = page.get_textpage().get_text_bounded()[:left]
        page.close()
        pages.append(text)
        left -= len(text)
    found = {"title": named.get("Title", ""), "changed": named.get("ModDate", ""), "pages": pages}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
