"""Sites that a file declares: read `sites.toml`, and compare it with the sites in the store."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from app.crawl.urls import parse_domain
from app.errors import InvalidSite, InvalidUrl
from app.sites.site import Site

#: Fields that commands change: a file that does not name them leaves them as they are.
_KEPT: Final = ("state", "blocked", "created")


@dataclass(frozen=True, slots=True)
class Difference:
    """What a file changes of one site; `fields` has the former and the new value of each field that differs."""

    act: Literal["add", "change", "remove"]
    domain: str
    site: Site | None
    fields: Mapping[str, tuple[Any, Any]]

    def __str__(self) -> str:
        changes = "; ".join(f"{name}: {former!r} -> {new!r}" for name, (former, new) in self.fields.items())
        return f"{self.act} {self.domain}{f': {changes}' if self.act == 'change' else ''}"


def read_declared(path: Path) -> dict[str, dict[str, Any]]:
    """Return the fields of each site in a TOML file by domain. Raises InvalidSite, which names the file and the place.

    The file is a list of tables `[[sites]]`, each with a `domain`.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise InvalidSite(f"{path}: {error}") from error
    tables = found.pop("sites", [])
    if found or not isinstance(tables, list):
        raise InvalidSite(f"{path}: expected tables [[sites]] only, found {', '.join(found) or 'sites'}")
    declared: dict[str, dict[str, Any]] = {}
    for number, table in enumerate(tables, start=1):
        given = table.get("domain") if isinstance(table, Mapping) else None
        if not isinstance(given, str):
            raise InvalidSite(f"{path}: site {number}: domain: expected a text, found {given!r}")
        try:
            domain = parse_domain(given)
        except InvalidUrl as error:
            raise InvalidSite(f"{path}: site {number}: domain: {error}") from error
        if domain in declared:
            raise InvalidSite(f"{path}: site {number}: domain: {domain} is declared twice")
        declared[domain] = {name: value for name, value in table.items() if name != "domain"}
        Site.of(domain, declared[domain])
    return declared


def differences(
    declared: Mapping[str, Mapping[str, Any]], present: Iterable[Site], *, removing: Iterable[str] = ()
) -> list[Difference]:
    """Return what differs between declared sites and those that are present, by domain.

    So does a domain of `removing`, whose removal was killed: its settings were deleted first.
    """
    stored = {site.domain: site for site in present}
    found = []
    for domain in sorted({*declared, *stored, *removing}):
        former = stored.get(domain)
        if domain not in declared:
            found.append(Difference("remove", domain, former, {}))
            continue
        site = declared_site(domain, declared[domain], former)
        if former is None:
            found.append(Difference("add", domain, site, {}))
        elif changes := changed_fields(former, site):
            found.append(Difference("change", domain, site, changes))
    return found


def declared_site(domain: str, fields: Mapping[str, Any], former: Site | None) -> Site:
    """Return a declared site: fields that are not declared have their defaults, but for those that commands change."""
    kept = former.fields() if former else {}
    return Site.of(domain, {name: kept[name] for name in _KEPT if name in kept} | dict(fields))


def changed_fields(former: Site, new: Site) -> dict[str, tuple[Any, Any]]:
    """Return the fields that differ, each with its former and its new value; None stands for the default."""
    old, now = former.fields(), new.fields()
    return {
        name: (old.get(name), now.get(name))
        for name in sorted(old.keys() | now.keys())
        if old.get(name) != now.get(name)
    }
