"""A RabbitMQ that is low on memory: it takes no messages, and says why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app import services
from app.amqp.publish import Outgoing, Publisher
from app.errors import PublishFailed
from config.settings import Settings
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


@pytest.fixture
def exhausted(tmp_path: Path) -> Iterator[str]:
    """The URL of a broker of this test's alone that thinks a megabyte is all the memory there is."""
    settings = Settings(data_dir=tmp_path)
    more = settings.services_file.parent / "rabbitmq" / "conf.d"
    more.mkdir(parents=True)
    (more / "memory.conf").write_text("vm_memory_high_watermark.absolute = 1MB\n")
    try:
        yield services.up(settings).broker_url
    finally:
        services.down(settings)


def test_a_broker_that_takes_no_messages_is_an_error_that_gives_its_reason(exhausted: str) -> None:
    publisher = Publisher(exhausted, timeout=2)

    def blocked() -> bool:
        # While it has not looked at its memory yet, it takes some; and always those without a body.
        try:
            publisher.publish([Outgoing(exchange="amq.fanout", routing_key="", body=b"body", mandatory=False)])
        except PublishFailed as error:
            return "the broker takes no messages, it is low on memory or disk" in str(error)
        return False

    eventually(blocked, "the broker blocks publishers")
    publisher.close()
