"""The operators' API: messages in delay queues, and acts that end a wait."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field

from app.broker.waiting import Moved
from app.operations.waiting import Looked, end_wait, read_waiting
from app.web.models import StrictParameters
from app.web.ops_api.callers import ActBody, Calling, answer

#: Characters of a queue's name (AMQP 0-9-1).
_MAX_QUEUE = 255


class WaitingParameters(StrictParameters):
    """Query parameters of waiting messages."""

    queue: str = Field(min_length=1, max_length=_MAX_QUEUE, description="A delay queue.", examples=["site.delay.5000"])


class EndBody(ActBody):
    """Messages whose wait is to end."""

    queue: str = Field(min_length=1, max_length=_MAX_QUEUE, description="A delay queue.", examples=["site.delay.5000"])
    act: Literal["send", "dead"] = Field(description="To the work queue now, or to the dead set.")
    ids: list[Annotated[str, Field(min_length=1, max_length=100)]] | None = Field(
        None, min_length=1, max_length=1_000, description="Ids of messages; null: all of the queue."
    )
    most: int = Field(5_000, ge=1, le=5_000, description="Messages to move, at most, where `ids` is null.")


router = APIRouter()


@router.get("/waiting", response_model=Looked, operation_id="waiting")
def waiting(ops: Calling, parameters: Annotated[WaitingParameters, Query()]) -> Response:
    """List the first messages of a delay queue, as they were at most half a minute ago."""
    return answer(read_waiting(ops, parameters.queue))


@router.post("/waiting/end", response_model=Moved, operation_id="end_wait")
def end(ops: Calling, body: EndBody) -> Response:
    """Send waiting messages to their work queues now, or to the dead set."""
    return answer(end_wait(ops, body.queue, body.act, ids=body.ids, most=body.most, why=body.why))
