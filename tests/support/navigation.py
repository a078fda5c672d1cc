"""A hook of mkdocs: list each decision record in the navigation, without naming it in mkdocs.yml."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Return the configuration with the pages of docs/decisions below the index page of that section."""
    folder = Path(config.docs_dir) / "decisions"
    records = sorted(path.name for path in folder.glob("*.md") if path.name != "index.md")
    section = next(item["Decisions"] for item in config.nav if "Decisions" in item)
    section += [f"decisions/{name}" for name in records]
    return config
