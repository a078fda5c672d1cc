"""What a worker becomes by its queues, and what it refuses to be."""

from __future__ import annotations

import re

import pytest
from celery import Celery

from app.broker.errors import WorkerMisconfigured
from app.roles import given_names, prepare, require_role, searcher_id
from app.topology.queues import REQUEST_TTL_MS, searcher_queue, task_queues
from config.routes import ORCHESTRATOR, REQUESTS, SEARCHER
from config.settings import Settings

pytestmark = pytest.mark.unit

UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def queues() -> dict[str, object]:
    """Return Celery's queues as they are when a worker starts."""
    app = Celery("roles", set_as_current=False)
    app.conf.update(task_queues=task_queues(Settings()), task_create_missing_queues=False)
    prepare(app.amqp.queues)
    return app.amqp.queues  # type: ignore[no-any-return]


def test_a_worker_without_queues_takes_tasks_and_is_neither_orchestrator_nor_searcher() -> None:
    prepared = queues()
    taken = prepared.consume_from  # type: ignore[attr-defined]
    assert {"site.index", "site.pack", "site.tick"} <= set(taken)
    assert not {ORCHESTRATOR, REQUESTS} & set(taken)
    assert searcher_id(taken) is None
    prepared.deselect(["site.pack"])  # type: ignore[attr-defined]
    assert not {ORCHESTRATOR, REQUESTS, "site.pack"} & set(taken)
    require_role(taken, solo=False)


def test_site_searcher_is_a_queue_of_the_workers_own() -> None:
    taken = []
    for _ in range(2):
        prepared = queues()
        prepared.select([SEARCHER])  # type: ignore[attr-defined]
        taken.append(prepared.consume_from)  # type: ignore[attr-defined]
    (one,), (other,) = taken
    assert one != other
    assert re.fullmatch(rf"site\.searcher\.{UUID}", one)
    assert one == f"{SEARCHER}.{searcher_id(taken[0])}"
    assert given_names(taken[0]) == {one: SEARCHER}
    declared = taken[0][one]
    assert (declared.name, declared.auto_delete, declared.durable) == (one, True, True)
    require_role(taken[0], solo=True)


def test_orchestrator_and_searcher_need_the_solo_pool_and_the_orchestrator_both_of_its_queues() -> None:
    own = searcher_queue("1").name
    require_role([ORCHESTRATOR, REQUESTS], solo=True)
    require_role(["site.index", own], solo=True)
    for wrong in ([ORCHESTRATOR], [REQUESTS], ["site.index", REQUESTS]):
        with pytest.raises(WorkerMisconfigured, match="--queues=orchestrator,orchestrator.requests"):  # noqa: RUF043 - It is meant.
            require_role(wrong, solo=True)
    for wrong in ([ORCHESTRATOR, REQUESTS], [own]):
        with pytest.raises(WorkerMisconfigured, match="--pool=solo"):
            require_role(wrong, solo=False)


def test_what_nobody_waits_for_any_more_is_in_no_queue() -> None:
    settings = Settings()
    assert settings.search_deadline * 1_000 < REQUEST_TTL_MS
