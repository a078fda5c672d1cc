"""`perennial caa` without services: wrong usage, the threads of an audit, its progress."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import typer
from typer.testing import CliRunner

from app.broker.errors import PublishFailed
from app.cli import caa_audit, caa_run
from app.cli.caa_audit import Comparison
from app.cli.caa_run import GidRun
from app.cli.main import cli
from app.coverart.audit import ArtFinding
from app.coverart.jobs import Delete
from app.coverart.project import Entity
from app.errors import ArchiveUnavailable, DatabaseUnavailable
from config.settings import get_settings

pytestmark = pytest.mark.unit

A = "16ebbc86-670c-4ad3-980b-bfbd1eee4ff4"
B = "76df3287-6cda-33eb-8e9a-044b5e15ffdd"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["reindex"], "give GIDs, or --all"),
        (["audit", A, "--all"], "give GIDs, or --all"),
        (["reindex", "16ebbc86"], "gid '16ebbc86': expected a UUID"),
        (["audit", A, "--after", B], "--after and --limit go with --all"),
        (["audit", A, "--yes"], "--yes goes with --fix"),
        (["reindex", A, "--archive", "art"], "served are cover-art-archive, event-art-archive"),
    ],
)
def test_wrong_usage_names_the_reason(arguments: list[str], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSICBRAINZ_URL", "postgresql://127.0.0.1:1/musicbrainz")
    get_settings.cache_clear()
    try:
        done = CliRunner().invoke(cli, ["caa", *arguments])
    finally:
        get_settings.cache_clear()
    assert done.exit_code == 2
    assert reason in " ".join(done.output.replace("│", " ").split())


def away() -> None:
    raise ArchiveUnavailable("away", retry_after=60.0)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[GidRun]:
    """Yield a run through all gids, which needs no service before it reads."""
    monkeypatch.setenv("MUSICBRAINZ_URL", "postgresql://127.0.0.1:1/musicbrainz")
    get_settings.cache_clear()
    yield GidRun("", [], every=True, after=A, limit=None, rate=None)
    get_settings.cache_clear()


class Scripted(Comparison):
    """Compares three items at a time; the third one cannot be compared, and all after it pause."""

    together = threading.Barrier(3)

    def findings(self, pair: tuple[str, Entity | None]) -> tuple[ArtFinding, ...]:
        gid, _ = pair
        if int(gid) < 3:
            self.together.wait(30)
        if gid == "2":
            raise ArchiveUnavailable(gid)
        if int(gid) > 2:
            self.run.patiently(away, lambda error: True)
        return (ArtFinding(gid, "dark", ""),)


def test_items_are_compared_at_the_same_time_and_an_error_comes_in_its_turn_and_ends_all_pauses(run: GidRun) -> None:
    comparison = Scripted(run, Mock(), Mock(), every_metadata=False)
    compared = comparison.compare([[(str(number), None) for number in range(50)]], jobs=3)
    assert [next(compared), next(compared)] == [(gid, (ArtFinding(gid, "dark", ""),)) for gid in ("0", "1")]
    with pytest.raises(ArchiveUnavailable, match="2"):
        next(compared)


def test_a_look_up_after_the_comparison_pauses_again(run: GidRun, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = Scripted(run, Mock(), Mock(), every_metadata=False)
    assert list(comparison.compare([], jobs=1)) == []
    monkeypatch.setattr(caa_run, "PAUSES", (0.01,))
    read = Mock(side_effect=[DatabaseUnavailable("away"), {}])
    assert run.patiently(read, lambda error: True) == {}


def test_progress_names_the_rate_the_time_left_and_where_to_continue(
    run: GidRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run.advance([A] * 5_400)
    text = f"5,400 of 1,400,000, 45.0/s, 8 h 37 min left; continue with --after {A}"
    assert run.progress_text(1_400_000, 120.0) == text
    assert run.progress_text(5_500, 120.0).startswith("5,400 of 5,500, 45.0/s, 0 min left")
    totals: list[int] = []

    def total() -> int:
        totals.append(1)
        return 9

    with run.progress(total) as show:
        show()
    assert totals == []
    monkeypatch.setattr(caa_run, "LINE_EVERY", 0.0)
    with run.progress(total) as show:
        show()
        show()
    assert totals == [1]
    assert capsys.readouterr().err.count("continue with --after") == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, typer.Abort])
def test_a_run_that_the_user_ends_says_where_to_continue_also_at_a_question(
    error: type[BaseException], run: GidRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run.advance([A])
    with pytest.raises(error), run.resumable():
        raise error
    assert f"continue with --after {A}" in capsys.readouterr().err


def held_back(monkeypatch: pytest.MonkeyPatch, run: Mock, count: int) -> caa_audit.AuditReport:
    """Return a report of an audit that found images to delete, and whose user confirms their deletion."""
    context = SimpleNamespace(operator=SimpleNamespace(name="kim"))
    monkeypatch.setattr(caa_audit, "operator_context", Mock(return_value=context))
    monkeypatch.setattr(sys, "stdin", Mock(isatty=Mock(return_value=True)))
    monkeypatch.setattr(typer, "confirm", Mock(return_value=True))
    report = caa_audit.AuditReport(run, fix=True, yes=False, as_json=False)
    report.add(A, tuple(ArtFinding(A, "dark", f"{id}.jpg", Delete(A, id, "jpg")) for id in range(count)))
    return report


def test_deletions_that_wait_for_a_confirmation_are_not_dropped_in_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = held_back(monkeypatch, Mock(), 1)
    find_gids = Mock(side_effect=DatabaseUnavailable("away"))
    with pytest.raises(DatabaseUnavailable), report.deleting_images(find_gids):
        raise DatabaseUnavailable("away")
    assert "1 not deleted, or not all: audit these items again" in capsys.readouterr().err


def test_deletions_that_were_enqueued_before_the_broker_failed_are_not_counted_as_not_deleted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(caa_audit, "BATCH", 2)
    run = Mock(publish=Mock(side_effect=[None, None, PublishFailed("no broker")]))
    report = held_back(monkeypatch, run, 5)
    with pytest.raises(PublishFailed), report.deleting_images(Mock(return_value={4: B})):
        pass
    assert "3 not deleted, or not all: audit these items again" in capsys.readouterr().err
