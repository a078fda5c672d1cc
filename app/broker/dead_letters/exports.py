"""Dead messages as JSON lines and back: all that a message is, whatever its headers and body hold."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from struct import error
from typing import Any

from amqp import Message
from amqp.exceptions import FrameSyntaxError
from amqp.serialization import dumps, loads

from ..delivery import Delivery
from ..errors import InvalidMessage
from .audit import Audit, append
from .causes import cause_of
from .letters import DeadLetter
from .reading import Reading


class Exporting:
    """The act of `drop`: messages are in the file, and it is on the disk, before they leave."""

    batch = 100

    def __init__(self, path: Path, audit: Audit | None) -> None:
        self._path = path
        self._audit = audit

    def ready(self, within: float) -> bool:
        """Return True: a file is always ready."""
        del within
        return True

    def __call__(self, letters: Sequence[DeadLetter]) -> Mapping[str, str]:
        """Append them; none must stay."""
        append(self._path, [to_record(letter) for letter in letters], synced=True)
        if self._audit:
            self._audit.write("drop", [(letter, "exported") for letter in letters], file=str(self._path))
        return {}

    def tidy(self, reading: Reading) -> None:
        """Do nothing: no message was published."""

    def finish(self) -> None:
        """Do nothing: all is on the disk."""


def to_record(letter: DeadLetter) -> dict[str, Any]:
    """Return a message as an object for JSON, which `from_record` reads.

    Where JSON cannot hold headers or properties as they are (bytes, times, text that is no UTF-8), `headers_wire` or
    `properties_wire` has them too, in base64, as AMQP writes a table. A body that is no UTF-8 stands in `body_base64`.
    """
    dead = letter.delivery
    properties = {name: value for name, value in dead.properties.items() if name != "application_headers"}
    record: dict[str, Any] = {
        "id": letter.id,
        "set": letter.set,
        "queue": letter.queue,
        "reason": letter.reason,
        "exchange": dead.exchange,
        "routing_key": dead.routing_key,
        "content_type": dead.content_type,
        "content_encoding": dead.content_encoding,
    }
    return record | _table("properties", properties) | _table("headers", dead.headers) | _body(dead.body)


def from_record(record: Any) -> DeadLetter:
    """Return the message that was exported; raises InvalidMessage for what is no such object."""
    try:
        delivery = Delivery(
            body=base64.b64decode(record["body_base64"]) if "body_base64" in record else record["body"].encode(),
            headers=_table_of(record, "headers"),
            properties=_table_of(record, "properties"),
            content_type=record["content_type"],
            content_encoding=record["content_encoding"],
            queue=record["set"],
            routing_key=record["routing_key"],
            exchange=record["exchange"],
        )
        _require_sendable(delivery)
        return DeadLetter(id=str(record["id"]), set=delivery.queue, delivery=delivery, cause=cause_of(delivery))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, FrameSyntaxError, error) as why:
        raise InvalidMessage(f"no exported dead message: {why!r}: {str(record)[:80]!r}") from why


def read(path: Path) -> Iterator[DeadLetter]:
    """Yield the messages of an export; raises InvalidMessage naming the line that is none."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield from_record(json.loads(line))
                except (ValueError, RecursionError, InvalidMessage) as why:
                    raise InvalidMessage(f"{path}, line {number}: {why}") from why
    except OSError as why:
        raise InvalidMessage(f"{path}: {why.strerror or why}") from why


def readable(value: Any) -> Any:
    """Return a header's value, or all headers, as JSON can hold them, for a person to read."""
    match value:
        case datetime():
            return value.replace(tzinfo=value.tzinfo or UTC).isoformat()
        case bytes() | bytearray() | memoryview():
            return bytes(value).decode(errors="backslashreplace")
        case Mapping():
            return {str(name): readable(each) for name, each in value.items()}
        case list() | tuple():
            return [readable(each) for each in value]
        case None | bool() | int() | float():
            return value
    return str(value)


def _require_sendable(delivery: Delivery) -> None:
    """Raise, as py-amqp does, for what cannot be a message: somebody may have edited the file."""
    if not isinstance(delivery.queue, str):
        raise TypeError(f"set {delivery.queue!r}: expected a text")
    dumps("s", [delivery.routing_key])
    Message(
        b"",
        application_headers=dict(delivery.headers),
        content_type=delivery.content_type,
        content_encoding=delivery.content_encoding,
        **delivery.kept_properties(),
    )._serialize_properties()


def _table(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    if _is_plain(dict(table)):
        return {name: dict(table)}
    return {name: readable(table), f"{name}_wire": base64.b64encode(dumps("F", [dict(table)])).decode()}


def _table_of(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    wire = record.get(f"{name}_wire")
    return dict(record[name] if wire is None else loads("F", base64.b64decode(wire), 0)[0][0])


def _is_plain(value: Any) -> bool:
    """Return whether JSON gives this value back as it is."""
    if type(value) is dict:
        return all(type(name) is str and _is_plain(each) for name, each in value.items())
    if type(value) is list:
        return all(_is_plain(each) for each in value)
    return type(value) in (str, int, float, bool, type(None))


def _body(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
