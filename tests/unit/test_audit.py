"""`make audit` passes only if the vulnerability service answered for every version."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from config.settings import ROOT

pytestmark = pytest.mark.unit

#: What pip-audit 2 prints with --strict: everything known, a vulnerability, an unknown version, no connection.
PASSED = "No known vulnerabilities found"
FOUND = "Found 1 known vulnerability in 1 package\nName Version ID\nidna 3.6 PYSEC-2024-60"
SKIPPED = (
    "WARNING:pip_audit._cli:...\nERROR:pip_audit._cli:idna: Dependency not found and could not be audited: idna (3.6)"
)
UNREACHABLE = "Traceback (most recent call last):\n  File ...\nrequests.exceptions.ProxyError: Max retries exceeded"


@pytest.mark.parametrize(
    ("printed", "status", "lines"),
    [
        (PASSED, 0, [PASSED]),
        (FOUND, 1, FOUND.splitlines()),
        (SKIPPED, 1, ["make audit: not compared", "ERROR:pip_audit._cli:idna: Dependency not found"]),
        (UNREACHABLE, 1, ["make audit: not compared", "requests.exceptions.ProxyError"]),
    ],
)
def test_an_audit_that_could_not_ask_fails_and_says_so(
    tmp_path: Path, printed: str, status: int, lines: list[str]
) -> None:
    tool = tmp_path / "pip-audit"
    tool.write_text(f"#!/bin/sh\ncat <<'END' >&2\n{printed}\nEND\nexit {status}\n")
    tool.chmod(0o755)
    done = subprocess.run([ROOT / ".ci" / "audit", tool], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == status
    shown = (done.stdout + done.stderr).splitlines()
    assert len(shown) == len(lines)
    assert all(line.startswith(start) for line, start in zip(shown, lines, strict=True))
