"""What packing a domain came to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["full", "incremental"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackResult:
    """One pack, written or found to be up to date.

    `pages` is how many it holds. An incremental pack counts rows as added, changed and removed; a full one has all its
    pages added, and the pages that vanished from the site removed. `sha256` and `size` (bytes) are of the compressed
    file, `etag` of its object; all three are empty, and `generation` 0, for a domain without pages or pack.
    """

    domain: str
    kind: Kind
    written: bool
    pages: int
    added: int = 0
    changed: int = 0
    removed: int = 0
    generation: int = 0
    sha256: str = ""
    size: int = 0
    etag: str = ""
    seconds: float = 0.0

    def as_event(self) -> dict[str, Any]:
        """Return the payload of an `update` message."""
        return asdict(self) | {"seconds": round(self.seconds, 3)}
