"""Receivers of events: a webhook and a mailbox. Each takes one event at a time, or raises why it did not."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import smtplib
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from functools import partial
from typing import Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

from app.broker.delivery import Delivery
from app.broker.errors import Undecodable, error_with_class
from app.broker.nesting import read_json
from app.errors import NotificationFailed, NotificationRefused
from app.http.api_client import ApiClient
from app.notifications.events import NEWS
from config.checks import VISIBLE_ASCII
from config.routes import MAIL, WEBHOOK
from config.settings import Settings

#: Seconds until a connection must be made, and from then until each answer must have arrived.
_TIMEOUT: Final = 10.0
#: Seconds that a webhook may ask for by Retry-After.
_LONGEST_RETRY_AFTER: Final = 3_600.0
#: Statuses of 4xx after which the same request may succeed: time-out, too early, too many requests.
_PASSING: Final = frozenset({408, 425, 429})
#: Ports of the schemes of SMTP_URL.
_PORTS: Final = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}
#: Characters of a line of a mail; RFC 5322 section 2.1.1 allows 998 with the line's name.
_MAX_LINE: Final = 900


@dataclass(frozen=True, slots=True)
class QueuedEvent:
    """An event as it was published: its exact bytes, and the fields that all events have. `at` is in epoch seconds."""

    body: bytes
    type: str
    id: str
    at: float
    fields: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, delivery: Delivery) -> QueuedEvent:
        """Read an event; raises Undecodable for anything else."""
        try:
            fields = read_json(delivery.body.decode())
            at = datetime.fromisoformat(fields["at"]).astimezone(UTC).timestamp()
            kind, event_id = fields["type"], fields["id"]
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise Undecodable(f"not an event: {error!r}: {delivery.body[:60]!r}") from error
        for text in (kind, event_id):
            if not isinstance(text, str) or not re.fullmatch(VISIBLE_ASCII, text):
                raise Undecodable(f"not an event: {text!r:.100}: expected visible ASCII characters")
        return cls(delivery.body, kind, event_id, at, fields)

    @property
    def subject(self) -> str:
        """What it is about: a site, a dead set or a check."""
        names = ("site", "dead_set", "check")
        return _text(next((self.fields[name] for name in names if self.fields.get(name)), ""))


class Receiver(ABC):
    """Where events go. `name` is that of its queue, too."""

    name: ClassVar[str]
    #: Types of which every event is sent, without quiet periods.
    never_quiet: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def send(self, event: QueuedEvent, suppressed: int) -> None:
        """Send an event, with the number of events that were suppressed before it.

        Raises NotificationRefused where the event would be refused again, and NotificationFailed or FetchError for what
        may pass.
        """


class Webhook(Receiver):
    """An HTTP server of the operator's, which may have a private address. A redirect is a failure."""

    name = WEBHOOK
    never_quiet = NEWS

    def __init__(self, url: str, secret: str, user_agent: str) -> None:
        self._url = url
        self._secret = secret
        # A 2xx says it all: a body that is huge or never ends must not cause a second delivery.
        self._client = ApiClient(
            user_agent=user_agent, connect_timeout=_TIMEOUT, response_timeout=_TIMEOUT, reads_body=False
        )

    def send(self, event: QueuedEvent, suppressed: int) -> None:
        """POST the bytes of an event, signed."""
        headers = {
            "Content-Type": "application/json",
            "Perennial-Event": event.type,
            "Perennial-Delivery": event.id,
            "Perennial-Signature": signature(self._secret, event.body, at=int(time.time())),
            **({"Perennial-Suppressed": str(suppressed)} if suppressed else {}),
        }
        response = self._client.send("POST", self._url, headers=headers, body=event.body)
        if response.ok:
            return
        text = f"the webhook answers {response.status}"
        if 400 <= response.status < 500 and response.status not in _PASSING:
            raise NotificationRefused(text)
        raise NotificationFailed(text, response.retry_after(cap=_LONGEST_RETRY_AFTER))


def signature(secret: str, body: bytes, *, at: int) -> str:
    """Return the value of Perennial-Signature: the time, and the HMAC of the time, a full stop and the body."""
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


class Mail(Receiver):
    """A mailbox behind an SMTP server. Its mails have the ids of their events, so that copies are seen as such."""

    name = MAIL

    def __init__(self, url: str, sender: str, recipients: tuple[str, ...]) -> None:
        """`url` is SMTP_URL: `smtp://`, `smtp+starttls://` or `smtps://`, with a login or without."""
        self._url = urlsplit(url)
        self._sender = sender
        self._recipients = recipients

    def send(self, event: QueuedEvent, suppressed: int) -> None:
        """Send a mail that some recipient is accepted for."""
        url = self._url
        host, port = url.hostname or "", url.port or _PORTS[url.scheme]
        try:
            tls = ssl.create_default_context()
            connect = partial(smtplib.SMTP_SSL, context=tls) if url.scheme == "smtps" else smtplib.SMTP
            with closing(connect(host, port, timeout=_TIMEOUT)) as server:
                if url.scheme == "smtp+starttls":
                    server.starttls(context=tls)
                if url.username:
                    server.login(unquote(url.username), unquote(url.password or ""))
                server.send_message(self._mail(event, suppressed), self._sender, self._recipients)
                with suppress(OSError, smtplib.SMTPException):  # It has the mail, however it takes leave.
                    server.quit()
        except smtplib.SMTPRecipientsRefused as error:
            codes = {code for code, _ in error.recipients.values()}
            refused = NotificationRefused if min(codes) >= 500 else NotificationFailed
            raise refused(f"the mail server refuses every recipient: {error.recipients}"[:500]) from error
        except (smtplib.SMTPSenderRefused, smtplib.SMTPDataError) as error:
            refused = NotificationRefused if error.smtp_code >= 500 else NotificationFailed
            raise refused(f"the mail server answers {error.smtp_code} {error.smtp_error!r:.200}") from error
        except (OSError, smtplib.SMTPException) as error:  # The login is not part of these texts.
            raise NotificationFailed(f"the mail server fails: {error_with_class(error)}"[:500]) from error

    def _mail(self, event: QueuedEvent, suppressed: int) -> EmailMessage:
        mail = EmailMessage()
        mail["From"], mail["To"] = self._sender, ", ".join(self._recipients)
        mail["Subject"] = " ".join(f"Perennial: {event.type} {event.subject}".split())[:_MAX_LINE]
        mail["Date"] = format_datetime(datetime.fromtimestamp(event.at, UTC))
        mail["Message-ID"] = f"<{event.id}@{self._sender.rpartition('@')[2]}>"
        mail["Auto-Submitted"] = "auto-generated"
        lines = [f"{_text(name)}: {_text(value)}"[:_MAX_LINE] for name, value in event.fields.items()]
        if suppressed:
            lines += ["", f"{suppressed} more of this kind came since the last mail, and were not sent."]
        mail.set_content("\n".join(lines) + "\n")
        return mail


def receivers(settings: Settings) -> dict[str, Receiver]:
    """Return the receivers that the settings name."""
    found: list[Receiver] = []
    if url := settings.webhook_url.get_secret_value():
        found.append(Webhook(url, settings.webhook_secret.get_secret_value(), settings.user_agent))
    if url := settings.smtp_url.get_secret_value():
        found.append(Mail(url, settings.mail_from, settings.mail_to))
    return {each.name: each for each in found}


def _text(value: Any) -> str:
    """Return a value for people. Half a surrogate pair, which JSON may have and no mail and no key can, is escaped."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode(errors="backslashreplace").decode()
