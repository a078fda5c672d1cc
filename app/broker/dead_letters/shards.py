"""A dead set in shards: its oldest letters are moved to further queues, of which an index has the summaries."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice

from amqp.exceptions import ChannelError
from kombu import Exchange, Queue

from ..errors import InvalidMessage, PublishFailed
from ..publishing import Publisher
from .index import ShardEntry, summary_of
from .letters import DeadLetter, Labels, LetterIds, LetterSummary, seen_before
from .moved import fingerprint, moved_copy
from .reading import MAX_READ, DeadSetLease, DeadSetReader

#: Letters of a shard.
SHARD_LETTERS = 2_000
#: Letters in the documented queue from which the oldest ones are moved to shards.
MOVE_ABOVE = 2_000

#: Letters that are published, confirmed and then removed together.
_BATCH = 500
#: Ids that are looked for in the packed index; for more of them it is unpacked.
_FEW_IDS = 20
#: Missing shards in a row after which no further one is looked for. Each shard gets the lowest free number.
_MISSING_IN_ROW = 16

#: Gets a text for the operator, about what is not as the index says or was not done.
OnWarning = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SetPart:
    """Letters of one queue of a dead set: their ids, and by base id how many letters come before that queue's."""

    queue: str
    ids: Sequence[str]
    before: Counter[str]


class ShardedSet:
    """The letters of a dead set: those in its shards, oldest first, then those in its documented queue.

    A letter is confirmed in its shard before it is removed from the documented queue, and the index names a shard
    before it gets letters. So after a kill a letter is in one of the two or in both, and the next reader finds it.
    """

    def __init__(self, lease: DeadSetLease, publisher: Publisher, labels: Labels | None, on_warning: OnWarning) -> None:
        self.lease = lease
        self._publisher = publisher
        self._labels = labels
        self._on_warning = on_warning
        self._index = index_queue(lease.name)
        self._entries: dict[int, ShardEntry] = {}

    # Reading

    def parts(self, ids: Collection[str]) -> list[SetPart]:
        """Return the queues that have the letters with these ids: the documented one, if no shard has them."""
        numbers, left, parts = LetterIds(), dict.fromkeys(ids), list[SetPart]()
        for queue, letters in self.shards(numbers, {letter_id.partition(".")[0] for letter_id in ids}):
            if found := [letter.id for letter in letters if letter.id in left]:
                parts.append(SetPart(queue, found, seen_before(letters)))
                for letter_id in found:
                    del left[letter_id]
        return [*parts, SetPart(self.lease.name, list(left), numbers.seen())] if left else parts

    def read(self, ids: Collection[str]) -> list[DeadLetter]:
        """Return the whole letters with these ids, in the order of the set, as far as they are there."""
        found: list[DeadLetter] = []
        for part in self.parts(ids):
            wanted = set(part.ids)
            with self.lease.reading(part.queue, ids=LetterIds(part.before)) as reader:
                for letter, _ in reader:
                    if letter.id in wanted:
                        found.append(letter)
                        wanted.remove(letter.id)
                    if not wanted:
                        break
            if wanted:
                self.note_missing(part)
        return found

    def total(self) -> int:
        """Return the number of letters."""
        return self.moved_count + self.lease.depth()

    @property
    def moved_count(self) -> int:
        """The number of letters in shards."""
        return sum(entry.count for entry in self._entries.values())

    def shards(self, ids: LetterIds, beginnings: Collection[str] = ()) -> Iterator[tuple[str, list[LetterSummary]]]:
        """Yield the queue and the summaries of each shard, the oldest first. `ids` numbers equal ids.

        A shard without an id that has one of the beginnings may be left out.
        """
        sought = list(beginnings) if len(beginnings) <= _FEW_IDS else []
        for entry in sorted(self._entries.values(), key=lambda each: each.filled_at):
            if sought and not entry.may_have(sought):
                continue
            yield shard_name(self.lease.name, entry.number), ids.numbered(self._letters_of(entry))

    def _letters_of(self, entry: ShardEntry) -> list[LetterSummary]:
        """Return the summaries of a shard, whose ids have no numbers; of a damaged entry it is read again."""
        try:
            return entry.letters(self.lease.name)
        except InvalidMessage as error:
            self._on_warning(f"{error}; the shard is read again")
            return self._read_again(entry).letters(self.lease.name)

    def summaries(
        self, first: int | None = None, *, beginnings: Collection[str] = ()
    ) -> Generator[LetterSummary, None, None]:
        """Yield the letters, or the `first` of them; those of the documented queue are whole ones.

        With `beginnings` of ids, other letters may be left out.
        """
        ids, left = LetterIds(), first
        for _, letters in self.shards(ids, beginnings):
            yield from letters[:left]
            left = None if left is None else max(0, left - len(letters))
        for letter, _ in self._arrived(ids, left):
            yield letter

    def letters(self, condition: Callable[[LetterSummary], bool]) -> Iterator[DeadLetter]:
        """Yield the matching letters: only the shards of matching summaries are read."""
        ids = LetterIds()
        for queue, letters in self.shards(ids):
            wanted = {letter.id for letter in letters if condition(letter)}
            if wanted:
                with self.lease.reading(queue, ids=LetterIds(seen_before(letters))) as reader:
                    yield from (letter for letter, _ in reader if letter.id in wanted)
        yield from (letter for letter, _ in self._arrived(ids, None) if condition(letter))

    def _arrived(self, ids: LetterIds, first: int | None) -> Iterator[tuple[DeadLetter, int]]:
        """Yield the letters of the documented queue, and note if there are more than are read."""
        if first == 0:
            return
        with self.lease.reading(ids=ids, first=min(first or MAX_READ, MAX_READ)) as reader:
            yield from reader
            if reader.total > MAX_READ and first is None:
                self._on_warning(
                    f"{self.lease.name}: only the oldest {reader.depth:,} of {reader.total:,} letters were read"
                )

    # Checking

    def check(self, *, thorough: bool) -> None:
        """Read the index and compare it with the shards; read a shard again of which it is wrong."""
        present = self.lease.count(self._index.name)
        if present is not None:
            # A process that was killed just now may hold every entry: the index is then counted as empty.
            self.lease.wait_until_unused(self._index.name)
            present = self.lease.count(self._index.name)
        if present:
            self._read_index()
        # A set that was never long has neither an index nor a first shard.
        is_lost = not self._entries and (present is not None or self._count(1) is not None)
        # Shards that the index does not name are counted as wrong, and read again.
        for number, letters in existing_shards(self._count) if thorough or is_lost else ():
            if number not in self._entries and letters:
                self._entries[number] = ShardEntry(number, filled_at=0.0, count=-1)
            elif number not in self._entries:
                self.lease.delete_if_empty(shard_name(self.lease.name, number))
        self._compare_all()
        if present and not self._entries:
            self.lease.delete_if_empty(self._index.name)

    def _read_index(self) -> None:
        """Read the latest entry of each shard; remove from the index what is superseded, invalid or of no shard."""
        with self.lease.reading(self._index.name, first=2**16, window=2**16 - 1) as reader:
            tags: dict[int, int] = {}
            for delivery, tag in reader.deliveries():
                entry = ShardEntry.of(delivery)
                if entry is None:
                    self._on_warning(f"{self._index.name}: removed an invalid message")
                    reader.remove(tag)
                    continue
                latest = self._entries.get(entry.number)
                if latest is None or latest.revision < entry.revision:
                    self._entries[entry.number] = entry
                    tag, tags[entry.number] = tags.get(entry.number, 0), tag
                if tag:
                    reader.remove(tag)
            for number, tag in tags.items():
                if not self._entries[number].count and not self._count(number):
                    self.lease.delete_if_empty(shard_name(self.lease.name, number))
                    reader.remove(tag)
                    del self._entries[number]

    def _compare_all(self) -> None:
        """Read each shard again whose queue and entry disagree."""
        for entry in list(self._entries.values()):
            found = self._count(entry.number) or 0
            if found != entry.count:
                named = f"the index names {entry.count:,} letters, and it has {found:,}"
                if entry.count < 0:
                    named = "the index does not name it"
                self._on_warning(f"{shard_name(self.lease.name, entry.number)}: {named}; it is read again")
                self._read_again(entry)

    def _read_again(self, entry: ShardEntry) -> ShardEntry:
        """Read a shard and write its entry. Remove copies of its letters that an interrupted move has left."""
        name = shard_name(self.lease.name, entry.number)
        self.lease.wait_until_unused(name)
        letters, fingerprints = [], set[bytes]()
        with self.lease.reading(name) as reader:
            for letter, tag in reader:
                own = fingerprint(letter.delivery)
                if own in fingerprints:
                    reader.remove(tag)
                    continue
                letters.append(summary_of(letter, self._labels))
                if own:
                    fingerprints.add(own)
            if reader.total > reader.depth:
                self._on_warning(f"{name}: only the oldest {reader.depth:,} of {reader.total:,} letters were read")
        self._remove_copies(fingerprints)
        times = [letter.failed_at for letter in letters if letter.failed_at is not None]
        filled_at = entry.filled_at or min(times, default=0.0)
        entry = replace(entry, filled_at=filled_at).with_letters(letters)
        try:
            self._write(entry)
        except PublishFailed as error:
            # The next reader reads the shard again.
            self._on_warning(f"{self._index.name}: the entry of {name} could not be written: {error}")
        if not letters:
            self.lease.delete_if_empty(name)
        return entry

    def _remove_copies(self, fingerprints: Collection[bytes]) -> None:
        """Remove copies of letters that an interrupted move had published: they are the oldest of their queue."""
        if not fingerprints:
            return
        removed = 0
        with self.lease.reading(first=SHARD_LETTERS) as reader:
            for delivery, tag in reader.deliveries():
                if fingerprint(delivery) in fingerprints:
                    reader.remove(tag)
                    removed += 1
        if removed:
            self._on_warning(f"{self.lease.name}: removed {removed:,} copies of letters that are in a shard")

    # Moving

    def fill(self) -> int:
        """Move the oldest letters to new shards if there are more than MOVE_ABOVE; return how many."""
        shards = -((MOVE_ABOVE - self.lease.depth()) // SHARD_LETTERS)
        if shards <= 0:
            return 0
        moved = kept = 0
        try:
            self.lease.declare(self._index)
            with self.lease.reading(first=shards * SHARD_LETTERS, window=2 * SHARD_LETTERS) as reader:
                letters = iter(reader)
                # What cannot be published stays, and is in the way of further letters.
                while kept <= SHARD_LETTERS and (taken := list(islice(letters, SHARD_LETTERS))):
                    new = self._fill_one(reader, taken)
                    moved += new
                    kept += len(taken) - new
        except (ChannelError, PublishFailed) as error:
            self._on_warning(f"{self.lease.name}: letters could not be moved to shards: {error}")
        # A letter whose confirm was missing may be in its shard twice, or also in the documented queue.
        self._compare_all()
        return moved

    def _fill_one(self, reader: DeadSetReader, letters: Sequence[tuple[DeadLetter, int]]) -> int:
        """Move letters to a new shard; return how many."""
        number = next(each for each in count(1) if each not in self._entries)
        queue = shard_queue(self.lease.name, number)
        self.lease.declare(queue)
        last = max((entry.filled_at for entry in self._entries.values()), default=0.0)
        entry = ShardEntry(number, filled_at=max(time.time(), last + 0.001))
        self._write(entry)
        moved: list[LetterSummary] = []
        try:
            for start in range(0, len(letters), _BATCH):
                moved += self._move(reader, queue.name, letters[start : start + _BATCH])
        finally:
            self._write(entry.with_letters(moved))
        return len(moved)

    def _move(self, reader: DeadSetReader, queue: str, batch: Sequence[tuple[DeadLetter, int]]) -> list[LetterSummary]:
        """Publish letters to a shard, then remove those that are confirmed there; return their summaries.

        Raises PublishFailed if none is.
        """
        failures = self._publisher.publish_each(
            [moved_copy(letter.delivery, self._index.exchange.name, queue) for letter, _ in batch]
        )
        if len(failures) == len(batch):
            raise PublishFailed(str(failures[0])) from failures[0]
        moved = []
        for position, (letter, tag) in enumerate(batch):
            if position not in failures:
                reader.remove(tag)
                moved.append(summary_of(letter, self._labels))
        return moved

    def note_removed(self, part: SetPart, ids: Collection[str]) -> None:
        """Note in the index that letters of a part have left its shard; delete a shard that is empty."""
        entry = self._entry_of(part)
        if entry is not None:
            letters = self._letters_of(entry)
            pairs = zip(letters, LetterIds(part.before).numbered(letters), strict=True)
            left = entry.with_letters([letter for letter, own in pairs if own.id not in ids])
            self._write(left)
            if not left.count:
                self.lease.delete_if_empty(part.queue)

    def note_missing(self, part: SetPart) -> None:
        """Read a shard again that lacks letters of its entry."""
        entry = self._entry_of(part)
        if entry is not None:
            self._on_warning(f"{part.queue}: letters that the index names are not there; it is read again")
            self._read_again(entry)

    def _entry_of(self, part: SetPart) -> ShardEntry | None:
        """Return the entry of the shard of a part, or None for the documented queue."""
        names = {shard_name(self.lease.name, number): entry for number, entry in self._entries.items()}
        return names.get(part.queue)

    def _write(self, entry: ShardEntry) -> None:
        """Put an entry into the index. The next reader of the index removes the former one."""
        self._entries[entry.number] = entry
        self.lease.declare(self._index)
        self._publisher.publish([entry.message(self._index.exchange.name, self._index.name)])

    def _count(self, number: int) -> int | None:
        return self.lease.count(shard_name(self.lease.name, number))


def existing_shards(count_letters: Callable[[int], int | None]) -> Iterator[tuple[int, int]]:
    """Yield number and length of each shard; `count_letters` returns the length by the number, None for a missing one.

    A shard may be missing between others.
    """
    missing, numbers = 0, count(1)
    while missing < _MISSING_IN_ROW:
        number = next(numbers)
        letters = count_letters(number)
        missing = missing + 1 if letters is None else 0
        if letters is not None:
            yield number, letters


def shard_name(set_name: str, number: int) -> str:
    """Return the name of a shard of a dead set."""
    return f"{set_name}.shard.{number}"


def shard_queue(set_name: str, number: int) -> Queue:
    """Return a shard: a classic queue as its dead set, whose messages RabbitMQ keeps on the disk."""
    return _queue(set_name, shard_name(set_name, number))


def index_queue(set_name: str) -> Queue:
    """Return the queue of the index of a dead set."""
    return _queue(set_name, f"{set_name}.index")


def _queue(set_name: str, name: str) -> Queue:
    # An exchange of its own: an account may then fill the shards without the right to every queue of the broker.
    exchange = Exchange(f"{set_name}.shards", type="direct", durable=True)
    # RabbitMQ 4 does all this without the arguments. On RabbitMQ 3.10 a lazy queue of version 1 keeps in memory what
    # was delivered and requeued: 250 MB for 100,000 letters.
    arguments = {"x-queue-type": "classic", "x-queue-mode": "lazy", "x-queue-version": 2}
    return Queue(name, exchange, routing_key=name, durable=True, queue_arguments=arguments)
