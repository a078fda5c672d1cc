"""A timer of an event loop that a test turns by hand."""

from __future__ import annotations

from collections.abc import Callable


class HandTimer:
    """Keeps what is to be called, with the seconds of each call, until `pass_time`."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._due: list[Callable[[], None]] = []

    def call_after(self, seconds: float, function: Callable[..., None], args: tuple[object, ...] = ()) -> None:
        """Note a call."""
        self.seconds.append(seconds)
        self._due.append(lambda: function(*args))

    def pass_time(self) -> None:
        """Make every call that is due."""
        due, self._due = self._due, []
        for each in due:
            each()
