"""The index of a dead set: one message for each shard, with the summaries of the letters in it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ..delivery import Delivery
from ..errors import InvalidMessage
from ..headers import SHARD
from ..outgoing import Outgoing
from .causes import Cause, values_of
from .letters import DeadLetter, Labels, LetterSummary, base_id

#: Of another format is an index of another release: the shard is read again.
FORMAT = 1

#: What many letters have in common: the fields from which a cause is made.
_COMMON = tuple(each.name for each in fields(Cause) if each.init)


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """What the index says of a shard: the summaries of its letters, oldest first, in packed form.

    `revision` grows with each change of the entry. `filled_at` orders the shards. The first entry of a shard, before
    it is filled, has no letters.
    """

    number: int
    filled_at: float
    revision: int = 0
    count: int = 0
    packed: bytes = b""

    def with_letters(self, letters: Sequence[LetterSummary]) -> ShardEntry:
        """Return the next revision, which has these letters. Their ids have no numbers.

        The packed form is compressed JSON: what letters have in common once, then a list of each other field.
        """
        causes, labels, rows = dict[str, int](), dict[str, int](), []
        for letter in letters:
            common = json.dumps([letter.routing_key, *(getattr(letter.cause, name) for name in _COMMON)])
            own = json.dumps(dict(letter.labels))
            position = causes.setdefault(common, len(causes)), labels.setdefault(own, len(labels))
            rows.append((letter.id, *position, letter.error_message, letter.first_failed_at, letter.failed_at))
        columns = json.dumps(list(zip(*rows, strict=True)))
        text = f'{{"causes": [{", ".join(causes)}], "labels": [{", ".join(labels)}], "letters": {columns}}}'
        packed = zlib.compress(text.encode(), 6)
        return replace(self, revision=self.revision + 1, count=len(letters), packed=packed)

    def letters(self, set_name: str) -> list[LetterSummary]:
        """Return the summaries, whose ids have no numbers. Raises InvalidMessage for a damaged entry."""
        if not self.count:
            return []
        try:
            found: dict[str, Any] = json.loads(zlib.decompress(self.packed))
            causes = [(key, Cause(**dict(zip(_COMMON, values, strict=True)))) for key, *values in found["causes"]]
            return [
                LetterSummary(
                    id=letter_id,
                    set=set_name,
                    cause=causes[cause][1],
                    error_message=message,
                    first_failed_at=first_failed_at,
                    failed_at=failed_at,
                    routing_key=causes[cause][0],
                    labels=found["labels"][labels],
                )
                for letter_id, cause, labels, message, first_failed_at, failed_at in zip(*found["letters"], strict=True)
            ]
        except (zlib.error, ValueError, TypeError, KeyError, IndexError) as error:
            raise InvalidMessage(f"damaged index of shard {self.number} of {set_name}: {error!r}") from error

    def may_have(self, beginnings: Sequence[str]) -> bool:
        """Return whether there may be a letter whose id begins so: without unpacking, which takes ten times longer."""
        try:
            text = zlib.decompress(self.packed) if self.count else b""
        except zlib.error:
            return True
        return any(f'"{beginning}'.encode(errors="replace") in text for beginning in beginnings)

    def message(self, exchange: str, queue: str) -> Outgoing:
        """Return the entry as a message for the index, a queue that is bound to the exchange by its name."""
        state = {"format": FORMAT, **{name: value for name, value in asdict(self).items() if name != "packed"}}
        return Outgoing(
            exchange=exchange,
            routing_key=queue,
            body=self.packed,
            headers={SHARD: state},
            content_type="application/zlib",
            content_encoding="binary",
        )

    @classmethod
    def of(cls, delivery: Delivery) -> ShardEntry | None:
        """Return the entry in a message of the index, or None for any other message."""
        state = delivery.headers.get(SHARD)
        if not isinstance(state, Mapping) or state.get("format") != FORMAT:
            return None
        try:
            return cls(
                number=int(state["number"]),
                filled_at=float(state["filled_at"]),
                revision=int(state["revision"]),
                count=int(state["count"]),
                packed=delivery.body,
            )
        except (KeyError, TypeError, ValueError):
            return None


def summary_of(letter: DeadLetter, labels: Labels | None) -> LetterSummary:
    """Return the summary of a letter for the index: its id without a number, and no traceback."""
    return LetterSummary(
        **{**values_of(letter), "traceback": ""},
        id=base_id(letter.set, letter.delivery),
        set=letter.set,
        routing_key=letter.routing_key,
        labels=labels(letter) if labels else {},
    )
