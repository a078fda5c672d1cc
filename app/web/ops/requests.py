"""Requests of operators: their senders, forms and JSON bodies, what answers them, and the routes of a subject."""

from __future__ import annotations

import inspect
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime
from functools import wraps
from typing import Annotated, Any, Final, TypeVar, get_origin
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from itsdangerous import BadSignature
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from app.broker.errors import ApplicationError, BrokerUnreachable, DeadSetBusy, InvalidMessage, Overloaded
from app.errors import (
    BodyRefused,
    OperatorRequired,
    ResourceNotFound,
    RoleRequired,
    SearchUnavailable,
    StoreError,
    TooManySearches,
    UriTooLong,
)
from app.operations.context import OperatorContext
from app.operations.operators import Operator, Origin, Role
from app.operations.overview import Overview
from app.web.api import describe_errors
from app.web.client_limits import client_key
from app.web.models import MAX_DOMAIN
from app.web.ops.access import Access, require_same_origin
from app.web.ops.filters import TEMPLATE_FILTERS, is_time
from app.web.pages import templates
from app.web.paths import OPS_API, OPS_PAGES
from app.web.problems import detail_of
from config.settings import Settings

templates.filters.update(TEMPLATE_FILTERS)
templates.tests["time"] = is_time
templates.globals["macros"] = templates.get_template("ops/macros.html").module

Body = TypeVar("Body", bound=BaseModel)

#: The cookie of the text that the next page shows once, and its longest duration in seconds.
_NOTE: Final = "operations-note"
_NOTE_SECONDS: Final = 60
#: Seconds in which equal refusals of one address, or of its IPv6 network, are one entry of the audit: guesses must not
#: fill the store.
REFUSAL_SECONDS: Final = 60.0
_MAX_REFUSALS: Final = 1_000
#: Fields of one form.
_MAX_FIELDS: Final = 6_000


@dataclass(slots=True)
class OpsState:
    """What all requests of operators share in one process."""

    settings: Settings
    access: Access
    refusals: dict[tuple[str, str], float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def context_of(self, operator: Operator) -> OperatorContext:
        """Return what acts of an operator work with."""
        return OperatorContext(self.settings, operator)

    def note_refusal(self, request: Request, error: ApplicationError, *, name: str = "") -> None:
        """Keep a refusal in the audit, equal ones of a client once in REFUSAL_SECONDS."""
        address, now = (request.scope["client"] or ("unknown",))[0], time.monotonic()
        kind = (client_key(address), error.reason)
        with self.lock:
            self.refusals = {each: until for each, until in self.refusals.items() if until > now}
            if kind in self.refusals or len(self.refusals) >= _MAX_REFUSALS:
                return
            self.refusals[kind] = now + REFUSAL_SECONDS
        origin = Origin.PAGE if request.scope["path"].startswith(f"{OPS_PAGES}/") else Origin.API
        operator = Operator(name or f"unknown at {address}", Role.READ, origin)
        subject = f"{request.method} {request.scope['path']}"
        self.context_of(operator).audit.write(operator, "refused", subject, result=str(error), address=address)


@dataclass(frozen=True, slots=True)
class Visit:
    """A request of an operator for a page; `form` has the values of its fields, by name."""

    request: Request
    state: OpsState
    ops: OperatorContext
    form: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def form_token(self) -> str:
        """A new token for the forms of the operator's page."""
        return self.state.access.form_token(self.ops.operator)

    def value(self, name: str) -> str:
        """Return the only value of a form's field, without spaces around it; empty if it is missing."""
        return next(iter(self.form.get(name, ())), "").strip()

    def read(self, body: type[Body], **others: Any) -> Body:
        """Return the form, with other values, as the body that a program would send; raises InvalidMessage.

        Fields of the form that are empty are missing ones. A list has what fields of its name contain, without spaces.
        """
        given: dict[str, Any] = {}
        for name, field_of_body in body.model_fields.items():
            if get_origin(field_of_body.annotation) is list:
                given[name] = " ".join(self.form.get(name, ())).split()
            elif value := self.value(name):
                given[name] = value
        try:
            return body.model_validate(given | others, strict=False)
        except ValidationError as error:
            raise InvalidMessage(detail_of(error.errors())) from None

    def page(self, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """Return a page of `templates/ops/`, which gets these values, the operator, its form token and the note."""
        note = ""
        with suppress(BadSignature):
            note = str(self.state.access.signed("note", self.request.cookies.get(_NOTE, ""), seconds=_NOTE_SECONDS))
        html = templates.get_template(f"ops/{template}").render(
            operator=self.ops.operator,
            form_token=self.form_token,
            has_sessions=bool(self.state.access.passwords),
            path=self.request.scope["path"],
            now=datetime.now(UTC),
            note=note,
            **values,
        )
        response = HTMLResponse(html, status_code=status, headers={"Cache-Control": "no-store"})
        self.state.access.renew(self.request, response)
        if note:
            response.delete_cookie(_NOTE, path=OPS_PAGES)
        return response

    def back(self, path: str, note: str = "") -> RedirectResponse:
        """Return a redirection to a page, which shows `note` once (RFC 9110, 15.4.4: the form is not sent again)."""
        response = RedirectResponse(path, status_code=303, headers={"Cache-Control": "no-store"})
        if note:
            text = str(self.state.access.serializer("note").dumps(note[:1_500]))
            response.set_cookie(_NOTE, text, max_age=_NOTE_SECONDS, path=OPS_PAGES, httponly=True, samesite="lax")
        return response


def overview_of(request: Request) -> Overview:
    """Return the overview of the process that serves a request."""
    overview: Overview = request.app.state.overview
    return overview


def ops_state(request: Request) -> OpsState:
    """Return the state of the operations page; raises ResourceNotFound where the settings have no way to log in."""
    state: OpsState | None = request.app.state.ops
    if state is None or not state.access.has_pages:
        raise ResourceNotFound("the operations page is off: set OPS_PASSWORD or OPS_USER_HEADER")
    return state


async def reading(request: Request, state: Annotated[OpsState, Depends(ops_state)]) -> Visit:
    """Return a visit that reads; raises OperatorRequired."""
    return Visit(request, state, state.context_of(state.access.page_operator(request)))


async def acting(request: Request, state: Annotated[OpsState, Depends(ops_state)]) -> Visit:
    """Return a visit with a form of the operator's own page; raises OperatorRequired and RequestForged.

    A refusal is kept in the audit.
    """
    name = ""
    try:
        form = await read_form(request)
        operator = state.access.page_operator(request)
        name = operator.name
        state.access.require_own_form(request, operator, next(iter(form.get("form_token", ())), ""))
    except ApplicationError as error:
        # It writes to the store, which must not hold up the event loop.
        await run_in_threadpool(state.note_refusal, request, error, name=name)
        raise
    return Visit(request, state, state.context_of(operator), form)


async def read_form(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form; raises InvalidMessage for another body."""
    media_type = request.headers.get("Content-Type", "").partition(";")[0].strip()
    if media_type != "application/x-www-form-urlencoded":
        raise InvalidMessage(f"expected a form (application/x-www-form-urlencoded), not {media_type or 'nothing'!r}")
    try:
        body = (await request.body()).decode()
        return parse_qs(body, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except ClientDisconnect:
        raise InvalidMessage("the form was cut off before its end") from None
    except ValueError as error:
        raise InvalidMessage(f"the form cannot be read: {error}") from None


Reading = Annotated[Visit, Depends(reading)]
Acting = Annotated[Visit, Depends(acting)]


def anonymous(request: Request, state: OpsState) -> Visit:
    """Return a visit without a session, for the pages that need none."""
    return Visit(request, state, state.context_of(Operator("", Role.READ, Origin.PAGE)))


def error_page(request: Request, state: OpsState, error: type[ApplicationError], detail: str) -> Response:
    """Return the page for an error of a page; without a session, the way to log in."""
    problem = error.problem
    if problem.status == 401 and request.method == "GET":
        return RedirectResponse(f"{OPS_PAGES}/login", status_code=303, headers={"Cache-Control": "no-store"})
    try:
        visit = Visit(request, state, state.context_of(state.access.page_operator(request)))
    except ApplicationError:
        visit = anonymous(request, state)
    is_act = request.method == "POST"
    return visit.page("error.html", status=problem.status, title=problem.title, detail=detail, is_act=is_act)


# Requests of programs

#: Fields of every answer: no cache keeps it.
NO_STORE = {"Cache-Control": "no-store"}
#: What any of these addresses may answer besides its result.
OPS_ERRORS = describe_errors(
    *(InvalidMessage, BodyRefused, UriTooLong, OperatorRequired, RoleRequired, ResourceNotFound),
    *(TooManySearches, ApplicationError, Overloaded, DeadSetBusy, SearchUnavailable, BrokerUnreachable, StoreError),
)

_bearer = HTTPBearer(auto_error=False, description="The value of `WEB_OPERATOR_TOKEN`.")


class StrictBody(BaseModel):
    """A JSON body. An unknown field is refused, as it may be a mistyped one, and so is a value of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ActBody(StrictBody):
    """The body of an act."""

    why: str = Field("", max_length=500, description="The reason, for the audit.")


class DoneAnswer(BaseModel):
    """What an act did."""

    done: Sequence[str]


async def calling(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> OperatorContext:
    """Return what acts of the request's operator work with.

    Raises OperatorRequired without the operator's token or a proxy's user, and ResourceNotFound if the settings have
    neither. A refusal is kept in the audit.
    """
    state: OpsState | None = request.app.state.ops
    if state is None or not (state.access.token or state.access.user_header):
        raise ResourceNotFound("only operators may read this, and WEB_OPERATOR_TOKEN is not set here")
    try:
        if request.method != "GET":
            require_same_origin(request)
        operator = state.access.api_operator(request, credentials.credentials if credentials else "")
    except ApplicationError as error:
        await run_in_threadpool(state.note_refusal, request, error)
        raise
    return state.context_of(operator)


Calling = Annotated[OperatorContext, Depends(calling)]


def answer(value: Any) -> Response:
    """Return a value as JSON. Its texts may be those of any message, so all of them are escaped to ASCII."""
    return Response(json.dumps(value, default=_encoded), media_type="application/json", headers=NO_STORE)


def _encoded(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


# Parameters, and the routes of a subject

Domain = Annotated[
    str, Path(min_length=1, max_length=MAX_DOMAIN, description="The site's domain.", examples=["docs.example.org"])
]
Url = Annotated[
    str, Field(min_length=1, max_length=2_000, description="A page.", examples=["https://docs.example.org/a"])
]
OfSite = Annotated[str, Field(max_length=MAX_DOMAIN, description="The site, if it is not the host of the URL.")]
PageNumber = Annotated[int, Query(ge=1)]


@dataclass(frozen=True, slots=True)
class Done:
    """What an act did: a program gets `value`, and an operator the page at `path`, which shows `note`."""

    value: Any
    path: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """The routes about one subject. `pages` are for browsers, `api` for programs."""

    # With their whole paths, which metrics show: FastAPI gives no route the prefix of its inclusion.
    pages: APIRouter = field(default_factory=lambda: APIRouter(prefix=OPS_PAGES))
    api: APIRouter = field(default_factory=lambda: APIRouter(prefix=OPS_API))

    def act(
        self, path: str, *, response_model: Any, operation_id: str, form: Callable[..., Response] | None = None
    ) -> Callable[[Callable[..., Done]], None]:
        """Register an act: a form of pages and an address of the API, which take the same fields.

        The function has the parameters `ops` and `body`, and those of the path. If it refuses what was entered by
        InvalidMessage, `form` returns the page with the form again; without `form`, the page of errors answers. `form`
        gets the visit, the reason as `fault`, and the parameters of the path.
        """

        def register(act: Callable[..., Done]) -> None:
            signature = inspect.signature(act, eval_str=True)
            own = signature.parameters
            others = [each for name, each in own.items() if name not in ("ops", "body")]

            @wraps(act)
            def by_program(**given: Any) -> Response:
                return answer(act(**given).value)

            def by_form(visit: Acting, **given: Any) -> Response:
                try:
                    done = act(ops=visit.ops, body=visit.read(own["body"].annotation), **given)
                except InvalidMessage as error:
                    if form is None:
                        raise
                    of_path = {name: value for name, value in given.items() if f"{{{name}}}" in path}
                    return form(visit, fault=str(error), **of_path)
                return visit.back(done.path, done.note)

            # FastAPI reads from it what the form's address has.
            visit = inspect.Parameter("visit", inspect.Parameter.KEYWORD_ONLY, annotation=Acting)
            by_form.__signature__ = signature.replace(parameters=[*others, visit])  # type: ignore[attr-defined]
            self.api.post(path, response_model=response_model, operation_id=operation_id)(by_program)
            self.pages.post(path)(by_form)

        return register
