"""Long acts on dead letters: carried out in a thread, kept in the store, paused, resumed, cancelled and continued."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter

from app.broker.dead_letters import ActResult, IdsBySet
from app.broker.errors import (
    ApplicationError,
    BrokerUnreachable,
    DeadSetBusy,
    InvalidMessage,
    error_text,
    error_with_class,
)
from app.errors import ResourceNotFound, StoreError
from app.messages.dead_sets import dead_directory, new_export
from app.operations.context import OperatorContext
from app.operations.letters import LetterOrder, carry_out, summary
from app.operations.stored_times import EpochTime
from app.storage.damage import read_intact
from app.storage.reading import get_if_present, parsing
from app.storage.store import StoredObject
from app.storage.updating import update_object

logger = logging.getLogger(__name__)

#: Keys of acts begin with this, and keys of the ids of their letters.
ACTS_PREFIX: Final = "acts/"
_IDS_PREFIX: Final = "act-letters/"
_ID: Final = re.compile(r"\d{8}T\d{6}\.\d{6}-[0-9a-f]{8}")

#: Seconds between two writes of a running act, and without one after which its process counts as dead.
HEARTBEAT_INTERVAL: Final = 1.0
HEARTBEAT_TIMEOUT: Final = 10.0
#: Seconds that a request waits for a short act to end.
PATIENCE: Final = 2.0
#: Seconds between attempts to write how an act ended, an hour in all.
_PAUSES: Final = (1.0, 2.0, 5.0, *[10.0] * 359)
#: Letters that stayed or were missing, of which an act keeps the ids and reasons.
MAX_LISTED: Final = 100
#: Letters of one act.
MAX_LETTERS: Final = 200_000

#: `interrupted`: its process was killed. `stopped`: the broker, a canary or an error ended it early.
Phase = Literal["running", "paused", "cancelled", "interrupted", "stopped", "done"]
Wanted = Literal["", "paused", "cancelled"]
#: What an operator does with an act that was begun.
Steering = Literal["pause", "resume", "cancel"]
#: Phases in which an act can continue.
RESUMABLE: Final[frozenset[Phase]] = frozenset({"paused", "interrupted", "stopped", "done"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LongAct:
    """A long act as kept in the store. Times are seconds since the epoch; counts are letters.

    `run` is the id of its present or last run, `wanted` what an operator requested. `left` of the `total` remain to
    be done when it continues, those that `stayed` in the last run among them. `listed` has reasons by id of the first
    letters that stayed, or were no longer there.
    """

    id: str
    order: LetterOrder
    operator: str
    subject: str
    why: str
    began: EpochTime
    updated: EpochTime
    total: int
    left: int
    run: str
    export: str = ""
    phase: Phase = "running"
    wanted: Wanted = ""
    done: int = 0
    stayed: int = 0
    missing: int = 0
    listed: dict[str, str] = field(default_factory=dict)
    #: Why it waits or ended early.
    note: str = ""

    @property
    def is_running(self) -> bool:
        """Whether a thread works on it."""
        return self.phase == "running" and not self.is_silent

    @property
    def is_silent(self) -> bool:
        """Whether it should run, and its process reported nothing for HEARTBEAT_TIMEOUT seconds."""
        return self.phase == "running" and time.time() - self.updated > HEARTBEAT_TIMEOUT

    @property
    def can_resume(self) -> bool:
        """Whether it can continue with the letters that are left."""
        return self.phase in RESUMABLE and self.left > 0


_READER: Final = TypeAdapter(LongAct)


class LongActs:
    """Begins, reads and steers the acts in an operator's name. All methods raise StoreError."""

    def __init__(self, ops: OperatorContext) -> None:
        self._ops = ops
        self._store = ops.store

    def begin(self, order: LetterOrder, ids: IdsBySet, *, subject: str, why: str = "") -> LongAct:
        """Begin an act on letters in a thread and return it, after at most PATIENCE seconds.

        Raises RoleRequired, and InvalidMessage for no letter or too many.
        """
        now = time.time()
        ident = f"{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%S.%f}-{uuid.uuid4().hex[:8]}"
        with self._ops.act(f"{order.verb} letters", subject, why=why, id=ident, **order.options.given()) as audited:
            total = sum(map(len, ids.values()))
            if not 1 <= total <= MAX_LETTERS:
                raise InvalidMessage(f"{total:,} letters are chosen: expected 1 to {MAX_LETTERS:,}")
            self._write_ids(ident, chosen=ids, left=ids)
            act = LongAct(
                id=ident,
                order=order,
                operator=self._ops.operator.name,
                subject=subject,
                why=why,
                began=now,
                updated=now,
                total=total,
                left=total,
                run=uuid.uuid4().hex,
                export=new_export(self._ops.settings).name if order.verb == "drop" else "",
            )
            self._store.put(_key(ident), _encoded(act), if_absent=True)
            audited.result = f"begun with {total:,} letters"
        return self._start(act, ids)

    def read(self, ident: str) -> LongAct:
        """Return an act; raises ResourceNotFound. One whose process was killed becomes `interrupted`.

        Then its letters that left the dead set count as done: the killed process had no time to say so.
        """
        act = self._stored(ident)
        if not act.is_silent:
            return act
        with suppress(DeadSetBusy, BrokerUnreachable):
            present = {}
            for name, listed in self.ids(ident).items():
                wanted, letters = set(listed), self._ops.dead_sets.only(name).iter_summaries()
                present[name] = [letter.id for letter in letters if letter.id in wanted]
            left = sum(map(len, present.values()))

            def interrupted(former: LongAct) -> LongAct:
                if not former.is_silent:
                    return former
                done = max(former.done, former.total - former.missing - left)
                return replace(former, phase="interrupted", wanted="", done=done, left=left, note="")

            self._write_ids(ident, chosen=self.ids(ident, chosen=True), left=present)
            return self.change(ident, interrupted)
        return replace(act, phase="interrupted", note="the dead set cannot be read now: what is left is unknown")

    def recent(self, number: int = 20) -> list[LongAct]:
        """Return the latest acts, as they were written last, without damaged ones."""
        keys = sorted((stat.key for stat in self._store.list(ACTS_PREFIX)), reverse=True)
        return [act for _, act in read_intact(self._store, keys[:number], lambda _, data: _decoded(data))]

    def steer(self, ident: str, do: Steering, *, why: str = "") -> LongAct:
        """Pause, resume or cancel an act. It pauses and ends after its present batch.

        Raises InvalidMessage for one that has ended.
        """
        if do == "resume":
            return self.resume(ident, why=why)
        wanted: Wanted = "paused" if do == "pause" else "cancelled"

        def steered(act: LongAct) -> LongAct:
            if act.is_running:
                return replace(act, wanted=wanted)
            if wanted == "cancelled" and act.can_resume and act.phase != "done":
                return replace(act, phase="cancelled", wanted="")
            raise InvalidMessage(f"act {ident} is {act.phase}")

        with self._ops.act(f"{do} act", ident, why=why) as audited:
            act = self.read(ident)
            audited.result = f"{act.done:,} of {act.total:,} done"
            return self.change(ident, steered)

    def resume(self, ident: str, *, why: str = "") -> LongAct:
        """Continue an act with the letters that are left. Raises InvalidMessage for one that cannot continue."""
        run = uuid.uuid4().hex

        def resumed(act: LongAct) -> LongAct:
            if not act.can_resume:
                raise InvalidMessage(f"act {ident} is {act.phase}, and {act.left:,} letters are left")
            return replace(act, phase="running", wanted="", run=run, updated=time.time(), note="", stayed=0)

        with self._ops.act("resume act", ident, why=why) as audited:
            act = self.read(ident)
            audited.result = f"{act.left:,} letters are left"
            act = self.change(ident, resumed)
        return self._start(act, self.ids(ident))

    def ids(self, ident: str, *, chosen: bool = False) -> dict[str, list[str]]:
        """Return the ids of the letters that are left, or of all chosen ones, by dead set."""
        stored = get_if_present(self._store, _key(ident, _IDS_PREFIX))
        if stored is None:
            return {}
        with parsing("the letters of an act", stored.data):
            found: dict[str, list[str]] = json.loads(stored.data)["chosen" if chosen else "left"]
        return found

    def died_again(self, ident: str) -> int:
        """Return how many of an act's letters are in the dead sets again."""
        ids = {letter_id for ids in self.ids(ident, chosen=True).values() for letter_id in ids}
        return sum(not ids.isdisjoint(letter.replay_history) for letter in self._ops.dead_sets.iter_letters())

    def change(self, ident: str, change: Callable[[LongAct], LongAct]) -> LongAct:
        """Replace an act in the store by what `change` makes of it, and return it."""

        def changed(stored: StoredObject | None) -> tuple[LongAct, bytes]:
            if stored is None:
                raise ResourceNotFound(f"there is no act {ident}")
            act = change(_decoded(stored.data))
            return act, _encoded(act)

        return update_object(self._store, _key(ident), changed)

    def end(self, act: LongAct, result: ActResult, ids: IdsBySet) -> None:
        """Write how a run ended, and what it left."""
        gone = {*result.done, *result.missing}
        left = {name: kept for name, each in ids.items() if (kept := [ident for ident in each if ident not in gone])}
        count = sum(map(len, left.values()))
        missing = dict.fromkeys(result.missing, "it was no longer there")
        listed = dict(islice((result.stayed | missing).items(), MAX_LISTED))

        def ended(former: LongAct) -> LongAct:
            if former.run != act.run:
                return former
            # What an operator wanted stays, also where it was carried out: by this write, or while the run was silent.
            kept = former.phase if former.phase in ("paused", "cancelled") else "stopped"
            phase: Phase = (former.wanted or kept) if result.stopped else "done"
            return replace(
                former,
                phase=phase,
                wanted="",
                updated=time.time(),
                done=act.done + len(result.done),
                stayed=len(result.stayed),
                # Not of `former`: a write without an answer may have counted them, and is repeated.
                missing=act.missing + len(result.missing),
                listed=listed,
                left=count,
                note=result.stopped if phase == "stopped" else "",
            )

        self._write_ids(act.id, chosen=self.ids(act.id, chosen=True), left=left)
        self.change(act.id, ended)
        text = summary(act.order, result)
        self._ops.audit.write(
            self._ops.operator, f"{act.order.verb} ended", act.subject, why=act.why, result=text, id=act.id
        )

    def _start(self, act: LongAct, ids: IdsBySet) -> LongAct:
        run = _Run(self._ops, self, act, ids)
        thread = threading.Thread(target=run.keep, name=f"act {act.id}", daemon=True)
        thread.start()
        thread.join(PATIENCE)
        return self._stored(act.id)

    def _stored(self, ident: str) -> LongAct:
        stored = get_if_present(self._store, _key(ident))
        if stored is None:
            raise ResourceNotFound(f"there is no act {ident}")
        return _decoded(stored.data)

    def _write_ids(self, ident: str, *, chosen: IdsBySet, left: IdsBySet) -> None:
        data = {"chosen": dict(chosen), "left": dict(left)}
        self._store.put(_key(ident, _IDS_PREFIX), json.dumps(data).encode())


@dataclass(slots=True)
class _Run:
    """One run of an act. One thread carries the order out; another one keeps the act in the store."""

    ops: OperatorContext
    acts: LongActs
    act: LongAct
    ids: IdsBySet
    result: ActResult = field(default_factory=ActResult)
    halted: str = ""
    count: int = 0
    waiting: str = ""

    def keep(self) -> None:
        """Carry the order out, write how far it is every HEARTBEAT_INTERVAL, and at the end what became of it."""

        def with_progress(former: LongAct) -> LongAct:
            if former.run != self.act.run or former.phase != "running":
                return former
            return replace(former, updated=time.time(), done=self.act.done + self.count, note=self.waiting)

        worker = threading.Thread(target=self._work, name=f"letters of {self.act.id}", daemon=True)
        worker.start()
        worker.join(HEARTBEAT_INTERVAL)
        while worker.is_alive():
            with suppress(StoreError):
                act = self.acts.change(self.act.id, with_progress)
                if act.run != self.act.run or act.phase != "running":
                    self.halted = "another process counted this run as interrupted"
                else:
                    self.halted = act.wanted
            worker.join(HEARTBEAT_INTERVAL)
        for wait in _PAUSES:
            try:
                self.acts.end(self.act, self.result, self.ids)
            except StoreError as error:
                logger.warning("The end of act %s cannot be written yet: %s", self.act.id, error)
                time.sleep(wait)
            else:
                return

    def _work(self) -> None:
        """Carry the order out set by set; a set on which another process works is waited for."""
        export = dead_directory(self.ops.settings) / self.act.export if self.act.export else None
        for name, ids in self.ids.items():
            if self.result.stopped:
                return
            try:
                self.result += self._in_set(name, ids, export)
            except ApplicationError as error:
                self.result.stopped = error_text(error)
            except Exception as error:
                logger.exception("Act %s failed", self.act.id)
                self.result.stopped = error_with_class(error)

    def _in_set(self, name: str, ids: Sequence[str], export: Path | None) -> ActResult:
        before = self.count

        def progress(count: int) -> None:
            self.count = before + count

        while not self.halted:
            try:
                result = carry_out(
                    self.ops, self.act.order, {name: ids}, export=export, on_progress=progress, halt=lambda: self.halted
                )
            except DeadSetBusy as error:
                self.waiting = str(error)
            else:
                self.waiting = ""
                return result
        return ActResult(stopped=self.halted)


def _key(ident: str, prefix: str = ACTS_PREFIX) -> str:
    """Return the key of an act's object; raises ResourceNotFound for what is no id."""
    if not _ID.fullmatch(ident):
        raise ResourceNotFound(f"there is no act {ident[:80]!r}")
    return f"{prefix}{ident}.json"


def _encoded(act: LongAct) -> bytes:
    return json.dumps(asdict(act)).encode()


def _decoded(data: bytes) -> LongAct:
    with parsing("an act", data):
        return _READER.validate_json(data)
