"""The peak memory of a process. As a program, with STORE DOMAIN: build a full pack, and print that of its own."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from app.pack.packer import pack_full
from app.storage.folder import FolderStore


def peak_memory(process: int | str = "self") -> int:
    """Return the resident bytes that a process had at most. `ru_maxrss` would count what its parent had, too."""
    (kilobytes,) = re.findall(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(kilobytes) * 1_024


if __name__ == "__main__":
    pack_full(FolderStore(Path(sys.argv[1])), sys.argv[2], force=True)
    print(peak_memory())
