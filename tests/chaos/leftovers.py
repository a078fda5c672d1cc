"""Kill what a run started when the run ends, however it ends: `python -m tests.chaos.leftovers FOLDER NAME=VALUE...`.

The module runs as a process of its own, which waits until its standard input is closed. The run holds the other end of
that pipe, which the kernel closes when the run is killed. It starts at once, because it imports nothing of `app`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

#: Environment variables that mark the processes of a run, by name.
Marks = Mapping[str, str]


@contextmanager
def none_left(folder: Path, marks: Marks) -> Iterator[None]:
    """Kill every process with one of these marks when the block ends, and unmount what is mounted below `folder`."""
    command = [sys.executable, "-m", "tests.chaos.leftovers", str(folder), *map("=".join, marks.items())]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, start_new_session=True):
        yield


def marked_processes(marks: Marks) -> list[psutil.Process]:
    """Return the processes with one of these marks in their environment, which their children inherit."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            environment = process.environ()
            if any(environment.get(name) == value for name, value in marks.items()):
                found.append(process)
    return found


def kill_all(marks: Marks) -> None:
    """Kill the marked processes, also those that they start meanwhile and those that are suspended."""
    while found := marked_processes(marks):
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=1)


def unmount_below(folder: Path) -> None:
    """Unmount the file systems below a folder."""
    for line in Path("/proc/mounts").read_text().splitlines():
        mounted = line.split()[1]
        if mounted.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", mounted], check=False)


def main(folder: Path, marks: Marks) -> None:
    """Wait for the end of the run, then leave nothing of it running."""
    sys.stdin.buffer.read()
    kill_all(marks)
    unmount_below(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), dict(argument.split("=", 1) for argument in sys.argv[2:]))
