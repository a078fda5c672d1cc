"""Dead letters as values: their cause from any headers, ids, exports, task and domain; how deep bodies may be."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click.testing
import pytest
from amqp.serialization import dumps, loads
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from app.broker.amqp_internals import LateTimestamp, UndecodableText
from app.broker.dead_command import list_, replay
from app.broker.dead_letters.acts import ActResult
from app.broker.dead_letters.audit import append_lines
from app.broker.dead_letters.causes import Cause
from app.broker.dead_letters.exports import from_record, read_export, to_record
from app.broker.dead_letters.index import ShardEntry, summary_of
from app.broker.dead_letters.letters import (
    DeadLetter,
    LetterFilter,
    LetterGroup,
    LetterIds,
    LetterSummary,
    group_letters,
    id_matches,
)
from app.broker.dead_letters.moved import as_before_move, fingerprint, moved_copy
from app.broker.dead_letters.replay import ReplayOptions
from app.broker.delivery import Delivery
from app.broker.errors import InvalidMessage, TooDeep
from app.broker.headers import OUTCOME_TO, REPLAY, REPLAY_HISTORY
from app.broker.nesting import MAX_NESTING, may_be_deep, read_json, require_shallow
from app.broker.outcomes import outcome_message
from app.cli.dead import cli
from app.cli.dead_output import age
from app.cli.printing import short
from app.messages.dead_sets import domain_of, labels_of, task_of, where
from app.operations.letter_queries import parse_time
from tests.support.dead import OF_QUEUE
from tests.support.deliveries import delivery

pytestmark = pytest.mark.unit

#: Every value that a header can have.
ANYTHING = st.recursive(
    st.one_of(st.none(), st.text(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.binary()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
OURS = ("reason", "queue", "task", "exception", "message", "traceback", "first-failed-at", "failed-at", "attempts")
NAMES = (*(f"perennial-{name}" for name in OURS), "perennial-dead-id", "perennial-replay-of", "x-death", "retry_info")
HEADERS = st.dictionaries(st.sampled_from((*NAMES, "mb-exceptions", "mb-retries", "task")), ANYTHING)


def letter(body: bytes = b"{}", **headers: Any) -> DeadLetter:
    """Return a letter of `site.dead`; underscores in the names of headers stand for dashes."""
    came = {name.replace("_", "-"): value for name, value in headers.items()}
    return letter_with(came, body)


def letter_with(headers: dict[str, Any], body: bytes = b"{}") -> DeadLetter:
    """Return a letter of `site.dead` with these headers."""
    came = replace(delivery("site.dead", body=body), headers=headers)
    return DeadLetter.of(came, id=LetterIds().next_id("site.dead", came), set="site.dead")


@given(HEADERS, st.binary(max_size=20))
def test_a_cause_is_read_from_any_headers(headers: dict[str, Any], body: bytes) -> None:
    found = letter_with(headers, body)
    assert found.reason or "perennial-reason" in headers or "x-death" in headers or "retry_info" in headers
    assert len(found.group) == 8
    assert isinstance(task_of(found), str)
    assert isinstance(domain_of(found), str)
    [group] = group_letters([found])
    assert group.count == 1


@given(HEADERS, st.binary(max_size=20))
def test_a_letter_of_any_headers_is_the_same_in_an_export_in_the_index_and_after_a_move(
    headers: dict[str, Any], body: bytes
) -> None:
    require_same_in_export(headers, body)
    require_same_in_index(letter_with(headers, body))
    require_same_after_move(headers, body)


def require_same_in_export(headers: dict[str, Any], body: bytes) -> None:
    found = letter_with(headers, body)
    again = from_record(json.loads(json.dumps(to_record(found))))
    assert (again.id, again.set, again.delivery.body) == (found.id, found.set, body)
    # AMQP does not distinguish bytes from text.
    assert dumps("F", [again.delivery.headers]) == dumps("F", [headers])


def require_same_in_index(found: DeadLetter) -> None:
    summary = summary_of(found, labels_of)
    entry = ShardEntry(number=1, filled_at=0.0).with_letters([summary, summary])
    read = ShardEntry.of(Delivery(entry.packed, entry.message("e", "i").headers, {}, None, None, "site.dead.index"))
    assert read is not None
    assert read.letters("site.dead") == [summary, summary]
    assert read.may_have([found.id[:5]])
    assert not read.may_have(["no-such-id"])
    assert (summary.group, summary.queue, summary.error) == (found.group, found.queue, found.error)
    assert (task_of(summary), domain_of(summary)) == (task_of(found), domain_of(found))


def require_same_after_move(headers: dict[str, Any], body: bytes) -> None:
    given_ = {"correlation_id": "c", "priority": 3, "timestamp": 2**33, "expiration": "5", "user_id": "u"}
    before = replace(delivery("site.dead", body=body), headers=headers, properties=given_, exchange="e")
    sent = moved_copy(before, "site.dead.shards", "site.dead.shard.1")
    # As AMQP has them, which does not distinguish bytes from text.
    as_sent = loads("F", dumps("F", [dict(sent.headers)]), 0)[0][0]
    received = replace(before, headers=as_sent, properties=dict(sent.properties), exchange="", routing_key="x")
    after = as_before_move(received)
    assert dumps("F", [dict(after.headers)]) == dumps("F", [headers])
    assert {name: after.properties[name] for name in given_} == given_
    assert (after.exchange, after.routing_key, after.body) == ("e", before.routing_key, body)
    assert fingerprint(after) == fingerprint(before)


@pytest.mark.parametrize("state", [None, {}, {"format": 0}, {"format": 1, "number": "x"}, {"format": 1, "number": [1]}])
def test_a_message_that_is_no_entry_of_an_index_is_recognised(state: Any) -> None:
    assert ShardEntry.of(replace(delivery("site.dead.index"), headers={"perennial-shard": state})) is None


def test_a_damaged_entry_of_an_index_is_an_error_that_names_the_shard() -> None:
    for packed in (b"", b"x", zlib.compress(b"[]"), zlib.compress(b'{"causes": [], "labels": [], "letters": [[1]]}')):
        with pytest.raises(InvalidMessage, match=r"damaged index of shard 7 of site\.dead"):
            ShardEntry(number=7, filled_at=0.0, count=1, packed=packed).letters("site.dead")


def test_an_export_holds_values_that_json_cannot() -> None:
    headers = {
        "when": datetime(2026, 1, 2),
        "ms": LateTimestamp(2**45),
        "text": UndecodableText(b"a\xff"),
        "raw": b"\x00\xff",
    }
    found = letter(body=b"\xff", **headers)
    again = from_record(json.loads(json.dumps(to_record(found)))).delivery
    assert again.body == b"\xff"
    assert again.headers["when"] == headers["when"]
    assert (again.headers["ms"], type(again.headers["ms"])) == (2**45, LateTimestamp)
    assert again.headers["text"] == b"a\xff"
    assert again.headers["raw"] == b"\x00\xff"


@pytest.mark.parametrize("record", [7, [], {}, {"id": "a"}])
def test_an_invalid_record_is_an_error(record: Any) -> None:
    with pytest.raises(InvalidMessage, match="invalid export of a dead letter"):
        from_record(record)


@pytest.mark.parametrize(
    "edited",
    [
        {"body": 3},
        {"set": []},
        {"routing_key": 5},
        {"routing_key": "x" * 300},
        {"content_type": 5},
        {"headers": {"a": 2**70}},
        {"headers": {"x" * 300: 1}},
        {"properties": {"priority": "high"}},
    ],
    ids=str,
)
def test_an_export_edited_to_an_invalid_message_is_an_error_before_publishing(edited: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match="invalid export of a dead letter"):
        from_record({**to_record(letter()), **edited})


def test_an_invalid_line_of_an_export_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl"
    file.write_bytes(json.dumps(to_record(letter())).encode() + b"\n\x7fELF\xd0\x00\n")
    with pytest.raises(InvalidMessage, match="line 2"):
        list(read_export(file))


def test_a_cut_line_is_not_joined_with_the_next_one(tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl"
    file.write_text('{"id": "ab')
    append_lines(file, [{"id": "cd"}])
    assert file.read_text().splitlines() == ['{"id": "ab', '{"id": "cd"}']


@pytest.mark.parametrize(
    ("trace", "location"),
    [
        ("", ""),
        ("no frame", ""),
        ('  File "/srv/a/app/crawl/fetch.py", line 88, in get\n    raise', "crawl/fetch.py:88 in get"),
        ('  File "x.py", line 1, in <module>', "x.py:1 in <module>"),
        ('  File "C:\\shop\\till.py", line 2, in sell', "shop/till.py:2 in sell"),
        ('  File "a.py", line 1, in f\n  File "b.py", line 2, in g', "b.py:2 in g"),
    ],
)
def test_the_location_is_the_last_frame_of_the_traceback(trace: str, location: str) -> None:
    assert letter(perennial_reason="exception", perennial_traceback=trace).cause.location == location


@pytest.mark.parametrize(
    ("fields", "ids"),
    [
        ({}, "abc"),
        ({"task": "shop.buy"}, "b"),
        ({"reason": "exception"}, "ab"),
        ({"before": 2_000.0}, "a"),
        ({"after": 2_000.0}, "bc"),
        ({"after": 2_000.0, "exception": "KeyError", "reason": "time-limit"}, "c"),
    ],
)
def test_a_filter_matches_letters_by_all_of_its_fields_and_none_without_a_time_by_age(
    fields: dict[str, Any], ids: str
) -> None:
    causes: dict[str, tuple[Cause, float | None]] = {
        "a": (Cause(reason="exception", exception="KeyError", task="shop.sell"), 1_000.0),
        "b": (Cause(reason="exception", exception="KeyError", task="shop.buy"), 2_000.0),
        "c": (Cause(reason="time-limit", exception="KeyError"), 3_000.0),
    }
    if not fields.keys().isdisjoint(("before", "after")):
        causes["no time"] = Cause(reason="time-limit", exception="KeyError"), None
    letters = [LetterSummary(id=name, set="d", cause=cause, failed_at=at) for name, (cause, at) in causes.items()]
    assert [each.id for each in filter(LetterFilter(**fields), letters)] == list(ids)


@pytest.mark.parametrize("options", [{"canary": 0.0}, {"canary": -1.0}, {"rate": float("nan")}], ids=repr)
def test_a_replay_without_time_for_its_canary_or_without_a_rate_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidMessage, match="expected more than 0"):
        ReplayOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("queue", OF_QUEUE)
def test_a_replay_does_not_send_the_copies_again_that_a_producer_sent_by_cc(queue: str) -> None:
    assert not {"CC", "BCC"} & OF_QUEUE[queue].replay_headers({"CC": ["orders"], "BCC": ["mail"]}, "keep").keys()


def test_groups_are_letters_with_one_cause_the_largest_first() -> None:
    frame = '  File "shop/till.py", line {}, in sell'
    letters = [
        letter(
            perennial_reason="exception",
            perennial_traceback=frame.format(line),
            perennial_failed_at=at,
            perennial_queue="mail",
        )
        for line, at in ((9, 1.0), (7, 2.0), (7, 4.0), (7, 3.0))
    ]
    groups = group_letters(letters)
    assert [(each.count, each.location, each.first, each.last) for each in groups] == [
        (3, "shop/till.py:7 in sell", 2.0, 4.0),
        (1, "shop/till.py:9 in sell", 1.0, 1.0),
    ]
    assert groups[0].queues == {"mail": 3}
    assert [each.id for each in filter(LetterFilter(group=groups[1].key), letters)] == [letters[0].id]


def test_the_queue_is_that_of_the_latest_x_death_entry() -> None:
    when = datetime(2026, 1, 2, 3, 4, 5)
    deaths = [
        {"queue": "site.index", "reason": "delivery_limit", "count": 1, "time": when},
        {"queue": "site.delay.5000", "reason": "expired", "count": 2, "time": when},
    ]
    found = letter_with({"x-death": deaths, "x-first-death-queue": "site.delay.5000"})
    assert (found.queue, found.reason) == ("site.index", "delivery-limit")
    assert found.failed_at == when.replace(tzinfo=UTC).timestamp()


def test_the_queue_of_a_letter_of_sneakers_is_that_which_rejected_it_and_not_the_one_in_which_it_waited() -> None:
    when = datetime(2026, 1, 2, 3, 4, 5)
    waited = {"queue": "orders-retry", "reason": "expired", "count": 5, "time": when + timedelta(minutes=1)}
    rejected = {"queue": "orders", "reason": "rejected", "count": 5, "time": when}
    found = letter_with({"retry_info": "{}", "x-death": [waited, rejected]})
    assert (found.queue, found.first_failed_at) == ("orders", when.replace(tzinfo=UTC).timestamp())


@pytest.mark.parametrize("seconds", [253_402_300_800, 253_402_300_800.0, 2**62])
def test_a_time_that_no_date_can_hold_is_unknown(seconds: float) -> None:
    assert letter(perennial_reason="exception", perennial_failed_at=seconds).failed_at is None


def test_the_cause_of_a_letter_that_another_consumer_gave_up_is_read_from_its_iteration_after_its_last_wait() -> None:
    waited = {"queue": "shop.delay.600", "reason": "expired", "count": 1, "routing-keys": ["mail"]}
    crashed = {"queue": "mail", "reason": "delivery_limit", "count": 1, "routing-keys": ["mail"]}
    given_up = letter_with({"current-iteration": 2, "x-death": [waited]})
    assert (given_up.reason, given_up.queue, given_up.cause.attempts) == ("exception", "mail", 3)
    by_broker = letter_with({"current-iteration": 2, "x-death": [crashed, waited]})
    assert by_broker.reason == "delivery-limit"


def test_equal_letters_are_numbered_and_keep_their_numbers_when_others_leave() -> None:
    came: Sequence[Any] = [delivery("d", body=b"a"), delivery("d", body=b"b"), delivery("d", body=b"a")]
    names = LetterIds()
    first, other, second = (names.next_id("d", each) for each in came)
    assert second == f"{first}.2"
    assert other != first
    assert LetterIds(Counter({first: 1})).next_id("d", came[2]) == second
    assert id_matches(first, first[:6])
    assert not id_matches(second, first[:6])
    assert id_matches(second, f"{first[:6]}.2")


@pytest.mark.parametrize("given_id", ["", "a b", "x" * 65, "../../etc", 7, None, ["a"]])
def test_an_invalid_dead_id_is_replaced_by_a_hash(given_id: Any) -> None:
    assert len(letter(perennial_dead_id=given_id).id) == 16


@pytest.mark.parametrize(
    ("body", "headers", "task", "domain"),
    [
        ({"type": "index", "domain": "A.gov"}, {}, "site.index", "a.gov"),
        ({"type": "pack_full", "host": "a.gov"}, {}, "site.pack_full", "a.gov"),
        ({"type": ["x"], "url": "https://a.gov:8443/x"}, {}, "", "a.gov:8443"),
        ([["https://a.gov/x"], {}, {}], {"task": "site.index"}, "site.index", "a.gov"),
        ([[], {"domain": "a.gov"}, {}], {"task": "site.crawl"}, "site.crawl", "a.gov"),
        ([1, 2, 3], {"task": "x"}, "x", ""),
        ("text", {}, "", ""),
        ({"domain": ["a"], "url": 7}, {}, "", ""),
        ({"domain": "not a host"}, {}, "", ""),
    ],
)
def test_task_and_domain_are_found_in_envelopes_and_in_celery_messages(
    body: Any, headers: dict[str, Any], task: str, domain: str
) -> None:
    found = letter(json.dumps(body).encode(), **headers)
    assert (task_of(found), domain_of(found)) == (task, domain)
    assert where(task=task, domain=domain)(found)
    assert not where(task="other")(found)


@pytest.mark.parametrize(
    ("text", "expected"), [("90s", 90), ("10m", 600), ("2h", 7_200), ("7d", 604_800), ("1.5h", 5_400)]
)
def test_an_age_is_a_number_and_a_unit(text: str, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.operations.letter_queries.time.time", lambda: 1e6)
    assert parse_time(text) == 1e6 - expected


@pytest.mark.parametrize("text", ["", "2", "h", "-1h", "2 h 3 m", "1y"])
def test_any_other_age_is_an_error_that_shows_how_to_write_one(text: str) -> None:
    with pytest.raises(InvalidMessage, match="expected an age such as 2h"):
        parse_time(text)


def test_ages_are_short() -> None:
    now = datetime.now(UTC).timestamp()
    assert [age(now - past) for past in (5, 90, 7_300, 3 * 86_400)] == ["5 s", "90 s", "2 h", "3 d"]
    assert age(None) == ""
    assert short("1d6a0f0e-6c5a-4d0a-9c0b-2f6b7a1f0c11.12") == "1d6a0f0e.12"


@pytest.mark.parametrize(
    "arguments",
    [
        ("replay",),
        ("replay", "--reason", "exception"),
        ("replay", "abc", "--all"),
        ("replay", "--all", "--budget", "double"),
        ("list", "--before", "soon"),
        ("drop", "--all", "--yes", "--reason", ""),
        ("edit", "abc", "--arguments", "1", "--queue", ""),
    ],
    ids=" ".join,
)
def test_an_invalid_choice_of_letters_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    assert CliRunner().invoke(cli, arguments).exit_code == 2


@given(st.lists(st.sampled_from(["list", "object"]), min_size=MAX_NESTING - 2, max_size=MAX_NESTING + 2), st.text())
def test_a_body_is_refused_from_the_first_level_beyond_the_limit(kinds: list[str], text: str) -> None:
    value: object = 1
    for kind in kinds:
        value = [text, value] if kind == "list" else {text: 0, f"{text}x": value}
    if len(kinds) <= MAX_NESTING:
        require_shallow(value)
        assert read_json(json.dumps(value)) == value
        return
    assert may_be_deep(json.dumps(value))
    with pytest.raises(InvalidMessage, match="more than 100 levels"):
        require_shallow(value)
    with pytest.raises(InvalidMessage, match="more than 100 levels"):
        read_json(json.dumps(value).encode())


@pytest.mark.parametrize("levels", [101, 1_000, 100_000])
def test_json_that_only_some_versions_of_python_can_read_is_refused_by_each(levels: int) -> None:
    for opening, closing in ("[]", ('{"":', "}")):
        with pytest.raises(TooDeep):
            read_json(opening * levels + "1" + closing * levels)


def test_neither_brackets_in_a_text_nor_a_wide_body_are_levels() -> None:
    assert read_json(b'"' + b"[" * 500 + b'"') == "[" * 500
    assert read_json(json.dumps([[{}] * 300] * 300)) == [[{}] * 300] * 300


def test_the_command_of_celery_lists_no_more_groups_than_wanted() -> None:
    groups = [LetterGroup(key, "exception", "KeyError", "", count) for key, count in (("a", 3), ("b", 2), ("c", 1))]
    sets = SimpleNamespace(groups=lambda: groups)
    listed = click.testing.CliRunner().invoke(list_, ["--groups", "--limit", "2"], obj=sets)
    assert [line.split("\t")[:2] for line in listed.output.splitlines()] == [["a", "3"], ["b", "2"]]


def test_the_dead_command_prints_nothing_of_a_message_that_a_terminal_would_obey() -> None:
    result = ActResult(done=["a"], stayed={"b": "\x1b[2Jb"}, stopped="c died again: \x1b[2J")
    sets = SimpleNamespace(replay=lambda *_, **__: result)
    printed = click.testing.CliRunner().invoke(replay, ["--all"], obj=sets, color=True)
    assert printed.exit_code == 1
    assert "\x1b" not in printed.output
    assert "died again" in printed.output


@pytest.mark.parametrize("missing", [OUTCOME_TO, REPLAY, REPLAY_HISTORY])
def test_the_outcome_of_a_replay_alone_is_reported(missing: str) -> None:
    headers = {OUTCOME_TO: "canary", REPLAY: "keep", REPLAY_HISTORY: ["1d6a"]}
    report = outcome_message(replace(delivery("site.page"), headers=headers), "succeeded")
    assert report is not None
    assert (report.routing_key, json.loads(report.body)["of"]) == ("canary", "1d6a")
    del headers[missing]
    assert outcome_message(replace(delivery("site.page"), headers=headers), "succeeded") is None
