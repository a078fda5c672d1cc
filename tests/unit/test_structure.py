"""What holds for all modules together: no import circle, and one name for one class."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Container, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from config.settings import ROOT

pytestmark = pytest.mark.unit


def modules(*packages: str) -> dict[str, Path]:
    """Return the modules of top-level packages by name."""
    paths = [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(path.read_text())


def imported(path: Path, project: Container[str]) -> Iterator[str]:
    """Yield which modules of the project a module imports, also within functions and for type checkers alone.

    What it imports from a package is a module of the package, or else the package itself.
    """
    for node in ast.walk(parsed(path)):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names if each.name in project)
            case ast.ImportFrom(module=origin, names=names, level=level):
                folders = path.relative_to(ROOT).parts[:-level] if level else ()
                package = ".".join((*folders, *((origin,) if origin else ())))
                inner = [f"{package}.{each.name}" for each in names]
                yield from (name if name in project else package for name in inner)


def test_no_module_imports_itself_by_way_of_others() -> None:
    paths = modules("app", "tasks", "config", "demo", "benchmarks")
    graph = {name: set(imported(path, paths)) for name, path in paths.items()}
    assert "app.broker.errors" in graph["app.broker.publishing"]
    TopologicalSorter(graph).prepare()  # Raises CycleError, which names the modules of a circle.


def named_types(tree: ast.Module) -> Iterator[str]:
    """Yield the names of classes, and of the aliases of types and other capitalised values of a module."""
    yield from (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    for node in tree.body:
        match node:
            case ast.Assign(value=ast.Call(func=ast.Name(id="TypeVar"))):
                continue
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if name[0].isupper() and not name.isupper():
                    yield name


def test_no_two_classes_or_aliases_of_types_share_a_name() -> None:
    paths = modules("app", "tasks", "config")
    # The options of a command and the parameters of a page are named as they are typed.
    inner = [path for name, path in paths.items() if not name.startswith(("app.cli.", "app.web.ops."))]
    counts = Counter(name for path in inner for name in named_types(parsed(path)))
    assert [name for name, count in counts.items() if count > 1] == []
