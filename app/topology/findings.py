"""What is not as it should be on a broker, and how to mend it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

#: `error`: a message can be lost, or a worker cannot start. `note`: to be known, and nothing is lost.
Severity = Literal["error", "note"]

APPLY = "perennial topology apply"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One difference or danger: where, what, what the code says and the broker has, and how to mend it."""

    severity: Severity
    where: str
    what: str
    mend: str
    expected: str = ""
    found: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)
