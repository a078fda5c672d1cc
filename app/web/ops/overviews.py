"""The overview of one web process, with the checks of `perennial doctor`, which run only while pages are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi import Request

from app.cluster.protocol import Routes
from app.doctor.checks import run_checks
from app.doctor.circuit_breakers import breaker_states
from app.operations.overview import CheckLine, Overview
from config.settings import Settings


def overview_for(settings: Settings, routes: Callable[[], Routes]) -> Overview:
    """Return the overview of a web process; `routes` asks the orchestrator."""

    def checks() -> Sequence[CheckLine]:
        # Importing app.celery reads the settings of the environment, which the tests of this page do not have.
        from app.celery import app

        return [CheckLine(each.status, each.check, each.text) for each in run_checks(settings, app.conf)]

    def breakers() -> Sequence[CheckLine]:
        return [
            CheckLine("ok" if each.reason is None else "problem", each.service, str(each) if each.reason else "closed")
            for each in breaker_states(settings)
        ]

    return Overview(settings, routes=routes, checks=checks, breakers=breakers)


def overview_of(request: Request) -> Overview:
    """Return the overview of the process that serves a request."""
    overview: Overview = request.app.state.overview
    return overview
