"""`perennial caa` without services: wrong usage, confirmations, the order of an audit's threads, its progress."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from app.cli import caa_jobs
from app.cli.caa_audit import in_order
from app.cli.caa_jobs import GidRun
from app.cli.main import cli
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


def test_threads_work_at_the_same_time_and_their_results_come_in_order() -> None:
    together = threading.Barrier(4)

    def work(number: int) -> int:
        together.wait(30)
        return number * 2

    results = in_order(work, range(40), jobs=4)
    assert list(results) == [(number, number * 2) for number in range(40)]


def test_a_slow_item_holds_up_its_output_but_at_most_16_items_a_job_are_read_ahead() -> None:
    read: list[int] = []
    last_was_read = threading.Event()

    def items() -> Iterator[int]:
        for number in range(100):
            read.append(number)
            if len(read) == 32:
                last_was_read.set()
            yield number

    def work(number: int) -> int:
        if number == 0:
            # Only when all are read that may be, the first one ends.
            assert last_was_read.wait(30)
        return number

    results = in_order(work, items(), jobs=2)
    assert next(results) == (0, 0)
    assert len(read) == 32
    assert [number for number, _ in results] == list(range(1, 100))


def test_an_error_comes_in_its_turn_and_stops_the_threads_that_pause() -> None:
    stopped = threading.Event()

    def work(number: int) -> int:
        if number == 2:
            raise ValueError(number)
        if number > 2:
            assert stopped.wait(30)
        return number

    results = in_order(work, range(50), jobs=3, stop=stopped.set)
    assert [next(results), next(results)] == [(0, 0), (1, 1)]
    with pytest.raises(ValueError, match="2"):
        next(results)
    assert stopped.is_set()


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
