"""The demo's site on disk: rendered once for each Python, by a process that shares nothing with ours."""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from app.errors import DemoFailed
from demo import pydoc_site

#: Seconds that rendering may take.
TIME_LIMIT = 120.0


def rendered_site(folder: Path) -> Path:
    """Return the folder below `folder` that holds the site of this Python, rendered now if it never was.

    Raises:
        DemoFailed: rendering failed or took longer than TIME_LIMIT seconds.
    """
    script = Path(pydoc_site.__file__)
    release = hashlib.sha256(script.read_bytes()).hexdigest()[:8]
    site = folder / f"site-{platform.python_version()}-{release}"
    if not site.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".rendering-*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".rendering-", dir=folder) as work:
            _render(script, Path(work))
            # A rename: the site is there whole or not at all.
            (Path(work) / "site").rename(site)
    return site


def _render(script: Path, work: Path) -> None:
    (work / "site").mkdir()
    (work / "empty").mkdir()
    # -P, -s, -S: nothing but the standard library can be imported. The page of `os` shows the environment: it is as
    # good as empty, and always the same. A fixed hash seed makes two renderings the same.
    command = [sys.executable, "-P", "-s", "-S", "-B", str(script), str(work / "site")]
    try:
        subprocess.run(  # noqa: S603 - the command is ours.
            command,
            cwd=work / "empty",
            env={"HOME": "/nonexistent", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            timeout=TIME_LIMIT,
            check=True,
        )
    except subprocess.SubprocessError as error:
        raise DemoFailed(f"the demo's site could not be rendered: {error}") from error
