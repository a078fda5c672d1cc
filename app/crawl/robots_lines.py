"""Which line of a robots.txt forbids a URL: named in the reason of a page that is not requested."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from protego import Protego

#: Characters of a line that are shown.
MAX_SHOWN: Final = 200
#: Lines that are compared with one URL, the longest ones. Real files have a few that begin as its path does.
_MAX_COMPARED: Final = 200

_AGENT = re.compile(r"user[\s-]*agent\s*:?\s*(.*)", re.I)
#: With the misspellings that Protego reads, and with a space in place of the colon.
_DISALLOW = re.compile(r"d[is]+a[sl]*l[ao]w(?:\s*:|\s)\s*(.+)", re.I)
#: Lines that belong to no group.
_SITE_WIDE = re.compile(r"(?:sitemaps?|site-map|host)(?=[\s:])", re.I)


class Rule(NamedTuple):
    """A Disallow line: its number from 1, its value, and the start of the decoded path of every URL that it forbids."""

    number: int
    value: str
    start: str


def denying_line(text: str, bounded: str, url: str, token: str) -> str:
    """Return the line by which a robots.txt forbids a URL, as `line 3: Disallow: /private/`; empty if none is found.

    `bounded` has the same lines with the names of robots replaced, as they are matched. Of several rules, the longest
    one decides (RFC 9309 section 2.2.2).
    """
    parts = urlsplit(url)
    path = unquote(f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/")
    rules = [rule for rule in disallows(bounded, token) if path.startswith(rule.start)]
    for rule in sorted(rules, key=lambda each: -len(each.value))[:_MAX_COMPARED]:
        if not Protego.parse(f"User-agent: *\nDisallow: {rule.value}").can_fetch(url, token):
            shown = text.splitlines()[rule.number - 1].strip()[:MAX_SHOWN]
            return f"line {rule.number}: {shown}"
    return ""


@lru_cache(maxsize=32)
def disallows(bounded: str, token: str) -> tuple[Rule, ...]:
    """Return the Disallow lines of the groups for a robot, or else of those for all robots."""
    found: dict[str, list[Rule]] = {}
    agents: list[str] = []
    in_rules = False
    for number, raw in enumerate(bounded.splitlines(), start=1):
        line = raw.partition("#")[0].strip()
        if agent := _AGENT.match(line):
            agents = [] if in_rules else agents
            agents.append(agent[1].strip().lower())
            found.setdefault(agents[-1], [])
            in_rules = False
        elif line and not _SITE_WIDE.match(line):
            in_rules = True
            if rule := _DISALLOW.match(line):
                start = unquote(re.split(r"\*|\$$", rule[1], maxsplit=1)[0])
                for name in agents:
                    found[name].append(Rule(number, rule[1], start))
    return tuple(found.get(token.lower(), found.get("*", ())))
