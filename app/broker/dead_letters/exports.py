"""Dead letters as JSON lines and back, whatever their headers and body hold; and the act that drops them."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from amqp import Message
from amqp.exceptions import FrameSyntaxError
from amqp.serialization import dumps, loads

from .. import amqp_internals
from ..delivery import Delivery
from ..errors import InvalidMessage
from ..nesting import read_json
from .acts import DeadSetAct, Halt, never_halt
from .audit import Audit, append_lines
from .letters import DeadLetter


class ExportAndDrop(DeadSetAct):
    """Appends letters to an export file and syncs it before they are removed."""

    def __init__(self, path: Path, audit: Audit, halt: Halt = never_halt) -> None:
        super().__init__(halt)
        self._path = path
        self._audit = audit

    def apply(self, letters: Sequence[DeadLetter]) -> Mapping[str, str]:
        """Export the letters; all may be removed."""
        append_lines(self._path, [to_record(letter) for letter in letters], sync=True)
        self._audit.write("drop", [(letter, "exported") for letter in letters], file=str(self._path))
        return {}


def to_record(letter: DeadLetter) -> dict[str, Any]:
    """Return a letter as an object for JSON, which `from_record` reads.

    JSON cannot hold bytes, times or text that is not UTF-8. Then `headers_wire` or `properties_wire` has the table as
    AMQP encodes it, in base64. A body that is not UTF-8 is in `body_base64`.
    """
    delivery = letter.delivery
    properties = {name: value for name, value in delivery.properties.items() if name != "application_headers"}
    record: dict[str, Any] = {
        "id": letter.id,
        "set": letter.set,
        "queue": letter.queue,
        "reason": letter.reason,
        "exchange": delivery.exchange,
        "routing_key": delivery.routing_key,
        "content_type": delivery.content_type,
        "content_encoding": delivery.content_encoding,
    }
    for name, table in (("properties", properties), ("headers", dict(delivery.headers))):
        if _survives_json(table):
            record[name] = table
        else:
            # Values that py-amqp alone cannot encode, such as late timestamps, are written as they were read.
            amqp_internals.install()
            record |= {name: readable(table), f"{name}_wire": base64.b64encode(dumps("F", [table])).decode()}
    try:
        return record | {"body": delivery.body.decode()}
    except UnicodeDecodeError:
        return record | {"body_base64": base64.b64encode(delivery.body).decode()}


def from_record(record: Any) -> DeadLetter:
    """Return the letter that was exported as `record`. Raises InvalidMessage."""
    try:
        delivery = Delivery(
            body=base64.b64decode(record["body_base64"]) if "body_base64" in record else record["body"].encode(),
            headers=_table(record, "headers"),
            properties=_table(record, "properties"),
            content_type=record["content_type"],
            content_encoding=record["content_encoding"],
            queue=record["set"],
            routing_key=record["routing_key"],
            exchange=record["exchange"],
        )
        _require_publishable(delivery)
        return DeadLetter.of(delivery, id=str(record["id"]), set=delivery.queue)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, FrameSyntaxError, struct.error) as error:
        raise InvalidMessage(f"invalid export of a dead letter: {error!r}: {str(record)[:80]!r}") from error


def read_export(path: Path) -> Iterator[DeadLetter]:
    """Yield the letters of an export file. Raises InvalidMessage, which names the invalid line."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield from_record(read_json(line))
                except (ValueError, InvalidMessage) as error:
                    raise InvalidMessage(f"{path}, line {number}: {error}") from error
    except OSError as error:
        raise InvalidMessage(f"{path}: {error.strerror or error}") from error


def readable(value: Any) -> Any:
    """Return a header's value, or a table of headers, as a JSON value for people to read."""
    match value:
        case datetime():
            return value.replace(tzinfo=value.tzinfo or UTC).isoformat()
        case bytes() | bytearray() | memoryview():
            return bytes(value).decode(errors="backslashreplace")
        case Mapping():
            return {str(name): readable(item) for name, item in value.items()}
        case list() | tuple():
            return [readable(item) for item in value]
        case None | bool() | int() | float():
            return value
    return str(value)


def _require_publishable(delivery: Delivery) -> None:
    """Raise what py-amqp raises for a message that it cannot encode: the file may have been edited."""
    if not isinstance(delivery.queue, str):
        raise TypeError(f"set {delivery.queue!r}: expected a text")
    dumps("s", [delivery.routing_key])
    amqp_internals.encode_properties(
        Message(
            b"",
            application_headers=dict(delivery.headers),
            content_type=delivery.content_type,
            content_encoding=delivery.content_encoding,
            **delivery.kept_properties(),
        )
    )


def _table(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    encoded = record.get(f"{name}_wire")
    if encoded is None:
        return dict(record[name])
    # Values that py-amqp alone cannot decode, such as late timestamps, must come back as they were read.
    amqp_internals.install()
    return dict(loads("F", base64.b64decode(encoded), 0)[0][0])


def _survives_json(value: Any) -> bool:
    """Return whether JSON encodes a value and decodes it to the same one."""
    if type(value) is dict:
        return all(type(name) is str and _survives_json(item) for name, item in value.items())
    if type(value) is list:
        return all(_survives_json(item) for item in value)
    return type(value) in (str, int, float, bool, type(None))
