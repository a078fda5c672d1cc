"""Operators: names, roles and origins, and what a role permits."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from enum import StrEnum

from app.broker.dead_letters.audit import user_name
from app.errors import RoleRequired


class Role(StrEnum):
    """What an operator may do: `read` changes nothing."""

    READ = "read"
    ACT = "act"


class Origin(StrEnum):
    """The way by which an operator acts; `system` is what the system does by its settings."""

    COMMAND = "command"
    PAGE = "page"
    API = "api"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator, by the name that the audit shows."""

    name: str
    role: Role
    origin: Origin

    @property
    def may_act(self) -> bool:
        """Whether the operator may change anything."""
        return self.role is Role.ACT

    def require_act(self, act: str) -> None:
        """Raise RoleRequired unless the operator may change anything; names the act."""
        if not self.may_act:
            raise RoleRequired(f"{act}: {self.name} may read, and not act")


def command_operator() -> Operator:
    """Return the operator of a command: the user of this process on this host."""
    return Operator(f"{user_name()}@{socket.gethostname()}", Role.ACT, Origin.COMMAND)


def system_operator() -> Operator:
    """Return the operator of what a process of the system does on this host by its settings."""
    return Operator(f"system@{socket.gethostname()}", Role.ACT, Origin.SYSTEM)
