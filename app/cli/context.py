"""What the settings give to several commands: operations in the name of the user."""

from __future__ import annotations

from app.operations.operations import Operations
from app.operations.operators import command_operator
from config.settings import get_settings


def operations() -> Operations:
    """Return what acts of this process's user work with."""
    return Operations(get_settings(), command_operator())
