"""A request of a program to the operators' API: its sender, its body, and the JSON that answers it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

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
from app.web.api import describe_errors
from app.web.ops.access import require_same_origin
from app.web.ops.page_requests import OpsState

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
