"""`perennial search` and `python -m app.web` as a user runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from app.storage.folder import FolderStore
from tests.packs import page, publish, write_pack

pytestmark = pytest.mark.acceptance

PAGES = [
    page("/one", "Page \x1b]0;owned\x07one [bold]", "The first word \x1b[31mred stands here", lang="en"),
    page("/two", "Page two", "The second word"),
]
Perennial = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    publish(FolderStore(tmp_path / "store"), write_pack(tmp_path / "pack.sqlite", PAGES), pages=2)
    return os.environ | {
        "STORE_URL": f"file://{tmp_path}/store",
        "PERENNIAL_DATA_DIR": f"{tmp_path}/data",
        "WEB_PORT": "0",
    }


@pytest.fixture
def perennial(environment: dict[str, str]) -> Perennial:
    command = str(Path(sys.executable).with_name("perennial"))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command, "search", *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    return run


def test_hits_are_printed_plainly_when_nobody_looks(perennial: Perennial) -> None:
    done = perennial("Site.EXAMPLE", "word")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1–2 of 2 in ")
    assert "Page two\nhttps://site.example/two\nThe second word\n" in done.stdout
    assert "one [bold]" in done.stdout
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", done.stdout)


def test_words_with_a_minus_are_exclusions_and_json_is_one_document(perennial: Perennial) -> None:
    done = perennial("site.example", "word", "-first", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert [hit["path"] for hit in found["hits"]] == ["/two"]
    assert found["total"] == 1


def test_the_exit_status_tells_nothing_found_from_wrong_usage(perennial: Perennial) -> None:
    nothing = perennial("site.example", "nonexistent")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert nothing.stderr == "perennial: nothing on site.example matches: nonexistent\n"
    never = perennial("never.example", "word")
    assert never.returncode == 1
    assert "never indexed" in never.stderr
    assert "perennial index https://never.example/" in never.stderr
    invalid = perennial("site.example", "?!")
    assert invalid.returncode == 2
    assert "no letter or digit" in invalid.stderr
    assert perennial("site.example").returncode == 2
    assert perennial("a b", "word").returncode == 2
    assert perennial("site.example", "word", "--limit", "0").returncode == 2


def test_a_pack_file_is_searched_without_a_store(perennial: Perennial, tmp_path: Path) -> None:
    other = write_pack(tmp_path / "other.sqlite", [page("/", "Other", "elsewhere")], domain="other.example")
    assert "Other" in perennial("other.example", "elsewhere", "--pack", str(other)).stdout
    mismatch = perennial("site.example", "elsewhere", "--pack", str(other))
    assert mismatch.returncode == 2
    assert "the pack of other.example, not of site.example" in mismatch.stderr
    assert perennial("other.example", "x", "--pack", str(tmp_path / "none")).returncode == 1
    assert perennial("other.example", "x", "--pack", __file__).returncode == 1


def test_the_web_process_says_where_it_is_serves_and_ends_on_sigterm(environment: dict[str, str]) -> None:
    process = subprocess.Popen([sys.executable, "-m", "app.web"], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        with process.stdout:
            url = re.fullmatch(r"Search page: (http://127\.0\.0\.1:\d+/)\n", process.stdout.readline())
            assert url is not None
            assert "Page two" in httpx.get(url[1], params={"q": "second"}, timeout=30).text
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) in {0, -signal.SIGTERM}
            assert process.stdout.read() == ""
    finally:
        process.kill()
        process.wait()
