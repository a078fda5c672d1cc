"""What holds for all modules together: no import circle, no import of tests, and one name for one class."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter

import grimp
import pytest

from config.settings import ROOT

pytestmark = pytest.mark.unit

PROGRAM = ("app", "tasks", "config", "demo")


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Return which module imports which, also within functions and for type checkers alone."""
    return grimp.build_graph(*PROGRAM, "benchmarks", include_external_packages=True, cache_dir=None)


def test_no_module_imports_itself_by_way_of_others(graph: grimp.ImportGraph) -> None:
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert "app.broker.errors" in imports["app.broker.publishing"]
    TopologicalSorter(imports).prepare()  # Raises CycleError, which names the modules of a circle.


def test_the_program_imports_no_module_that_wheel_and_image_lack(graph: grimp.ImportGraph) -> None:
    lacking = [each for name in ("tests", "benchmarks") for each in graph.find_modules_that_directly_import(name)]
    assert any(name.startswith("benchmarks.") for name in lacking)
    assert [name for name in lacking if name.startswith(PROGRAM)] == []


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
    paths = [path for package in ("app", "tasks", "config") for path in (ROOT / package).rglob("*.py")]
    # The options of a command and the parameters of a page are named as they are typed.
    apart = (ROOT / "app/cli", ROOT / "app/web/ops")
    inner = [path for path in paths if not any(map(path.is_relative_to, apart))]
    counts = Counter(name for path in inner for name in named_types(ast.parse(path.read_text())))
    assert [name for name, count in counts.items() if count > 1] == []
