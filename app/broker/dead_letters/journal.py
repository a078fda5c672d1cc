"""The journal of replays: what a kill leaves in doubt is not sent again by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

#: Why a letter stays that an interrupted replay may have sent.
IN_DOUBT: Final = (
    "an interrupted replay may have sent it already: look for what it did, then replay it `again`, or drop it"
)


class ReplayJournal:
    """Notes, by dead set, of the letters that a replay is about to send. This one keeps none.

    Without notes, a letter that was sent before a kill is sent again. A subclass keeps them durably, and raises
    ApplicationError if they cannot be read or written.
    """

    def note(self, set_name: str, ids: Sequence[str]) -> str:
        """Keep the ids of letters that are about to be sent; return the key of the note."""
        del set_name, ids
        return ""

    def notes(self, set_name: str) -> Mapping[str, Sequence[str]]:
        """Return the ids of each note, by its key."""
        del set_name
        return {}

    def delete(self, keys: Iterable[str]) -> None:
        """Delete notes."""
