"""How deeply JSON of others may be nested: Python reads, prints and copies it by recursion."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .errors import TooDeep

#: Levels of lists and objects. Python fails at several hundred or thousand, at another number in each version and step.
MAX_NESTING = 100

_TOO_DEEP = f"JSON that is nested more than {MAX_NESTING} levels deep"
_CONTAINERS = (Mapping, list, tuple)


def read_json(text: bytes | str) -> Any:
    """Return the value of a JSON text; raises ValueError, and TooDeep for more than MAX_NESTING levels."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise TooDeep(_TOO_DEEP) from error
    if may_be_deep(text):
        require_shallow(value)
    return value


def may_be_deep(text: bytes | str) -> bool:
    """Return whether a JSON text has enough brackets to be nested too deeply."""
    if isinstance(text, str):
        return text.count("[") + text.count("{") > MAX_NESTING
    return text.count(b"[") + text.count(b"{") > MAX_NESTING


def require_shallow(value: Any) -> None:
    """Raise TooDeep for a JSON value that is nested more than MAX_NESTING levels deep."""
    level = [value]
    for _ in range(MAX_NESTING):
        inner = (each.values() if isinstance(each, Mapping) else each for each in level)
        level = [each for values in inner for each in values if isinstance(each, _CONTAINERS)]
        if not level:
            return
    raise TooDeep(_TOO_DEEP)
