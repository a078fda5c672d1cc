"""A private broker whose memory alarm a test raises and ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import requests

from app import services
from config.settings import Settings
from tests.support.rabbitmqctl import rabbitmqctl
from tests.support.waiting import eventually

#: A limit that no node stays below, and one that it does.
_LOW, _ENOUGH = "1MB", "1GB"


class AlarmedBroker:
    """A running node at `url`, in its alarm from the beginning."""

    def __init__(self, settings: Settings, url: str) -> None:
        self.url = url
        self._settings = settings

    def raise_alarm(self) -> None:
        """Let the node take no more messages."""
        self._set_limit(_LOW)

    def end_alarm(self) -> None:
        """Let the node take messages again."""
        self._set_limit(_ENOUGH)

    def _set_limit(self, limit: str) -> None:
        rabbitmqctl(self._settings, "set_vm_memory_high_watermark", "absolute", limit)


@contextmanager
def alarmed_broker(data_dir: Path) -> Iterator[AlarmedBroker]:
    """Run a node whose memory limit is one megabyte."""
    settings = Settings(data_dir=data_dir)
    more = settings.services_file.parent / "rabbitmq" / "conf.d"
    more.mkdir(parents=True)
    (more / "memory.conf").write_text(f"vm_memory_high_watermark.absolute = {_LOW}\n")
    try:
        urls = services.up(settings)
        alarms = f"{urls.broker_api_url}health/checks/local-alarms"
        eventually(lambda: requests.get(alarms, timeout=10).status_code == HTTPStatus.SERVICE_UNAVAILABLE, "its alarm")
        yield AlarmedBroker(settings, urls.broker_url)
    finally:
        services.down(settings)
