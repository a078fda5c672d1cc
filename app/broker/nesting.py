"""How deeply the JSON of a message may be nested: Celery reads it and hands it to its processes by recursion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import InvalidMessage

#: Levels of lists and objects in a body. Python fails at several hundred, at another number in each step.
MAX_NESTING = 100

_CONTAINERS = (Mapping, list, tuple)


def may_be_deep(text: bytes | str) -> bool:
    """Return whether a JSON text has enough brackets to be nested too deeply."""
    if isinstance(text, str):
        return text.count("[") + text.count("{") > MAX_NESTING
    return text.count(b"[") + text.count(b"{") > MAX_NESTING


def require_shallow(value: Any) -> None:
    """Raise InvalidMessage for a JSON value that is nested more than MAX_NESTING levels deep."""
    level = [value]
    for _ in range(MAX_NESTING):
        inner = (each.values() if isinstance(each, Mapping) else each for each in level)
        level = [each for values in inner for each in values if isinstance(each, _CONTAINERS)]
        if not level:
            return
    raise InvalidMessage(f"the body is nested more than {MAX_NESTING} levels deep")
