"""Wrong usage of `perennial caa`, and when it asks for a confirmation, without services."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from app.cli.caa import needs_confirmation
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
        (["reindex", A, "--archive", "event-art-archive"], "served are cover-art-archive"),
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


@pytest.mark.parametrize(
    ("messages", "yes", "asks"), [(10_000, False, False), (10_001, False, True), (10_001, True, False)]
)
def test_more_than_10_000_messages_need_a_confirmation_which_yes_gives(messages: int, yes: bool, asks: bool) -> None:
    assert needs_confirmation(messages, yes=yes) is asks
