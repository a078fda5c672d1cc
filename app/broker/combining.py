"""Group commit: while one thread waits for a service, the calls of others are gathered and then made together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

Call = TypeVar("Call")
Reply = TypeVar("Reply")


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Call, Reply]):
    """A call, and its reply or error once it was made."""

    call: Call
    is_made: bool = False
    reply: Reply | BaseException | None = None


class Combiner(Generic[Call, Reply]):
    """Makes calls one group at a time. A call that finds none under way is made at once."""

    def __init__(self, make: Callable[[Sequence[Call]], Sequence[Reply | Exception]]) -> None:
        """`make` returns for each call of a group its reply or its error. What it raises is the error of all."""
        self._make = make
        self._turn = threading.Lock()
        self._gathered: deque[_Waiting[Call, Reply]] = deque()

    def __call__(self, call: Call) -> Reply:
        """Return the reply to a call, or raise its error."""
        waiting: _Waiting[Call, Reply] = _Waiting(call)
        self._gathered.append(waiting)
        try:
            with self._turn:
                if not waiting.is_made:
                    self._make_gathered()
        except BaseException:
            # A signal, such as that of a soft time limit, has ended the wait, so the reply has no reader.
            with suppress(ValueError):
                self._gathered.remove(waiting)
            raise
        if isinstance(waiting.reply, BaseException):
            raise waiting.reply
        return waiting.reply  # type: ignore[return-value]

    def _make_gathered(self) -> None:
        # Other threads append meanwhile: only what is here now is taken.
        group = [self._gathered.popleft() for _ in range(len(self._gathered))]
        replies: Sequence[Reply | BaseException]
        try:
            replies = self._make([each.call for each in group])
        except BaseException as error:  # noqa: BLE001 - Raised in every thread that waits for it.
            replies = [error] * len(group)
        for each, reply in zip(group, replies, strict=True):
            each.reply, each.is_made = reply, True
