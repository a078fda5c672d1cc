"""`celery -A yours dead`, called in this process; tests/acceptance/test_library.py runs it in a project of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner

from app.broker.dead_command import dead
from app.broker.publishing import Publisher
from app.broker.worker.install import install
from tests.support.dead import POLICIES, dead_letter, failed_delivery, failure
from tests.support.declared import DeclaredVhost

pytestmark = pytest.mark.integration


@pytest.fixture
def broker_url(vhost_of_dead_sets: DeclaredVhost) -> Iterator[str]:
    with vhost_of_dead_sets.lent() as url:
        yield url


def test_letters_are_shown_dropped_and_restored_by_id_and_cause(
    broker_url: str, publisher: Publisher, tmp_path: Path
) -> None:
    app = Celery("shop", broker=broker_url, set_as_current=False)
    install(app, POLICIES)
    export = str(tmp_path / "dropped.jsonl")

    def run(*arguments: str, exit_code: int = 0) -> str:
        done = CliRunner().invoke(dead, arguments, obj=SimpleNamespace(app=app))
        assert done.exit_code == exit_code, done.output
        return done.output

    [ident] = dead_letter(publisher, [failed_delivery([["table"], {}, {}])], failure(line=9))
    dead_letter(publisher, [failed_delivery([[item], {}, {}]) for item in ("lamp", "chair")])
    listed = run("list", "--limit", "1")
    assert (listed.count("\n"), listed.split("\t")[0]) == (1, ident)
    assert '"table"' in run("show", ident[:8])
    key, count, *_ = run("list", "--groups", "--limit", "1").split("\t")
    assert count == "2"
    assert run("drop", "--group", key, "--export", export) == "2 dropped\n"
    assert run("list").startswith(ident)
    assert run("drop", ident, "--export", export) == "1 dropped\n"
    assert run("list") == ""
    assert run("restore", export) == "3 restored\n"
    assert run("list").count("\n") == 3
    assert "matches none of the dead letters" in run("show", "none", exit_code=1)
    assert "give ids, --group KEY or --all" in run("replay", exit_code=2)
