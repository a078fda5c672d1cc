"""An orchestrator whose store accepts connections and says nothing."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import pytest

from app.broker.publishing import Publisher
from app.broker.rpc.requestor import Requestor
from app.cluster.protocol import Routes, read
from app.messages.envelopes import event_message, request_message
from app.topology.queues import requests_exchange
from config.routes import ORCHESTRATOR
from config.settings import Settings
from tests.support.waiting import eventually
from tests.support.worker import worker

pytestmark = pytest.mark.acceptance


def test_requests_are_answered_while_the_store_hangs(
    settings: Settings, environment: dict[str, str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.listen(64)
        own = {
            **environment,
            "STORE_URL": "s3://bucket",
            "S3_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        log = tmp_path / "orchestrator.log"
        with worker(own, log, queues=[ORCHESTRATOR], options=["--pool=solo"], concurrency=1) as running:
            publisher, requestor = Publisher(settings.broker), Requestor(settings.broker, exchanges=[requests_exchange])
            with closing(publisher), closing(requestor):
                publisher.publish([event_message("update", {"domain": "site.example"})])
                eventually(lambda: "announced pack" in running.log, "it reports the slow store", seconds=60)
                assert "Retry " not in running.log, "the message of an update spends no retry on the store"
                reply = requestor.request(request_message("get_routes", {}), deadline=10)
                assert read(Routes, reply.body).routes == ()
            running.kill()
