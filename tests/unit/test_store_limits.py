"""The time that a hung store takes from a task, and that of the task."""

from __future__ import annotations

import pytest

from app.storage.s3 import ATTEMPTS, CONNECT_TIMEOUT, READ_TIMEOUT
from config.routes import ROUTES, STORE_QUEUES, Route
from config.settings import Settings

pytestmark = pytest.mark.unit

#: Seconds of boto3's backoff between two attempts, at most.
BACKOFF = 2


#: Those that use the store: `index+crawl` does not.
STORING = [route for route in ROUTES if route.queue in STORE_QUEUES and route.type != "index+crawl"]


@pytest.mark.parametrize("route", STORING, ids=lambda route: route.type)
def test_a_request_to_a_hung_store_and_its_probe_end_before_the_time_limit_of_the_task(route: Route) -> None:
    request = ATTEMPTS * (CONNECT_TIMEOUT + READ_TIMEOUT) + (ATTEMPTS - 1) * BACKOFF
    # A page may take the time for robots.txt and for itself before it is stored.
    fetch = 2 * Settings.model_fields["response_timeout"].default
    assert 2 * request + fetch <= route.soft_time_limit
