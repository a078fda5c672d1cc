"""Which paths of a site its crawls follow: patterns as in robots.txt, matched in linear time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

_MAX_LENGTH = 500


@dataclass(frozen=True, slots=True)
class PathRules:
    """Patterns of paths with their queries. No pattern in `include` means all paths; `exclude` is stronger.

    A pattern holds for all paths that begin with it. `*` stands for any characters, a `$` at the end for the end.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def allow(self, path: str) -> bool:
        """Return whether a path, with its query, is to be followed."""
        if self.excludes(path):
            return False
        return not self.include or any(_matches(pattern, path) for pattern in self.include)

    def excludes(self, path: str) -> bool:
        """Return whether `exclude` has a pattern for a path, with its query."""
        return any(_matches(pattern, path) for pattern in self.exclude)

    @staticmethod
    def check(pattern: str) -> str:
        """Return the pattern; raises ValueError for an invalid one."""
        if not pattern.startswith(("/", "*")) or len(pattern) > _MAX_LENGTH or not pattern.isprintable():
            raise ValueError(
                f"{pattern[:100]!r}: a pattern begins with '/' or '*' and has at most {_MAX_LENGTH} characters"
            )
        return pattern


#: Follows every path.
ALL_PATHS = PathRules()


def _matches(pattern: str, path: str) -> bool:
    parts, to_end = _parts(pattern)
    if not path.startswith(parts[0]):
        return False
    position = len(parts[0])
    # The last part of a pattern with `$` must be at the end; the first place is the best one for each other part.
    for part in parts[1:-1] if to_end else parts[1:]:
        found = path.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    if not to_end:
        return True
    return path == parts[0] if len(parts) == 1 else len(path) - position >= len(parts[-1]) and path.endswith(parts[-1])


@lru_cache(maxsize=1_024)
def _parts(pattern: str) -> tuple[tuple[str, ...], bool]:
    """Return the texts between the wildcards of a pattern, and whether it holds to the end of the path."""
    to_end = pattern.endswith("$")
    return tuple(pattern.removesuffix("$").split("*")), to_end
