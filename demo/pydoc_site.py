"""Render the standard library's documentation as HTML pages. Run as a script, in its own process."""

# Imports only the standard library, because `demo/site.py` runs this file without site-packages.

from __future__ import annotations

import ctypes
import html
import importlib
import importlib.util
import inspect
import json
import pkgutil
import pydoc
import re
import signal
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

#: Modules that open a window or a browser, print, install, or hold data and tests rather than a library.
SKIPPED = frozenset(
    {
        "__hello__", "__main__", "__phello__", "antigravity", "distutils", "encodings", "ensurepip", "idlelib",
        "lib2to3", "pydoc_data", "test", "tests", "this", "tkinter", "turtle", "turtledemo",
    }
)  # fmt: skip

#: Characters of a module's summary in its title.
_SUMMARY_LENGTH = 100

_ANCHOR = re.compile(r'<a href="([^"]*)">(.*?)</a>', re.DOTALL)
#: Addresses in memory: pydoc strips them from values, but not from signatures.
_OBJECT_ADDRESS = re.compile(r"(?:(?: |&nbsp;)at(?: |&nbsp;)0x|, handle )[0-9a-f]+", re.IGNORECASE)
_TITLE = re.compile(r"<title>.*?</title>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ModulePage:
    """The page of a module. `summary` is the first line of its documentation, or empty."""

    name: str
    summary: str
    html: str


def module_names() -> list[str]:
    """Return the public modules and submodules of the standard library, without importing any."""
    names = []
    for name in sorted(sys.stdlib_module_names):
        spec = None if name in SKIPPED or name.startswith("_") else importlib.util.find_spec(name)
        if spec is not None:
            names.append(name)
            names += _submodules(spec.submodule_search_locations or (), f"{name}.")
    return names


def _submodules(folders: Iterable[str], prefix: str) -> Iterator[str]:
    for folder in folders:
        for module in pkgutil.iter_modules([folder]):
            if not module.name.startswith("_") and module.name not in SKIPPED:
                yield prefix + module.name
                if module.ispkg:
                    yield from _submodules([str(Path(folder, module.name))], f"{prefix}{module.name}.")


def render(name: str) -> ModulePage | None:
    """Import a module and return its page by pydoc, or None for a module that cannot be imported."""
    try:
        module = importlib.import_module(name)
        body = _OBJECT_ADDRESS.sub("", pydoc.html.document(module, name))
    except (Exception, SystemExit):  # noqa: BLE001 - A module for another system may fail in any way.
        return None
    lines = (module.__doc__ or "").strip().splitlines()
    summary = " ".join(lines[0].split())[:_SUMMARY_LENGTH] if lines else ""
    title = f"{name} \N{EM DASH} {summary}" if summary else name
    page = _TITLE.sub(lambda _: f"<title>{html.escape(title)}</title>", pydoc.html.page(name, body), count=1)
    return ModulePage(name, summary, page)


def with_real_links(page: str, names: Collection[str]) -> str:
    """Return a page without links to files and to modules that have no page."""

    def kept(match: re.Match[str]) -> str:
        target, text = match.groups()
        path = target.partition("#")[0]
        outside = target.startswith(("https://", "http://"))
        inside = path in ("", ".") or (path.endswith(".html") and path.removesuffix(".html") in names)
        return match[0] if outside or inside else text

    return _ANCHOR.sub(kept, page)


def main(folder: Path) -> None:
    """Write `<module>.html` for every importable module, and `modules.json` with their summaries by name."""
    warnings.simplefilter("ignore")
    # pydoc shows the comment above what has no docstring. Finding it parses whole modules, half of all the time.
    inspect.getcomments = lambda object: None  # noqa: ARG005 - The parameter has the name of the original.
    pages = [page for page in map(render, module_names()) if page is not None]
    names = {page.name for page in pages}
    for page in pages:
        (folder / f"{page.name}.html").write_text(with_real_links(page.html, names), "utf-8", "replace")
    summaries = {page.name: page.summary for page in pages}
    (folder / "modules.json").write_text(json.dumps(summaries, indent=1), "utf-8")


def end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends: prctl(2), PR_SET_PDEATHSIG."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent()
    main(Path(sys.argv[1]))
