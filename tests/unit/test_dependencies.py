"""The pinned versions of what the project depends on."""

from __future__ import annotations

import tomllib
from importlib.metadata import distributions

import pytest
from packaging.specifiers import SpecifierSet

from config.settings import ROOT

pytestmark = pytest.mark.unit


def test_every_pinned_version_runs_on_the_oldest_python_that_the_project_names() -> None:
    """Debian 12 has Python 3.11.2: a version that needs 3.11.5 ends `make demo` there, and only there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    needs = {each.metadata["Name"]: each.metadata.json.get("requires_python", "") for each in distributions()}
    assert "celery" in needs
    assert {name: need for name, need in needs.items() if not SpecifierSet(str(need)).contains(oldest)} == {}
