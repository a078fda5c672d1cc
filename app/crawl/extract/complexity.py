"""Estimate what a document costs its parser, before it is parsed: deep nesting takes quadratic time."""

from __future__ import annotations

import re
from itertools import accumulate

#: Sum of the depths of all elements. A documentation page of 4 MB has about two million; ten take under two seconds.
MAX_WORK = 10_000_000
#: The same for formatting elements alone, which a parser opens again in every paragraph until they are closed.
MAX_FORMATTING_WORK = 2_000_000
#: Attributes of an element, options of a page, and repetitions of <html> and <body>: each is compared with all others.
MAX_SIBLINGS = 10_000

#: Characters in which the quick estimate counts tags.
_CHUNK = 2_048
_TAG = re.compile(r"<(/?[a-z][a-z0-9]*)", re.I)
#: A tag in which MAX_SIBLINGS attributes have room.
_LONG_TAG = re.compile(rf"<[a-z][^<>]{{{2 * MAX_SIBLINGS}}}[^<>]*", re.I)
_ATTRIBUTE = re.compile(r"""[\s/]+[^\s=>"'/]+(?:\s*=\s*(?:"[^"]*"|'[^']*'|[^\s>]+))?""")
#: Elements without content, and those that the next of their kind closes.
_NEVER_NESTED = (
    "a", "area", "base", "body", "br", "col", "dd", "dt", "embed", "head", "hr", "html", "img", "input", "li", "link",
    "meta", "nobr", "optgroup", "option", "p", "param", "rp", "rt", "source", "tbody", "td", "tfoot", "th", "thead",
    "tr", "track", "wbr",
)  # fmt: skip
_FORMATTING = ("b", "big", "code", "em", "font", "i", "s", "small", "strike", "strong", "tt", "u")
_COMPARED = ("option", "html", "body")


class _Steps(dict[str, int]):
    """By how much a tag changes the depth."""

    def __missing__(self, name: str) -> int:
        return -1 if name.startswith("/") else 1


_ALL = _Steps({mark + name: 0 for name in _NEVER_NESTED for mark in ("", "/")})
_FORMATTING_ONLY = {mark + name: step for name in _FORMATTING for mark, step in (("", 1), ("/", -1))}


def excess(document: str) -> str:
    """Return why a document would cost a parser too much, or an empty string for an ordinary one.

    The estimate is linear in the document's length. It is not a parser: markup that is made to deceive it may pass.
    """
    work, silence = _quick_estimate(document)
    if silence >= MAX_SIBLINGS and any(
        sum(1 for _ in _ATTRIBUTE.finditer(tag[0])) > MAX_SIBLINGS for tag in _LONG_TAG.finditer(document)
    ):
        return f"an element has over {MAX_SIBLINGS} attributes"
    options = document.count("<option") + document.count("<OPTION")
    if work <= MAX_WORK and options <= MAX_SIBLINGS:
        return ""
    names = [name.lower() for name in _TAG.findall(document)]
    if any(names.count(name) > MAX_SIBLINGS for name in _COMPARED):
        return f"it has over {MAX_SIBLINGS} {', '.join(_COMPARED[:-1])} or {_COMPARED[-1]} tags"
    if _work([_ALL[name] for name in names]) > MAX_WORK:
        return "its elements are nested too deeply"
    if _work([_FORMATTING_ONLY.get(name, 0) for name in names]) > MAX_FORMATTING_WORK:
        return "its formatting elements are not closed"
    return ""


def _quick_estimate(document: str) -> tuple[int, int]:
    """Return at least the sum of depths, and about the most characters without a tag; every tag counts as nested."""
    work = depth = lowest = silence = longest = 0
    for start in range(0, len(document), _CHUNK):
        tags = document.count("<", start, start + _CHUNK)
        opened = tags - document.count("</", start, start + _CHUNK)
        work += opened * (depth - lowest + opened)
        depth += 2 * opened - tags
        if depth < lowest:
            lowest = depth
        silence = 0 if tags else silence + _CHUNK
        if silence > longest:
            longest = silence
    return work, longest


def _work(steps: list[int]) -> int:
    """Return the sum of depths. An end tag too many does not make what follows less deep."""
    depths = list(accumulate(steps))
    return sum(depths) - sum(accumulate(depths, min))
