"""`make test` and `make test-all`: lint, then each floor of tests even after a failure; the last line is the total."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from xml.etree import ElementTree

from app import services
from config.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

#: Folders and documents whose spelling is checked; tests misspell on purpose.
SPELLED = ("app", "tasks", "config", "demo", "benchmarks", "docs", *sorted(path.name for path in ROOT.glob("*.md")))

#: Two run at once. mypy takes as long as all others together: it begins first.
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

#: Processes that run a floor's tests on two processors, one module at a time. Tests with services mostly wait.
PROCESSES = {"unit": "2", "integration": "4", "acceptance": "4"}

#: What tests leave lies below this until the next run, to be looked at.
REMAINS = ROOT / ".perennial" / "tests"


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
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    failed = 0
    with ThreadPoolExecutor(2) as pool:
        for name, done in zip(LINT, pool.map(check, LINT.values()), strict=True):
            if done.returncode:
                failed += 1
                print(f"{name} failed:\n{done.stdout}{done.stderr}", flush=True)
    return Count("lint", len(LINT) - failed, failed)


def run_floor(floor: str, *, long: bool) -> Count:
    """Run the tests of one floor, `long` ones only on request; a crash of pytest counts as one failure."""
    print(f"== {floor}", flush=True)
    remains, report = REMAINS / floor, REMAINS / f"{floor}.xml"
    stop_services(remains)
    shutil.rmtree(remains, ignore_errors=True)
    report.unlink(missing_ok=True)
    REMAINS.mkdir(parents=True, exist_ok=True)
    where = [f"tests/{floor}", f"--junitxml={report}", f"--basetemp={remains}"]
    # The order of modules is that of tests/conftest.py.
    how = ["-n", PROCESSES[floor], "--dist", "loadfile", "--no-loadscope-reorder"]
    how += [] if long else ["-m", "not long"]
    try:
        code = _wait([sys.executable, "-m", "pytest", "-q", *how, *where])
    finally:
        stop_services(remains)
    return _count(floor, report, code)


def stop_services(folder: Path) -> None:
    """Stop the services that tests below a folder started and, killed or interrupted, did not stop."""
    for state in sorted(folder.rglob("services/state.json")):
        services.down(Settings(data_dir=state.parent.parent))


def _count(floor: str, report: Path, code: int) -> Count:
    suite = ElementTree.parse(report).getroot().find("testsuite") if report.exists() else None
    if suite is None:
        return Count(floor, failed=1)
    tests, skipped, bad = (int(suite.get(key, 0)) for key in ("tests", "skipped", "failures"))
    failed = max(bad + int(suite.get("errors", 0)), int(code != 0))
    return Count(floor, max(tests - failed - skipped, 0), failed, skipped)


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
    counts = [lint()]
    if arguments != ["lint"]:
        counts += [run_floor(floor, long=arguments == ["all"]) for floor in FLOORS]
    print(*counts, sep="\n")
    print(f"{sum(count.passed for count in counts)} passed, {sum(count.failed for count in counts)} failed")
    return int(any(count.failed for count in counts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
