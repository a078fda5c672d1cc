"""The operator of a request of the operators' API, and its answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool

from app.broker.errors import ApplicationError
from app.errors import ResourceNotFound
from app.operations.operations import Operations
from app.web.ops.access import require_same_origin
from app.web.ops.visits import OpsState

#: Fields of every answer: no cache keeps it.
NO_STORE = {"Cache-Control": "no-store"}

_bearer = HTTPBearer(auto_error=False, description="The value of `WEB_OPERATOR_TOKEN`.")


async def calling(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Operations:
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
    return state.operations(operator)


Calling = Annotated[Operations, Depends(calling)]


async def answer(produce: Callable[[], Any]) -> Response:
    """Answer with the JSON of what a function returns, which runs in a thread."""
    document = json.dumps(await run_in_threadpool(produce), default=str)
    return Response(document, media_type="application/json", headers=NO_STORE)
