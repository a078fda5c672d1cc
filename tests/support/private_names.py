"""Counts the private names of Celery, kombu, billiard and py-amqp that this project uses."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import amqp
import billiard
import celery
import kombu

from config.settings import ROOT

LIBRARIES = (celery, kombu, billiard, amqp)
_PRIVATE = re.compile(r"\b_[a-z]\w*")
_LOOK_UPS = {"getattr", "setattr", "hasattr", "delattr"}


def private_names() -> dict[str, set[str]]:
    """Return name -> modules that use it.

    A use is an attribute of an object that a library defines, a look-up by name, or an import. In a class below one of
    a library it is any name of that class.
    """
    uses: dict[str, set[str]] = {}
    for path in [each for folder in ("app", "tasks", "config") for each in (ROOT / folder).rglob("*.py")]:
        text = path.read_text()
        if re.search(r"\b(celery|kombu|billiard|amqp)\b", text):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for name in _used(ast.parse(text), module):
                uses.setdefault(name, set()).add(module)
    return uses


def _used(tree: ast.Module, module: str) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name) if name in _defined():
                if ast.unparse(value) not in ("self", "cls", "super()"):
                    yield name
            case ast.Call(func=ast.Name(id=call), args=[_, ast.Constant(value=str(name)), *_]) if call in _LOOK_UPS:
                if name in _defined():
                    yield name
            case ast.ImportFrom(module=str(source), names=names) if source.split(".")[0] in _packages():
                yield from (each.name for each in names if _PRIVATE.match(each.name))
            case ast.ClassDef(name=name) if hasattr(importlib.import_module(module), name):
                above = _names_of_libraries(getattr(importlib.import_module(module), name))
                yield from above.intersection(_PRIVATE.findall(ast.unparse(node)))


def _names_of_libraries(cls: type) -> set[str]:
    above = [each for each in cls.__mro__ if each.__module__.split(".")[0] in _packages()]
    return {name for each in above for name in _PRIVATE.findall(inspect.getsource(each))}


def _packages() -> set[str]:
    return {library.__name__ for library in LIBRARIES}


@cache
def _defined() -> frozenset[str]:
    """Return the private names that the libraries define: functions, classes, attributes and variables."""
    names: set[str] = set()
    for library in LIBRARIES:
        for path in Path(str(library.__file__)).parent.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                        names.add(name)
                    case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                        names.add(name)
    return frozenset(name for name in names if _PRIVATE.match(name))
