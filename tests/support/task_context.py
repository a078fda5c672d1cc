"""The context of tasks in the test's own process, as a worker has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from kombu import Connection

from app.topology.declare import declare_all
from config.settings import Settings, get_settings
from tasks import base
from tasks.base import Context


@contextmanager
def task_context(
    environment: Mapping[str, str], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Context]:
    """Yield the context of this process as in a worker, with the settings of `environment` and all queues declared."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    get_settings.cache_clear()
    base._contexts.clear()
    with Connection(settings.broker) as connection:
        assert not declare_all(connection, settings)
    yield base.context()
    base.context().publisher.close()
    base._contexts.clear()
    get_settings.cache_clear()
