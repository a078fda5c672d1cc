"""Long acts on dead letters: what the store has of one after its runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.broker.dead_letters import ActResult
from app.errors import StoreError
from app.operations.context import OperatorContext
from app.operations.letters import LetterOrder
from app.operations.long_acts import ACTS_PREFIX, LongAct, LongActs
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


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Unanswering:
    store = Unanswering(tmp_path)
    store.create()
    monkeypatch.setattr(OperatorContext, "store", store)
    monkeypatch.setattr(LongActs, "_start", lambda _self, act, _ids: act)
    return store


@pytest.fixture
def acts(store: Unanswering) -> LongActs:
    """Return acts whose runs a test ends by hand."""
    del store
    return LongActs(OperatorContext(Settings(), command_operator()))


def test_letters_that_were_missing_count_once_if_the_end_of_an_act_is_written_again(
    store: Unanswering, acts: LongActs
) -> None:
    ids = {"site.dead": ["1", "2", "3"]}

    def end(act: LongAct, result: ActResult) -> LongAct:
        store.answers = False
        with pytest.raises(StoreError, match="no answer"):
            acts.end(act, result, ids)
        # As its thread does after a pause.
        acts.end(act, result, ids)
        return acts.read(act.id)

    first = end(
        acts.begin(LetterOrder(verb="replay"), ids, subject="all"),
        ActResult(done=["1"], missing=["2"], stopped="the broker is away"),
    )
    assert (first.phase, first.done, first.missing, first.left) == ("stopped", 1, 1, 1)
    second = end(acts.resume(first.id), ActResult(missing=["3"]))
    assert (second.phase, second.done, second.missing) == ("done", 1, 2)


def test_a_cancelled_act_stays_cancelled_if_its_end_is_written_again_or_comes_after_a_silence(
    store: Unanswering, acts: LongActs
) -> None:
    ids, halted = {"site.dead": ["1", "2"]}, ActResult(done=["1"], stopped="cancelled")
    act = acts.begin(LetterOrder(verb="replay"), ids, subject="all")
    acts.steer(act.id, "cancel")
    store.answers = False
    with pytest.raises(StoreError, match="no answer"):
        acts.end(act, halted, ids)
    acts.end(act, halted, ids)
    assert (acts.read(act.id).phase, acts.read(act.id).note) == ("cancelled", "")
    silent = acts.begin(LetterOrder(verb="replay"), ids, subject="all")
    acts.change(silent.id, lambda former: replace(former, phase="interrupted"))
    acts.steer(silent.id, "cancel")
    acts.end(silent, ActResult(done=["1"], stopped="another process counted it as interrupted"), ids)
    assert (acts.read(silent.id).phase, acts.read(silent.id).done) == ("cancelled", 1)
