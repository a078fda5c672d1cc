"""Long acts on dead letters: what the store has of one after its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.broker.dead_letters import OperationResult
from app.errors import StoreError
from app.operations.letters import LetterOrder
from app.operations.long_acts import ACTS_PREFIX, LongAct, LongActs
from app.operations.operations import Operations
from app.operations.operators import command_operator
from app.storage.folder import FolderStore
from config.settings import Settings

pytestmark = pytest.mark.unit


class Unanswering(FolderStore):
    """Writes an act once without an answer, as a store whose connection breaks after the write."""

    answers = True

    def put(self, key: str, data: bytes, **conditions: Any) -> str:
        etag = super().put(key, data, **conditions)
        if key.startswith(ACTS_PREFIX) and not self.answers:
            self.answers = True
            raise StoreError("no answer")
        return etag


def test_letters_that_were_missing_count_once_if_the_end_of_an_act_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Unanswering(tmp_path)
    store.create()
    monkeypatch.setattr(Operations, "store", store)
    monkeypatch.setattr(LongActs, "_start", lambda _self, act, _ids, _patience: act)
    acts, ids = LongActs(Operations(Settings(), command_operator())), {"site.dead": ["1", "2", "3"]}

    def end(act: LongAct, result: OperationResult) -> LongAct:
        store.answers = False
        with pytest.raises(StoreError, match="no answer"):
            acts.end(act, result, ids)
        # As its thread does after a pause.
        acts.end(act, result, ids)
        return acts.read(act.id)

    first = end(
        acts.begin(LetterOrder(verb="replay"), ids, subject="all"),
        OperationResult(done=["1"], missing=["2"], stopped="the broker is away"),
    )
    assert (first.phase, first.done, first.missing, first.left) == ("stopped", 1, 1, 1)
    second = end(acts.resume(first.id), OperationResult(missing=["3"]))
    assert (second.phase, second.done, second.missing) == ("done", 1, 2)
