"""The act that lets the timer of a domain be due now."""

from __future__ import annotations

from app.crawl.urls import parse_domain
from app.errors import ResourceNotFound
from app.operations.context import OperatorContext
from app.timers.timers import Timers


def fire(ops: OperatorContext, domain: str, *, why: str = "") -> str:
    """Let a domain's timer be due now: the next tick publishes its callback. Return the domain.

    Raises InvalidUrl, and ResourceNotFound for a domain without a timer.
    """
    name = parse_domain(domain)
    with ops.act("timer fire", name, why=why):
        if not Timers(ops.redis).make_due(name):
            raise ResourceNotFound(f"{name} has no timer")
    return name
