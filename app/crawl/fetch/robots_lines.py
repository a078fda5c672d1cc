"""Lines of a robots.txt: those that address this robot, and the one that forbids a URL."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from protego import Protego

from app.crawl.policy import product_token

#: Characters of a line that are shown.
MAX_SHOWN: Final = 200
#: Lines that are compared with one URL, the longest ones. Real files have a few that begin as its path does.
_MAX_COMPARED: Final = 200

_AGENT = re.compile(r"user[\s-]*agent(?=[\s:]|$)[\s:]*(.*)", re.I)
#: With the misspellings that Protego reads, and with a space in place of the colon.
_DISALLOW = re.compile(r"d[is]+a[sl]*l[ao]w(?:\s*:|\s)\s*(.+)", re.I)
#: Lines that belong to no group.
_SITEMAP = re.compile(r"(?:sitemaps?|site-map)(?=[\s:]|$)", re.I)
#: Lines that mean something to a robot, and end a list of robots. Unknown ones must not (RFC 9309 section 2.2.4).
_RULE = re.compile(r"(?:allow|d[is]+a[sl]*l[ao]w|crawl[\s-]+delay|request[\s-]+rate|visit[\s-]+time)(?=[\s:]|$)", re.I)
#: Begins each group of `own_lines`.
OWN_AGENT: Final = "User-agent: *"


class DisallowLine(NamedTuple):
    """A Disallow line: its number from 1, its value, and the start of the decoded path of every URL that it forbids."""

    number: int
    value: str
    start: str


def own_lines(text: str, token: str) -> str:
    """Return a robots.txt with empty lines in place of all that mean nothing to a robot, so each keeps its number.

    Sitemaps stay, and the groups for the robot, or else those for all robots. Their robots become `*`.
    """
    lines = text.splitlines()
    kept: dict[bool, dict[int, str]] = {True: {}, False: {}}  # By whether a group is the robot's own.
    has_own = in_rules = False
    groups: set[bool] = set()
    for number, raw in enumerate(lines):
        line = raw.partition("#")[0].strip()
        if agent := _AGENT.match(line):
            groups = set() if in_rules else groups
            in_rules = False
            is_own = product_token(agent[1]).lower() == token.lower()
            if is_own or agent[1] == "*":
                has_own |= is_own
                groups.add(is_own)
                kept[is_own][number] = OWN_AGENT
        elif _SITEMAP.match(line):
            kept[True][number] = kept[False][number] = line
        elif _RULE.match(line):
            in_rules = True
            for group in groups:
                kept[group][number] = raw
    found = kept[has_own]
    return "\n".join(found.get(number, "") for number in range(max(found, default=-1) + 1))


def denying_line(text: str, bounded: str, url: str, token: str) -> str:
    """Return the line by which a robots.txt forbids a URL, as `line 3: Disallow: /private/`; empty if none is found.

    `text` are its `own_lines`, `bounded` the same lines as they are matched. Of several rules, the longest one decides
    (RFC 9309 section 2.2.2).
    """
    parts = urlsplit(url)
    path = unquote(f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/")
    rules = [rule for rule in disallows(bounded) if path.startswith(rule.start)]
    for rule in sorted(rules, key=lambda each: -len(each.value))[:_MAX_COMPARED]:
        if not Protego.parse(f"{OWN_AGENT}\nDisallow: {rule.value}").can_fetch(url, token):
            shown = text.splitlines()[rule.number - 1].strip()[:MAX_SHOWN]
            return f"line {rule.number}: {shown}"
    return ""


@lru_cache(maxsize=32)
def disallows(bounded: str) -> tuple[DisallowLine, ...]:
    """Return the Disallow lines of a file that has the lines of one robot only."""
    return tuple(
        DisallowLine(number, rule[1], unquote(re.split(r"\*|\$$", rule[1], maxsplit=1)[0]))
        for number, line in enumerate(bounded.splitlines(), start=1)
        if (rule := _DISALLOW.match(line.partition("#")[0].strip()))
    )
