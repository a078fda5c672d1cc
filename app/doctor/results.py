"""The result of a check of `perennial doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: `problem`: messages can be lost, or work cannot continue. `warning`: only in the case that the text names.
#: `unverified`: this process's account at the broker may not try it.
Status = Literal["ok", "unverified", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One result of a check, whose name the runner of the checks fills in."""

    status: Status
    text: str
    check: str = ""
