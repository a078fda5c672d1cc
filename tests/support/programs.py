"""Programs of the machine that only tests and benchmarks need, installed where they are missing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from app.errors import ServicesError
from app.private_services.install import add_packages


def program(name: str, package: str) -> str:
    """Return the path of a program, whose package is installed if it is missing; raises ServicesError."""
    # Debian puts programs for root into a folder that is not on a user's path.
    path = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin"
    if shutil.which(name, path=path) is None:
        add_packages([package])
    found = shutil.which(name, path=path)
    if found is None:
        raise ServicesError(f"{name}: not found, though {package} is installed")
    return found


def postgres_programs() -> Path | None:
    """Return the folder of initdb and postgres, or None. Debian has one folder for each release, not on the path."""
    releases = (path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb") if path.parts[-3].isdigit())
    newest = max(releases, key=lambda path: int(path.parts[-2]), default=None)
    on_path = shutil.which("initdb")
    return newest or (Path(on_path).resolve().parent if on_path else None)


def ensure_postgres() -> Path:
    """Return the folder of PostgreSQL's programs, whose package is installed if they are missing.

    No cluster is started. Raises ServicesError where the package cannot be installed.
    """
    if postgres_programs() is None:
        add_packages(["postgresql"])
    found = postgres_programs()
    if found is None:
        raise ServicesError("postgresql is installed, but initdb was not found")
    return found
