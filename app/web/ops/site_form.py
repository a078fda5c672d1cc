"""The form of a site: each field as a text, its description and default, and what a sent form says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.errors import InvalidSite
from app.sites.search_fields import SiteBestBet
from app.sites.site import Site
from app.text.humanize import listed

#: Fields that have acts of their own, or never change.
_APART: Final = frozenset({"domain", "state", "blocked", "created"})
#: Names of the fields that the form has, in the order of the model.
FIELDS: Final = tuple(name for name in Site.model_fields if name not in _APART)
#: Fields whose values name secrets, or are near them: what was refused there may be a secret, and is not shown again.
_NEAR_SECRETS: Final = frozenset({"headers", "cookies", "proxy", "proxy_login"})
#: Fields of a form with one element on each line, and what a line looks like.
_HINTS: Final = {
    "headers": "A line for each: `Name: name-of-a-secret`.",
    "cookies": "A line for each: `name: name-of-a-secret`.",
    "field_weights": "A line for each: `title: 2`.",
    "best_bets": "A line of JSON for each.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """A field as the form shows it. `kind` is `text`, `lines`, `flag` or `choice`; `fault` is why it was refused."""

    name: str
    kind: str
    description: str
    default: str
    value: str
    fault: str
    choices: tuple[str, ...] = ()


def form_fields(texts: Mapping[str, str], faults: Mapping[str, str]) -> list[FormField]:
    """Return all fields with these texts; a text that was refused near secrets is left out."""
    found = []
    for name in FIELDS:
        kind, description = _kind(name), str(Site.model_fields[name].description)
        if kind == "lines":
            description += f" {_HINTS.get(name, 'A line for each.')}"
        hidden = name in _NEAR_SECRETS and name in faults
        found.append(
            FormField(
                name=name,
                kind=kind,
                description=description,
                default=text_of(_default(name)) or "empty",
                value="" if hidden else texts.get(name, ""),
                fault=faults.get(name, "") + (" What was entered is not shown: it may be a secret." if hidden else ""),
                choices=("exact", "suffix") if name == "scope" else (),
            )
        )
    return found


def texts_of(site: Site) -> dict[str, str]:
    """Return the fields of a site as the form has them."""
    return {name: text_of(getattr(site, name)) for name in FIELDS}


def text_of(value: Any) -> str:
    """Return a value as a text: elements on lines of their own, and an empty text for none."""
    if isinstance(value, bool):
        return "on" if value else ""
    if isinstance(value, SiteBestBet):
        return json.dumps(value.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False)
    if isinstance(value, tuple):
        return "\n".join(map(text_of, value))
    if isinstance(value, dict):
        return "\n".join(f"{name}: {text_of(each)}" for name, each in value.items())
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None else str(value)


def values_of(texts: Mapping[str, str], former: Site) -> dict[str, Any]:
    """Return the values of the fields whose texts differ from those of the former site, which the model checks.

    Raises InvalidSite for a line without a name.
    """
    values: dict[str, Any] = {}
    faults = {}
    for name, text in _differing(texts, former):
        values[name] = default = _default(name)
        lines = [stripped for line in text.splitlines() if (stripped := line.strip())]
        if isinstance(default, bool):
            values[name] = text == "on"
        elif text and isinstance(default, tuple):
            values[name] = tuple(lines)
        elif text and isinstance(default, dict):
            pairs = [line.partition(":") for line in lines]
            values[name] = {key.strip(): value.strip() for key, _, value in pairs}
            unnamed = [number for number, (_, colon, _) in enumerate(pairs, start=1) if not colon]
            if unnamed:
                faults[name] = f"line {unnamed[0]}: expected a name, a colon and a value"
        elif text:
            values[name] = text
    if faults:
        listed = "; ".join(f"{name}: {reason}" for name, reason in faults.items())
        raise InvalidSite(f"{former.domain}: {listed}", faults)
    return values


def changed_meanwhile(texts: dict[str, str], present: Site) -> InvalidSite:
    """Return the refusal of a form that was opened before another change; it says what each other field is now.

    Fields near secrets get the texts that they have now: what was entered there is not shown again.
    """
    now = texts_of(present)
    texts.update({name: now[name] for name in _NEAR_SECRETS})
    faults = {
        name: f"It is now: {now[name] or ('off' if _kind(name) == 'flag' else 'empty')}."
        for name, _ in _differing(texts, present)
    }
    as_now = listed(sorted(_NEAR_SECRETS))
    reason = f"was changed after this form was opened: compare, and send it again; {as_now} are shown as they are now"
    return InvalidSite(f"{present.domain} {reason}", faults)


def _differing(texts: Mapping[str, str], site: Site) -> Iterator[tuple[str, str]]:
    """Yield name and text of each field that differs from the site's."""
    for name, own in texts_of(site).items():
        text = texts.get(name, "").replace("\r\n", "\n").strip()
        if text != own.strip():
            yield name, text


def _kind(name: str) -> str:
    default = _default(name)
    if isinstance(default, bool):
        return "flag"
    if name == "scope":
        return "choice"
    return "lines" if isinstance(default, tuple | dict) else "text"


def _default(name: str) -> Any:
    return Site.model_fields[name].get_default(call_default_factory=True)
