"""`make test` and `make test-all`: lint beside one session of all tests; the last line is the total."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from xml.etree import ElementTree

import psutil

from app import private_services as services
from config.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

#: Folders and documents whose spelling is checked; tests misspell on purpose.
SPELLED = ("app", "tasks", "config", "demo", "benchmarks", "docs", *sorted(path.name for path in ROOT.glob("*.md")))

#: Two run at once, at a low priority. mypy takes as long as all others together: it begins first.
LINT = {
    "mypy": [f"{BIN}/mypy", "--no-error-summary"],
    "ruff check": [f"{BIN}/ruff", "check", "--quiet"],
    "ruff format": [f"{BIN}/ruff", "format", "--check", "--quiet"],
    "lint-imports": [f"{BIN}/lint-imports"],
    "prose": [sys.executable, "tests/prose.py"],
    "codespell": [f"{BIN}/codespell", *SPELLED],
    "documents": [f"{BIN}/mkdocs", "build", "--strict", "--quiet"],
}
FLOORS = ("unit", "integration", "acceptance")
OUTCOMES = ("passed", "failed", "skipped")

#: Processes that run tests on two processors, one module at a time. Tests with services mostly wait.
PROCESSES = 4

#: What failed tests leave lies below this until the next run, to be looked at.
REMAINS = ROOT / ".perennial" / "tests"

#: The folders of the tests themselves.
RUN = REMAINS / "run"

#: A file system in memory, and the GB that must be free there: the tests write 2 GB, and their processes need as much.
#: On a disk they would wait for it: stores and brokers write through its cache.
MEMORY, LEAST_FREE = Path("/dev/shm"), 6


@dataclass(frozen=True, slots=True)
class Count:
    """Outcome of one floor."""

    floor: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.floor:<12} {self.passed} passed, {self.failed} failed{skipped}"


def lint() -> Count:
    """Run the static checks; print the output of those that fail."""

    def check(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["nice", *command], cwd=ROOT, capture_output=True, text=True, check=False)

    failed = 0
    with ThreadPoolExecutor(2) as pool:
        for name, done in zip(LINT, pool.map(check, LINT.values()), strict=True):
            if done.returncode:
                failed += 1
                print(f"\n{name} failed:\n{done.stdout}{done.stderr}", flush=True)
    return Count("lint", len(LINT) - failed, failed)


def run_tests(*, long: bool) -> list[Count]:
    """Run the tests of all floors in one session, `long` ones only on request, and return the outcome of each floor."""
    _stop_and_remove()
    REMAINS.mkdir(parents=True)
    report = REMAINS / "report.xml"
    where = ["tests", f"--junitxml={report}", f"--basetemp={_run_folder()}"]
    # The order of modules is that of tests/conftest.py.
    how = ["-n", str(PROCESSES), "--dist", "loadfile", "--no-loadscope-reorder"]
    how += [] if long else ["-m", "not long"]
    code = 1
    try:
        _compile_tests()
        code = _wait([sys.executable, "-m", "pytest", "-q", *how, *where])
    finally:
        stop_services(RUN.resolve())
        _leave_memory(keep=bool(code))
    return _counts(report, code)


def _stop_and_remove() -> None:
    """Stop the services that a run before this one left, and remove its files."""
    stop_services(RUN.resolve())
    shutil.rmtree(RUN.resolve(), ignore_errors=True)
    shutil.rmtree(REMAINS, ignore_errors=True)


def _run_folder() -> Path:
    """Return the folder of the tests: in memory behind a link, where there is room."""
    free = min(psutil.virtual_memory().available, shutil.disk_usage(MEMORY).free) if MEMORY.is_dir() else 0
    if free >= LEAST_FREE * 10**9:
        folder = Path(tempfile.mkdtemp(prefix="perennial-tests-", dir=MEMORY))
        try:  # Before Linux 6.6 files in memory have no attributes, in which a store keeps ETags.
            os.setxattr(folder, "user.test", b"1")
            RUN.symlink_to(folder)
        except OSError:
            folder.rmdir()
    return RUN.resolve()


def _leave_memory(*, keep: bool) -> None:
    """Remove the folder of the tests. With `keep`, it is on the disk until the next run, to be looked at."""
    folder = RUN.resolve()
    if keep and not RUN.is_symlink():
        return
    if keep:
        RUN.unlink()
        with suppress(shutil.Error):  # It names sockets, which cannot be copied.
            shutil.copytree(folder, RUN, symlinks=True)
    shutil.rmtree(folder, ignore_errors=True)


def _compile_tests() -> None:
    """Let one process compile the tests of a fresh checkout, beside mypy: each of several would compile all of them."""
    if not sys.dont_write_bytecode and not any(ROOT.glob("tests/unit/__pycache__/*-pytest-*.pyc")):
        collect = [sys.executable, "-m", "pytest", "-q", "--collect-only", "tests"]
        subprocess.run(collect, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)


def stop_services(folder: Path) -> None:
    """Stop the services that tests below a folder started and, killed or interrupted, did not stop."""
    for state in sorted(folder.rglob("services/state.json")):
        services.down(Settings(data_dir=state.parent.parent))


def _counts(report: Path, code: int) -> list[Count]:
    """Read the outcome of each floor; an exit code without a failed test, as after a crash, counts as one failure."""
    outcomes = Counter(_outcome(case) for case in ElementTree.parse(report).iter("testcase")) if report.exists() else {}
    counts = [Count(floor, *(outcomes.get((floor, each), 0) for each in OUTCOMES)) for floor in FLOORS]
    unexplained = code != 0 and not any(count.failed for count in counts)
    return [*counts, Count("pytest", failed=1)] if unexplained else counts


def _outcome(case: ElementTree.Element) -> tuple[str, str]:
    """Return the floor and the outcome of a test; what could not be collected is a test that failed."""
    module = case.get("classname") or case.get("name") or ""
    failed = case.find("failure") is not None or case.find("error") is not None
    skipped = case.find("skipped") is not None
    return module.split(".")[1], "failed" if failed else "skipped" if skipped else "passed"


def _wait(command: list[str]) -> int:
    """Run `command` to its end, also on Ctrl-C and SIGTERM: it stops its services first, which takes a while."""
    caught: list[int] = []
    with subprocess.Popen(command, cwd=ROOT) as child:

        def forward(number: int, frame: FrameType | None) -> None:
            caught.append(number)
            # A terminal sends Ctrl-C to the child as well; SIGTERM comes to us alone.
            if number == signal.SIGTERM:
                child.terminate()

        signal.signal(signal.SIGINT, forward)
        signal.signal(signal.SIGTERM, forward)
        code = child.wait()
    if caught:
        sys.exit(128 + caught[0])
    return code


def main(arguments: list[str]) -> int:
    """Run `lint`, `all`, or everything but long tests; return 0 only if nothing failed."""
    with ThreadPoolExecutor(1) as pool:
        # Tests wait for processes and timers: the checks use what they leave of the processors.
        checks = pool.submit(lint)
        tests = [] if arguments == ["lint"] else run_tests(long=arguments == ["all"])
        counts = [checks.result(), *tests]
    print(*counts, sep="\n")
    print(f"{sum(count.passed for count in counts)} passed, {sum(count.failed for count in counts)} failed")
    return int(any(count.failed for count in counts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
