"""What the settings give to several commands: what acts of the user work with."""

from __future__ import annotations

from app.operations.context import OperatorContext
from app.operations.operators import command_operator
from config.settings import get_settings


def operator_context() -> OperatorContext:
    """Return what acts of this process's user work with."""
    return OperatorContext(get_settings(), command_operator())
