"""`perennial caa` without services: wrong usage, the threads of an audit, its progress."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import typer
from typer.testing import CliRunner

from app.cli import caa_audit, caa_jobs
from app.cli.caa_audit import Comparison
from app.cli.caa_jobs import GidRun
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
            assert self.run.stopped.wait(30)
        return (ArtFinding(gid, "dark", ""),)


def test_items_are_compared_at_the_same_time_and_an_error_comes_in_its_turn_and_ends_all_pauses() -> None:
    run, unused = Mock(stopped=threading.Event()), Mock()
    comparison = Scripted(run, unused, unused, every_metadata=False)
    compared = comparison.compare([[(str(number), None) for number in range(50)]], jobs=3)
    assert [next(compared), next(compared)] == [(gid, (ArtFinding(gid, "dark", ""),)) for gid in ("0", "1")]
    with pytest.raises(ArchiveUnavailable, match="2"):
        next(compared)


def test_progress_names_the_rate_the_time_left_and_where_to_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSICBRAINZ_URL", "postgresql://127.0.0.1:1/musicbrainz")
    get_settings.cache_clear()
    position = GidRun("", [], every=True, after=A, limit=None, rate=None)
    get_settings.cache_clear()
    position.advance([A] * 5_400)
    text = f"5,400 of 1,400,000, 45.0/s, 8 h 37 min left; continue with --after {A}"
    assert position.progress_text(1_400_000, 120.0) == text
    assert position.progress_text(5_500, 120.0).startswith("5,400 of 5,500, 45.0/s, 0 min left")
    totals: list[int] = []

    def total() -> int:
        totals.append(1)
        return 9

    with position.progress(total) as show:
        show()
    assert totals == []
    monkeypatch.setattr(caa_jobs, "LINE_EVERY", 0.0)
    with position.progress(total) as show:
        show()
        show()
    assert totals == [1]
    assert capsys.readouterr().err.count("continue with --after") == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, typer.Abort])
def test_a_run_that_the_user_ends_says_where_to_continue_also_at_a_question(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSICBRAINZ_URL", "postgresql://127.0.0.1:1/musicbrainz")
    get_settings.cache_clear()
    run = GidRun("", [], every=True, after="", limit=None, rate=None)
    get_settings.cache_clear()
    run.advance([A])
    with pytest.raises(error), run.resumable():
        raise error
    assert f"continue with --after {A}" in capsys.readouterr().err


def test_deletions_that_wait_for_a_confirmation_are_not_dropped_in_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    context = SimpleNamespace(operator=SimpleNamespace(name="kim"))
    monkeypatch.setattr(caa_audit, "operator_context", Mock(return_value=context))
    monkeypatch.setattr(sys, "stdin", Mock(isatty=Mock(return_value=True)))
    monkeypatch.setattr(typer, "confirm", Mock(return_value=True))
    report = caa_audit.AuditReport(Mock(), fix=True, yes=False, as_json=False)
    report.add(A, (ArtFinding(A, "dark", "1.jpg", Delete(A, 1, "jpg")),))
    homes = Mock(side_effect=DatabaseUnavailable("away"))
    with pytest.raises(DatabaseUnavailable), report.deleting_images(homes):
        raise DatabaseUnavailable("away")
    assert "1 not deleted, or not all: audit these items again" in capsys.readouterr().err
