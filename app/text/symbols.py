"""Names that end or begin with signs, such as `C++`, `C#` and `.NET`: tokenizers drop the signs."""

from __future__ import annotations

import re
from typing import Final

_SIGNS: Final = {"++": "plusplus", "#": "sharp"}
#: From the signs, which are rare: `re` finds them quickly. Characters after a name's first one are searched backwards.
_ENDING: Final = re.compile(r"(?:\+\+|#)(?![\w+#])")
_LONGEST: Final = 10
_NAME: Final = re.compile(rf"(?<![^\W_])[^\W\d_][^\W_]{{,{_LONGEST - 1}}}$")
_DOTNET: Final = re.compile(r"\.net\b(?<![\w.]....)", re.IGNORECASE)


def symbols_in(text: str) -> tuple[str, ...]:
    """Return a word for each of these names in a text, once: `cplusplus`, `csharp`, `dotnet`."""
    found: dict[str, None] = {}
    if "+" in text or "#" in text:
        for signs in _ENDING.finditer(text):
            before = text[max(0, signs.start() - _LONGEST - 1) : signs.start()]
            if name := _NAME.search(before):
                found[name.group().casefold() + _SIGNS[signs.group()]] = None
    if ".net" in text.lower() and _DOTNET.search(text):
        found["dotnet"] = None
    return tuple(found)
