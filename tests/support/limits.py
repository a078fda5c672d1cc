"""A process at a limit of the system: on a full disk, or without free file descriptors."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


def full_disk() -> AbstractContextManager[None]:
    """Let no file of this process grow in the block: each write fails in the place where a full disk fails."""
    return _none_of(resource.RLIMIT_FSIZE)


def no_free_descriptors() -> AbstractContextManager[None]:
    """Let this process open no file and no socket in the block; what is open stays open."""
    return _none_of(resource.RLIMIT_NOFILE)


@contextmanager
def _none_of(kind: int) -> Iterator[None]:
    limits = resource.getrlimit(kind)
    resource.setrlimit(kind, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, limits)
