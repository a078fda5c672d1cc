"""Access to the operations page and the operators' API: passwords with sessions, a proxy's user header, a token."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from fastapi import Request, Response
from itsdangerous import BadSignature, SignatureExpired, URLSafeTimedSerializer

from app.errors import OperatorRequired, RequestForged
from app.operations.operators import Operator, Origin, Role
from app.web.server import FROM_PROXY
from config.settings import Settings

#: The cookie of a session, its longest duration in seconds, and the seconds without a request that end it.
COOKIE: Final = "operations"
SESSION_SECONDS: Final = 8 * 3_600
IDLE_SECONDS: Final = 3_600
#: Seconds after which a used session gets a new cookie.
_RENEW_AFTER: Final = 300
#: Seconds in which a form must be sent.
FORM_SECONDS: Final = 8 * 3_600
#: Seconds by which the clock of another web process may be ahead.
_CLOCK_SKEW: Final = 60
#: Characters of an operator's name.
MAX_NAME: Final = 80


@dataclass(frozen=True, slots=True)
class Session:
    """A session by password: its operator, when it began and was last used, in seconds since the epoch."""

    id: str
    operator: Operator
    began: float
    used: float


@dataclass
class Access:
    """Decides which operator sent a request. `passwords` are argon2 hashes by role; nothing is permitted without any.

    Sessions are signed cookies, so that they need no service. Their key comes from the settings: several web processes
    share sessions, and a new password ends all. `ended` has the sessions of this process that logged out.
    """

    passwords: Mapping[Role, str]
    user_header: str
    actors: frozenset[str]
    token: str
    key: bytes
    ended: dict[str, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, settings: Settings) -> Access:
        """Return what the settings permit."""
        given = {Role.ACT: settings.ops_password, Role.READ: settings.ops_read_password}
        passwords = {role: value.get_secret_value() for role, value in given.items() if value.get_secret_value()}
        token = settings.web_operator_token.get_secret_value()
        secret = "\0".join((*passwords.values(), token, settings.broker, settings.redis))
        key = hashlib.blake2b(secret.encode(), person=b"operations", digest_size=32).digest()
        return cls(passwords, settings.ops_user_header, frozenset(settings.ops_actors), token, key)

    @property
    def has_pages(self) -> bool:
        """Whether there is a way to log in on the page."""
        return bool(self.passwords or self.user_header)

    def page_operator(self, request: Request) -> Operator:
        """Return the operator of a page; raises OperatorRequired without a session that goes on."""
        if operator := self._user_of_proxy(request):
            return operator
        session = self._session(request)
        if session is None:
            raise OperatorRequired("log in first; a session ends after an hour without use")
        return session.operator

    def api_operator(self, request: Request, token: str) -> Operator:
        """Return the operator of a request with a token, or through the proxy; raises OperatorRequired."""
        if self.token and hmac.compare_digest(token.encode(), self.token.encode()):
            return Operator("token", Role.ACT, Origin.API)
        operator = self._user_of_proxy(request)
        if operator is None:
            raise OperatorRequired("send the operator's token as `Authorization: Bearer TOKEN`")
        return Operator(operator.name, operator.role, Origin.API)

    def log_in(self, name: str, password: str) -> tuple[Operator, str]:
        """Return the operator and the cookie of a new session; raises OperatorRequired for a wrong password.

        The password decides the role. Every hash is compared: the time depends on none of them.
        """
        matching = []
        for role, hashed in self.passwords.items():
            with suppress(VerificationError, InvalidHashError):
                PasswordHasher().verify(hashed, password)
                matching.append(role)
        if not matching:
            raise OperatorRequired("the password is wrong")
        operator, now = Operator(name, matching[0], Origin.PAGE), time.time()
        return operator, self._signed(Session(secrets.token_hex(8), operator, now, now))

    def log_out(self, request: Request) -> None:
        """End a session: its cookies open nothing any more in this process."""
        session, now = self._session(request), time.time()
        if session is not None:
            with self.lock:
                self.ended = {each: until for each, until in self.ended.items() if until > now}
                self.ended[session.id] = now + SESSION_SECONDS

    def renew(self, request: Request, response: Response) -> None:
        """Give a session that is used a new cookie now and then, so that it does not end as idle."""
        session = self._session(request)
        if session is not None and time.time() - session.used > _RENEW_AFTER:
            set_cookie(request, response, self._signed(replace(session, used=time.time())))

    def form_token(self, operator: Operator) -> str:
        """Return the token that proves that a form is one of this operator's page."""
        return str(self.serializer("form").dumps(operator.name))

    def require_own_form(self, request: Request, operator: Operator, token: str) -> None:
        """Raise RequestForged for a form that another site sent, or whose token is not the operator's.

        Browsers name the origin of a request: https://www.w3.org/TR/fetch-metadata/ and RFC 6454.
        """
        require_same_origin(request)
        try:
            named = self.signed("form", token, seconds=FORM_SECONDS)
        except BadSignature:
            raise RequestForged("this form is not of this session, or is too old; open its page again") from None
        if named != operator.name:
            raise RequestForged("this form was opened by another operator; open its page again")

    def _user_of_proxy(self, request: Request) -> Operator | None:
        name = request.headers.get(self.user_header, "") if self.user_header else ""
        with suppress(UnicodeError):  # Proxies send UTF-8, and the framework reads ISO 8859-1.
            name = name.encode("latin-1").decode()
        if not name or not request.scope.get(FROM_PROXY):
            return None
        role = Role.ACT if name in self.actors or "*" in self.actors else Role.READ
        return Operator(name[:MAX_NAME], role, Origin.PAGE)

    def _session(self, request: Request) -> Session | None:
        cookie = request.cookies.get(COOKIE, "")
        if not cookie or not self.passwords:
            return None
        try:
            ident, name, role, began, used = self.signed("session", cookie, seconds=SESSION_SECONDS)
            session = Session(str(ident), Operator(str(name), Role(role), Origin.PAGE), float(began), float(used))
        except (BadSignature, ValueError, TypeError):
            return None
        now = time.time()
        is_young = now - session.began < SESSION_SECONDS and now - session.used < IDLE_SECONDS
        has_ended = session.id in self.ended or session.operator.role not in self.passwords
        return session if is_young and not has_ended else None

    def _signed(self, session: Session) -> str:
        operator = session.operator
        fields = [session.id, operator.name, operator.role.value, session.began, session.used]
        return str(self.serializer("session").dumps(fields))

    def serializer(self, purpose: str) -> URLSafeTimedSerializer:
        """Return what signs texts for one purpose."""
        return URLSafeTimedSerializer(self.key, salt=purpose)

    def signed(self, purpose: str, text: str, *, seconds: float) -> Any:
        """Return what any web process signed for a purpose at most `seconds` ago; raises BadSignature.

        The serializer's own limit refuses what a clock signed that is a second ahead.
        """
        value, at = self.serializer(purpose).loads(text, return_timestamp=True)
        if not -_CLOCK_SKEW <= time.time() - at.timestamp() <= seconds:
            raise SignatureExpired(f"signed at {at.isoformat()}")
        return value


def set_cookie(request: Request, response: Response, cookie: str) -> None:
    """Set the session's cookie, which no script can read; an empty one deletes it."""
    if not cookie:
        response.delete_cookie(COOKIE, path="/ops")
        return
    secure = request.scope["scheme"] == "https"
    response.set_cookie(
        COOKIE, cookie, max_age=SESSION_SECONDS, path="/ops", secure=secure, httponly=True, samesite="lax"
    )


def require_same_origin(request: Request) -> None:
    """Raise RequestForged for a request that a page of another origin sent."""
    fetch_site = request.headers.get("Sec-Fetch-Site", "same-origin")
    origin = request.headers.get("Origin", "")
    own = f"{request.scope['scheme']}://{request.headers.get('Host', '')}"
    if fetch_site not in ("same-origin", "none") or origin not in ("", own):
        raise RequestForged("a page of another site sent this form")
