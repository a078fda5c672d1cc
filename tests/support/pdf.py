"""Small PDF documents for tests."""

from __future__ import annotations

from collections.abc import Sequence


def pdf(*pages: str | Sequence[str], title: str = "") -> bytes:
    """Return a PDF of these pages, each of one line or several; a title of letters and spaces."""
    bodies = [b"<</Type/Catalog/Pages 2 0 R>>", b"", b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"]
    bodies.append(f"<</Title({title})/ModDate(D:20260301120000Z)>>".encode())
    numbers = []
    for lines in pages:
        shown = "".join(f"({line})Tj T* " for line in ([lines] if isinstance(lines, str) else lines))
        stream = f"BT /F1 12 Tf 14 TL 72 720 Td {shown}ET".encode()
        bodies.append(b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream))
        content = len(bodies)
        bodies.append(
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents %d 0 R/Resources<</Font<</F1 3 0 R>>>>>>"
            % content
        )
        numbers.append(len(bodies))
    kids = " ".join(f"{number} 0 R" for number in numbers)
    bodies[1] = f"<</Type/Pages/Kids[{kids}]/Count {len(numbers)}>>".encode()
    data, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(bodies, start=1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(bodies) + 1)
    end = b"trailer\n<</Size %d/Root 1 0 R/Info 4 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (len(bodies) + 1, len(data))
    return data + head + table + end
