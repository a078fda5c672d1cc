"""Names and where they are defined, read from the indexes that the sites themselves have."""

from __future__ import annotations

import html
import json
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urljoin

from benchmarks.sites import DebianSite

SECTION, OWN_PAGE, BOTH_WORDS = "section of a page", "page of its own", "both words"
KINDS: Final = (SECTION, OWN_PAGE, BOTH_WORDS)


@dataclass(frozen=True, slots=True)
class NamedPlace:
    """A name as people type it, and the page and fragment to which the site's index leads."""

    kind: str
    q: str
    path: str
    fragment: str = ""


#: A link of an index: address and text, and what follows it in its line.
_LINK: Final = re.compile(r"""<a\b[^>]*?\bhref=["']([^"'#]*)(?:#([^"']*))?["'][^>]*>(.*?)</a>([^<\n]*)""", re.S)
_TAG: Final = re.compile(r"<[^>]*>")
_NAME: Final = re.compile(r"[A-Za-z_@][\w.:-]*\w")
_TERM: Final = re.compile(
    r"""<dt id="ientry[^>]*>([^<,]+?)(?: (configuration parameter|environment variable|function|command))?,\s*"""
    r"""<a class="indexterm" href="([^"#]*)(?:#([^"]*))?">([^<]*)</a></dt>"""
)
#: Domain and role of names in Sphinx's inventory that have a section each.
_ROLES: Final = frozenset({
    "py:function", "py:class", "py:exception", "py:data", "c:function", "c:macro", "c:type", "std:opcode",
    "std:envvar", "std:pdbcommand", "std:setting", "std:templatetag", "std:templatefilter", "std:fieldlookup",
    "std:django-admin", "std:cmdoption",
})  # fmt: skip


def sphinx(root: Path) -> Iterator[NamedPlace]:
    """Yield the names of Sphinx's inventory. A name of several objects is left out."""
    data = (root / "objects.inv").read_bytes()
    lines = zlib.decompress(data.split(b"\n", 4)[4]).decode().splitlines()
    entries = [match.groups() for line in lines if (match := re.fullmatch(r"(.+?) (\S+) -?\d+ (\S*) .*", line))]
    lasts = Counter(name.rpartition(".")[2] for name, *_ in entries)
    pairs = Counter(".".join(name.split(".")[-2:]) for name, *_ in entries)
    modules = Counter(uri.partition("#")[0] for _, role, uri in entries if role == "py:module")
    for name, role, uri in entries:
        path, _, anchor = uri.partition("#")
        anchor = anchor.removesuffix("$") + name if anchor.endswith("$") else anchor
        last = name.rpartition(".")[2]
        if role == "py:module":
            is_own = modules[path] == 1
            yield NamedPlace(OWN_PAGE if is_own else SECTION, name, path, "" if is_own else anchor)
        elif role in ("py:method", "py:attribute") and name.count(".") and pairs[".".join(name.split(".")[-2:])] == 1:
            yield NamedPlace(BOTH_WORDS, " ".join(name.split(".")[-2:]), path, anchor)
        elif role in _ROLES and lasts[last] == 1:
            yield NamedPlace(SECTION, last if role.startswith("py:") else name, path, anchor)


def javadoc(root: Path) -> Iterator[NamedPlace]:
    """Yield the classes and members of javadoc's search index. A name of several classes is left out."""
    types = _javascript(root / "type-search-index.js")
    classes = Counter(str(each["l"]) for each in types)
    for each in types:
        if each.get("p") and classes[each["l"]] == 1:
            yield NamedPlace(OWN_PAGE, each["l"], f"{each['p'].replace('.', '/')}/{each['l']}.html")
    members = [each for each in _javascript(root / "member-search-index.js") if classes[each["c"]] == 1]
    owners = defaultdict(set)
    for each in members:
        owners[each["l"].partition("(")[0]].add(each["c"])
    for each in members:
        name = each["l"].partition("(")[0]
        if name == each["c"].rpartition(".")[2]:  # A constructor has the name of its class.
            continue
        path = f"{each['p'].replace('.', '/')}/{each['c']}.html"
        fragment = unquote(each.get("u") or each.get("url") or each["l"])
        yield NamedPlace(BOTH_WORDS, f"{each['c']} {name}", path, fragment)
        if len(owners[name]) == 1:
            yield NamedPlace(SECTION, name, path, fragment)


def _javascript(file: Path) -> list[dict[str, str]]:
    text = file.read_text()
    found: list[dict[str, str]] = json.loads(text[text.index("[") : text.rindex("]") + 1])
    return found


def docbook_index(root: Path) -> Iterator[NamedPlace]:
    """Yield the names of DocBook's index that lead to one place: an identifier, or a command in capitals."""
    entries = _TERM.findall((root / "bookindex.html").read_text())
    numbers = Counter(name for name, *_ in entries)
    for name, _, path, fragment, title in entries:
        name, title = html.unescape(name), html.unescape(title)
        is_name = re.fullmatch(r"\w*_\w+", name) or re.fullmatch(r"[A-Z]{3,}( [A-Z]+)*", name)
        if is_name and numbers[name] == 1 and (fragment or title == name):
            yield NamedPlace(SECTION if fragment else OWN_PAGE, name, path, fragment)


def gtk_doc(root: Path) -> Iterator[NamedPlace]:
    """Yield the functions, macros and types of gtk-doc's index."""
    for folder in ("glib", "gobject", "gio"):
        base = f"{folder}/api-index-full.html"
        for href, fragment, text, after in _links(root / base):
            if fragment and _NAME.fullmatch(text) and after.startswith(","):
                is_own = href == f"{text}.html"
                yield NamedPlace(OWN_PAGE if is_own else SECTION, text, urljoin(base, href), "" if is_own else fragment)


def apache(root: Path) -> Iterator[NamedPlace]:
    """Yield the directives and modules of Apache's lists, of which each page exists in several languages."""
    for href, fragment, text, _ in _links(root / "en/mod/directives.html"):
        if href and fragment.lower() == text.lower().strip("<>"):
            yield NamedPlace(SECTION, text.strip("<>"), urljoin("en/mod/", href), fragment)
    for href, fragment, text, _ in _links(root / "en/mod/index.html"):
        if not fragment and href == f"{text}.html":
            yield NamedPlace(OWN_PAGE, text, f"en/mod/{href}")


def sqlite(root: Path) -> Iterator[NamedPlace]:
    """Yield the functions, pragmas and interfaces of SQLite's lists."""
    for folder, file in (("", "pragma.html"), ("", "lang_corefunc.html"), ("", "lang_datefunc.html")):
        for href, fragment, text, _ in _links(root / folder / file):
            name = text.partition("(")[0]
            if href == file and fragment.removeprefix("pragma_") == name and _NAME.fullmatch(name):
                yield NamedPlace(SECTION, name, file, fragment)
    functions = {text: href for href, _, text, _ in _links(root / "c3ref/funclist.html") if text.startswith("sqlite3_")}
    named = Counter(functions.values())
    for name, href in functions.items():
        yield NamedPlace(OWN_PAGE if named[href] == 1 else SECTION, name, urljoin("c3ref/", href))


def _links(file: Path) -> Iterator[tuple[str, str, str, str]]:
    for href, fragment, text, after in _LINK.findall(file.read_text(errors="replace")):
        yield href, html.unescape(fragment), html.unescape(_TAG.sub("", text)).strip(), after.strip()


@dataclass(frozen=True, slots=True)
class NamedSite:
    """A site with an index: its package, how its documentation is written, and the reader of its index."""

    site: DebianSite
    style: str
    read: Callable[[Path], Iterator[NamedPlace]]


_API: Final = "usr/share/doc/{}/api"
SITES: Final = {
    name: NamedSite(DebianSite(name, root), style, read)
    for name, root, style, read in (
        ("python3.11-doc", "usr/share/doc/python3.11/html", "Sphinx", sphinx),
        ("python-django-doc", "usr/share/doc/python-django-doc/html", "Sphinx", sphinx),
        ("libcommons-collections4-java-doc", _API.format("libcommons-collections4-java"), "javadoc", javadoc),
        ("libcommons-lang3-java-doc", _API.format("libcommons-lang3-java"), "javadoc", javadoc),
        ("postgresql-doc-15", "usr/share/doc/postgresql-doc-15/html", "DocBook", docbook_index),
        ("libglib2.0-doc", "usr/share/gtk-doc/html", "DocBook", gtk_doc),
        ("apache2-doc", "usr/share/doc/apache2-doc/manual", "hand-written", apache),
        ("sqlite3-doc", "usr/share/doc/sqlite3", "hand-written", sqlite),
    )
}
