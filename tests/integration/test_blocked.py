"""A RabbitMQ that is low on memory: it takes no messages, and says why."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest

from app import services
from app.broker.errors import PublishFailed, RequestTimedOut, Unroutable
from app.broker.publishing import Outgoing, Publisher
from app.broker.rpc.requestor import Requestor
from config.settings import Settings
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def exhausted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a private broker whose memory limit is one megabyte."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("exhausted"))
    more = settings.services_file.parent / "rabbitmq" / "conf.d"
    more.mkdir(parents=True)
    (more / "memory.conf").write_text("vm_memory_high_watermark.absolute = 1MB\n")
    try:
        yield services.up(settings).broker_url
    finally:
        services.down(settings)


@pytest.mark.slow
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


def test_a_request_to_such_a_broker_fails_at_its_deadline_with_that_reason(exhausted: str) -> None:
    requestor = Requestor(exhausted, timeout=2)

    def blocked() -> bool:
        try:
            requestor.request(Outgoing(exchange="amq.direct", routing_key="nobody", body=b"body"), deadline=0.2)
        except Unroutable:  # It has not looked at its memory yet.
            return False
        except RequestTimedOut:  # That request is what the broker took note of this connection by.
            return False
        except PublishFailed as error:
            return "the broker takes no messages, it is low on memory or disk" in str(error)
        raise AssertionError("a reply has come, but no responder runs")

    eventually(blocked, "requests fail for that reason")
    eventually(lambda: not requestor._thread._outbox, "what nobody waits for any more is not kept")
    requestor.close()
    # The blocked broker does not answer the close, so the socket is closed by garbage collection.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
