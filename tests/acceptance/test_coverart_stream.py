"""A steady stream of messages about the same items: each has as few runs as the coalescing window allows."""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path

import pytest

from app.services import Urls
from tests.support.art import art_corner
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

#: Seconds of the window, items, messages to each of them. One message of each comes with every window.
WINDOW, ITEMS, EACH = 4.0, 10, 8

#: Runs allowed for each that is due.
ALLOWED = 1.05


def due(times: list[float]) -> int:
    """Return the runs that messages at these times need: each run takes those of one window."""
    runs, end = 0, 0.0
    for at in times:
        # A message that comes with the end of a window is still taken: its job has not begun.
        if at > end + WINDOW / 20:
            runs, end = runs + 1, at + WINDOW
    return runs


@pytest.mark.long
@pytest.mark.slow
def test_a_steady_stream_has_as_few_runs_as_the_window_allows(
    services: Urls, musicbrainz_template: tuple[str, str], tmp_path: Path
) -> None:
    gids = [str(uuid.uuid4()) for _ in range(ITEMS)]
    posted: dict[str, list[float]] = {gid: [] for gid in gids}
    with art_corner(services, musicbrainz_template, tmp_path, ART_WINDOW=str(WINDOW)) as art, art.worker():
        begun = time.monotonic()
        for number in range(ITEMS * EACH):
            threading.Event().wait(max(0.0, begun + number * WINDOW / ITEMS - time.monotonic()))
            gid = gids[number % ITEMS]
            posted[gid].append(time.monotonic())
            art.post("delete", f"index.json\n{gid}".encode())
        eventually(lambda: set(art.archive.paths()) >= {f"/mbid-{gid}/index.json" for gid in gids}, "all ran")
        eventually(lambda: not art.waiting(), "nothing is left", seconds=60)
        eventually(lambda: not threading.Event().wait(1.0) and not art.waiting(), "nothing runs")
        runs, wanted = len(art.archive.requests), sum(map(due, posted.values()))
    print(f"{ITEMS * EACH} messages, {wanted} runs due, {runs} runs")
    assert runs <= ALLOWED * wanted
