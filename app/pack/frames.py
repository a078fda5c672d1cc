"""The frames of a pack: pieces of its database, each compressed on its own, in objects that several generations share.

An update changes a few places of the database. Its generation is an object with the frames that no former generation
has, and a table that lists all frames of the database in order. Many new frames have further objects.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import zstandard

from app.errors import PackCorrupt

#: Bytes of a database in a frame. Frames of 128 KiB take half of the time of one frame, for 3 % more bytes.
FRAME_SIZE: Final = 128 * 2**10
#: Level 2 takes two thirds of the time of level 3, for 5 % more bytes.
ZSTD_LEVEL: Final = 2
#: Bytes of an uncompressed pack, of an object and of a compressed frame: limits against crafted files, far above what
#: any packer writes.
MAX_UNCOMPRESSED: Final = 32 * 2**30
MAX_OBJECT: Final = 2**30
_MAX_FRAME: Final = 2 * FRAME_SIZE
#: Bytes of a frame's entry in a table, at most, and of all else in it.
_ENTRY_SIZE, _REST_SIZE = 128, 2**14
#: Name of an object: its generation, and a random number.
_OBJECT_NAME: Final = re.compile(r"[0-9]{1,10}-[0-9a-f]{16}")


class Frame(NamedTuple):
    """The SHA-256 of its content in hexadecimal, the number of its object in the table, and its bytes in that.

    A pack has thousands: a dataclass would take longer to make and to hash.
    """

    sha256: str
    number: int
    start: int
    size: int

    @property
    def end(self) -> int:
        """Position after its last byte in the object."""
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class FrameTable:
    """The frames of a database in order, and the objects that they are in: names, and bytes of frames in each."""

    objects: tuple[tuple[str, int], ...]
    frames: tuple[Frame, ...]

    @property
    def size(self) -> int:
        """Bytes of the frames, each counted once."""
        return sum(frame.size for frame in set(self.frames))

    def to_bytes(self) -> bytes:
        """Serialise."""
        fields = {"objects": self.objects, "frames": self.frames}
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(json.dumps(fields, separators=(",", ":")).encode())

    @classmethod
    def from_bytes(cls, data: bytes, *, size: int) -> FrameTable:
        """Read the output of `to_bytes` for a database of `size` bytes; raises PackCorrupt for anything else."""
        count = _number_of_frames(size)
        fields = decompressed(data, limit=most_bytes_of_table(size))
        try:
            loaded: dict[str, Any] = json.loads(fields)
            objects = tuple((str(name), int(length)) for name, length in loaded["objects"])
            frames = tuple(map(Frame._make, loaded["frames"]))
            hashes, *places = zip(*frames, strict=True) if frames else ((),)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise PackCorrupt(f"not a table of frames: {error!r}") from error
        if {*map(type, hashes)} - {str} or {*map(type, chain(*places))} - {int}:
            raise PackCorrupt("not a table of frames: a hash or a number has another type")
        if len(frames) != count:
            raise PackCorrupt(f"the table lists {len(frames)} frames, and {size} bytes have {count}")
        if not all(_OBJECT_NAME.fullmatch(name) for name, _ in objects):
            raise PackCorrupt("the table names an object that no packer writes")
        if not all(0 <= number < len(objects) and start >= 0 for _, number, start, _ in frames):
            raise PackCorrupt("the table lists a frame outside of its objects")
        sizes = [length for _, length in objects]
        if not all(
            0 < size <= _MAX_FRAME and start + size <= sizes[number] <= MAX_OBJECT for _, number, start, size in frames
        ):
            raise PackCorrupt("the table lists a frame or an object of a size that no packer writes")
        return cls(objects, frames)


def most_bytes_of_table(size: int) -> int:
    """Return the bytes of the longest table for a database of `size` bytes; raises PackCorrupt for no such database."""
    if size > MAX_UNCOMPRESSED:
        raise PackCorrupt(f"the pack declares {size} uncompressed bytes, more than the limit of {MAX_UNCOMPRESSED}")
    return _number_of_frames(size) * _ENTRY_SIZE + _REST_SIZE


def _number_of_frames(size: int) -> int:
    return -(-size // FRAME_SIZE)


def hashes_of(path: Path, *, size: int | None = None) -> Iterator[str]:
    """Yield the hash of each frame's content in the first `size` bytes of a file, in all of it by default."""
    left = path.stat().st_size if size is None else size
    with path.open("rb") as file:
        while content := file.read(min(FRAME_SIZE, left)):
            left -= len(content)
            yield sha256(content)


def hashes_after(path: Path, former: Sequence[str], written: Iterable[range]) -> list[str]:
    """Return the hash of each frame's content, given those of the former file, and the bytes written since."""
    number = -(-path.stat().st_size // FRAME_SIZE)
    stale = {*range(len(former) - 1, number)}  # The last frame may have been shorter.
    for part in written:
        stale.update(range(part.start // FRAME_SIZE, -(-part.stop // FRAME_SIZE)))
    hashes = [*former[:number], *[""] * (number - len(former))]
    with path.open("rb") as file:
        for each in sorted(stale & {*range(number)}):
            file.seek(each * FRAME_SIZE)
            hashes[each] = sha256(file.read(FRAME_SIZE))
    return hashes


def compressed(path: Path, numbers: Iterable[int]) -> Iterator[bytes]:
    """Yield these frames of a file, each with its size and a checksum."""
    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)
    with path.open("rb") as file:
        for number in numbers:
            file.seek(number * FRAME_SIZE)
            yield compressor.compress(file.read(FRAME_SIZE))


def decompressed(data: bytes | memoryview, *, limit: int) -> bytes:
    """Return the content of a frame; raises PackCorrupt for anything else than one frame that declares its size."""
    try:
        declared = zstandard.frame_content_size(data)
        if not 0 < declared <= limit:
            raise PackCorrupt(f"a frame of the pack declares {declared} uncompressed bytes, not 1 to {limit}")
        return zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise PackCorrupt(f"a frame of the pack is not a complete zstd frame: {error}") from error


def sha256(data: bytes) -> str:
    """Return the SHA-256 of the data in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
