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
        # While it looks at its memory for the first time it still takes some.
        with pytest.raises(PublishFailed) as raised:
            publisher.publish([Outgoing(exchange="", routing_key="nowhere", body=b"")])
        return "the broker takes no messages: low on memory" in str(raised.value)

    eventually(blocked, "the broker blocks publishers")
    assert blocked()
    publisher.close()
