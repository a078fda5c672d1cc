"""What a demo came to, as one line of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from app.pack.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`pages` in the pack; `seconds` to the answer of the search; `hits` of it.

    `retried` counts hops through a delay queue after a failure, `dead` messages that lay in the dead set after the
    crawl, `replayed` those of them that were sent back and then succeeded, `searchers` who answered from the pack.
    """

    domain: str
    pages: int
    seconds: float
    hits: int
    pack: Manifest
    retried: int
    dead: int
    replayed: int
    searchers: int

    def to_json(self) -> str:
        """Return the line."""
        return json.dumps(asdict(self) | {"seconds": round(self.seconds, 1)}, ensure_ascii=False)
