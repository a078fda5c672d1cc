"""Notifications: events by their schemas, the law of quiet periods, the signature, mails, and the settings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import SecretStr, ValidationError

from app.broker.delivery import Delivery
from app.broker.errors import Undecodable
from app.crawl.record.crawls import CrawlRecord, CrawlSettings
from app.notifications.events import EVENTS, DeadSetGrew, PublicEvent, SiteUnreachable, crawl_ended, doctor_error
from app.notifications.events import pack_written as written
from app.notifications.new_findings import ReportedDepth
from app.notifications.quiet import QUIET_PERIOD, QuietState
from app.notifications.receivers import Mail, QueuedEvent, receivers, signature
from app.pack.packer import PackResult
from app.topology.declare import all_queues
from app.topology.model import Binding, declared_topology
from app.topology.queues import notification_queues
from app.topology.routing import routed_queues
from config.settings import ROOT, Settings

pytestmark = pytest.mark.unit

CRAWL = CrawlRecord(
    id="c1",
    domain="site.gov",
    start_url="https://site.gov/",
    started=datetime(2026, 11, 25, tzinfo=UTC),
    settings=CrawlSettings(scope="exact", max_pages=9, max_depth=9, host_delay=1.0, host_concurrency=1),
    timer_timeout=5.0,
    state="done",
    counts={"seen": 3, "indexed": 2, "done": 3, "dead": 1, "cut": 0},
    reasons={"404": 1, "indexed": 2},
)
PACK = PackResult(domain="site.gov", kind="full", written=True, pages=2, added=2, generation=4, sha256="ab", size=9)


def crawl(**counts: int) -> PublicEvent:
    return crawl_ended(replace(CRAWL, counts={**CRAWL.counts, **counts}))


EXAMPLES = {
    "crawl.finished": crawl(),
    "crawl.cut": crawl(cut=1),
    "crawl.failed": crawl(indexed=0, cut=1),
    "pack.written": written(PACK),
    "site.unreachable": SiteUnreachable.of(site="site.gov", crawl_id="c1", failing=3, error="ConnectionFailed: x"),
    "dead_set.grew": DeadSetGrew.of(dead_set="site.dead", letters=2, before=0, occasion="1"),
    "doctor.error": doctor_error("redis", ["it is full", "x" * 9_000], occasion="1"),
}


def queued(event: PublicEvent, **changes: Any) -> QueuedEvent:
    return QueuedEvent.of(delivery(json.dumps({**event.payload(), **changes}).encode()))


def delivery(body: bytes) -> Delivery:
    return Delivery(body, {}, {}, "application/json", "utf-8", "notify.mail")


@pytest.mark.parametrize("kind", list(EVENTS))
def test_each_event_is_valid_by_the_schema_in_the_documents_and_says_its_type(kind: str) -> None:
    schema = json.loads((ROOT / f"docs/reference/schemas/{kind}.v1.json").read_text())
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    payload = EXAMPLES[kind].payload()
    validator.validate(payload)
    assert (payload["type"], payload["version"], payload["at"][-1]) == (kind, 1, "Z")
    for field in ("type", "version", "id", "at", "site"):
        assert not validator.is_valid({name: value for name, value in payload.items() if name != field}), field
    assert not validator.is_valid({**payload, "version": 2})


def test_the_id_of_an_event_follows_from_its_content_and_its_occasion() -> None:
    assert crawl().id == crawl().id
    assert len({crawl().id, crawl(seen=4).id, crawl(cut=1).id, written(PACK).id}) == 4
    ids = {doctor_error("redis", ["it is full"], occasion=occasion).id for occasion in ("1", "2", "1")}
    assert len(ids) == 2


@pytest.mark.parametrize("kind", list(EVENTS))
def test_the_queues_of_receivers_get_every_event_and_no_message_of_the_search_cluster(kind: str) -> None:
    settings = Settings(
        webhook_url=SecretStr("http://10.0.0.1/hook;jsessionid=1"),
        webhook_secret=SecretStr("s" * 16),
        smtp_url=SecretStr("smtp://mail.example"),
        mail_from="perennial@site.example",
        mail_to=("a@site.example",),
    )
    names = {queue.name for queue in notification_queues(settings)}
    assert names == {"notify.webhook", "notify.mail"} == set(receivers(settings))
    assert not notification_queues(Settings())
    topology = declared_topology(all_queues(settings))
    assert {name for name, _ in routed_queues(topology, "perennial.events", kind)} == names
    for other in ("update", "register", "heartbeat", "failed"):
        assert not names & {name for name, _ in routed_queues(topology, "perennial.events", other)}
    assert Binding("site", "notify.mail", "notify.mail") in topology.bindings


@given(st.lists(st.floats(0, 3 * QUIET_PERIOD), max_size=30))
def test_between_two_notifications_there_is_a_quiet_period_and_no_event_is_uncounted(pauses: list[float]) -> None:
    state, now, sent, counted = QuietState(), 0.0, list[float](), 0
    for pause in pauses:
        now += pause
        if not state.is_quiet(now):
            sent.append(now)
            counted += 1 + state.suppressed
        state = state.after(now)
    assert counted + state.suppressed == len(pauses)
    assert all(later >= earlier + QUIET_PERIOD for earlier, later in pairwise(sent))


@given(st.lists(st.tuples(st.integers(0, 1_000), st.floats(0, 2 * QUIET_PERIOD)), max_size=60))
def test_a_dead_set_is_reported_when_it_has_its_first_letters_and_then_when_it_doubled_or_after_a_quiet_period(
    looks: list[tuple[int, float]],
) -> None:
    former, now = ReportedDepth(), 0.0
    for letters, pause in looks:
        now += pause
        growth = former.is_growth(letters, now)
        assert growth <= (letters > former.letters)
        if growth:
            assert not former.letters or letters >= 2 * former.letters or now >= former.at + QUIET_PERIOD
            former = ReportedDepth(letters, now)
        elif letters < former.letters:
            former = ReportedDepth(letters, former.at)
        else:
            is_little = letters < 2 * former.letters and now < former.at + QUIET_PERIOD
            assert letters == former.letters or is_little
    assert ReportedDepth().is_growth(1, 0.0)


def test_a_clock_that_is_set_back_ends_a_quiet_period_instead_of_making_it_longer() -> None:
    ahead = 86_400.0 * 365
    assert not QuietState(sent_at=ahead).is_quiet(0.0)
    assert ReportedDepth(10, ahead).is_growth(11, 0.0)
    # Clocks of two machines differ by seconds.
    assert QuietState(sent_at=5.0).is_quiet(0.0)


def test_the_example_of_the_guide_accepts_a_signed_delivery_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = re.findall(r"```python\n(.*?)```", Path(ROOT / "docs/guides/notifications.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    is_genuine: Callable[..., bool] = names["is_genuine"]
    body, secret = b'{"type": "crawl.finished"}', "0123456789abcdef"
    header = signature(secret, body, at=1_000)
    assert is_genuine(body, header, secret, now=1_200.0)
    assert not is_genuine(body + b" ", header, secret, now=1_200.0)
    assert not is_genuine(body, header, "another", now=1_200.0)
    assert not is_genuine(body, header, secret, now=1_301.0)
    assert not is_genuine(body, header.replace("t=1000", "t=1200"), secret, now=1_200.0)
    for wrong in ("", "t=1000", "v1=", "t=x,v1=y", "t=1000,v1=é"):
        assert not is_genuine(body, wrong, secret, now=1_200.0)


def test_a_mail_has_one_line_for_each_field_and_no_header_of_a_producer() -> None:
    broken = "\ud800"  # As JSON may have it, and no mail.
    event = queued(
        EXAMPLES["site.unreachable"],
        **{"site": "a.gov\nBcc: all@site.example", "crawl_id": broken, "error": "a\nb" * 900, broken: 1},
    )
    mail = Mail("smtp://h", "perennial@site.example", ("a@site.example", "b@site.example"))._mail(event, 3)
    assert mail["Bcc"] is None
    assert mail["Subject"] == "Perennial: site.unreachable a.gov Bcc: all@site.example"
    assert (mail["To"], mail["Message-ID"]) == ("a@site.example, b@site.example", f"<{event.id}@site.example>")
    text = mail.get_content()
    assert "failing: 3\n" in text
    assert "crawl_id: \\ud800\n" in text
    assert "\\ud800: 1\n" in text
    assert "3 more of this kind came since the last mail" in text
    assert max(map(len, bytes(mail).split(b"\n"))) < 998


def test_the_subject_of_an_event_can_be_a_part_of_a_key_whatever_its_producer_wrote() -> None:
    assert queued(EXAMPLES["site.unreachable"], site="\ud800.gov").subject == "\\ud800.gov"


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"\xff", b"{}", b"[" * 9_000, b'{"type": "a", "id": "1", "at": "soon"}'),
        b'{"type": "a", "id": "1", "at": "0001-01-01T00:00:00+01:00"}',
        b'{"type": "a", "id": "1", "at": "9999-12-31T23:59:59-01:00"}',
        b'{"type": "a", "id": 1, "at": "2026-11-25T00:00:00Z"}',
        b'{"type": "a\\nb", "id": "1", "at": "2026-11-25T00:00:00Z"}',
    ],
)
def test_what_is_no_event_is_undecodable(body: bytes) -> None:
    with pytest.raises(Undecodable, match="not an event"):
        QueuedEvent.of(delivery(body))


@pytest.mark.parametrize(
    ("given_settings", "problem"),
    [
        ({"webhook_url": "http://h/"}, "WEBHOOK_URL without WEBHOOK_SECRET"),
        ({"webhook_url": "ftp://h/", "webhook_secret": "s" * 16}, "expected http"),
        ({"webhook_secret": "short"}, "expected 16 or more"),
        ({"smtp_url": "smtp://h"}, "SMTP_URL without MAIL_FROM and MAIL_TO"),
        ({"smtp_url": "smtp://u:secret@h"}, "a login needs TLS"),
        ({"smtp_url": "smtps://"}, "a host and a port"),
        ({"smtp_url": "smtp://a;smtp://b"}, "a host and a port"),
        ({"smtp_url": "http://h"}, "expected smtp"),
        ({"smtp_url": "smtps://u:p%C3%A4ss@h"}, "a login of ASCII characters"),
        ({"mail_to": "a@b.example,c\n@d"}, "expected an address"),
    ],
)
def test_wrong_settings_of_receivers_are_refused_without_their_secrets(
    given_settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(**given_settings)
    assert problem in str(caught.value)
    assert "secret@" not in str(caught.value)
