"""The operators' API: messages in delay queues, and acts that end a wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from app.operations.waiting import WaitingMessage, end_wait, read_waiting
from app.web.middleware import OPS_API
from app.web.models import StrictParameters
from app.web.ops_api.callers import Calling, answer
from app.web.ops_api.overview import OPS_ERRORS, StrictBody

#: Characters of a queue's name (AMQP 0-9-1).
_MAX_QUEUE = 255


class WaitingParameters(StrictParameters):
    """Query parameters of waiting messages."""

    queue: str = Field(min_length=1, max_length=_MAX_QUEUE, description="A delay queue.", examples=["site.delay.5000"])


class EndBody(StrictBody):
    """Messages whose wait is to end."""

    queue: str = Field(min_length=1, max_length=_MAX_QUEUE, description="A delay queue.", examples=["site.delay.5000"])
    act: Literal["send", "dead"] = Field(description="To the work queue now, or to the dead set.")
    ids: list[Annotated[str, Field(min_length=1, max_length=100)]] | None = Field(
        None, min_length=1, max_length=1_000, description="Ids of messages; null: all of the queue."
    )
    most: int = Field(5_000, ge=1, le=5_000, description="Messages to move, at most, where `ids` is null.")


class WaitingAnswer(BaseModel):
    """The messages that leave a delay queue first, at most 50. `at` is when they were read, in epoch seconds."""

    messages: Sequence[WaitingMessage]
    at: float
    refused: str = Field(description="Why the queue is not read again now, or empty.")


class MovedAnswer(BaseModel):
    """How many messages were moved, and how many still wait. `failure` is why one was not."""

    moved: int
    left: int
    failure: str


router = APIRouter(prefix=OPS_API, responses=OPS_ERRORS)


@router.get("/waiting", response_model=WaitingAnswer, operation_id="waiting")
async def waiting(ops: Calling, parameters: Annotated[WaitingParameters, Query()]) -> Response:
    """List the first messages of a delay queue, as they were at most half a minute ago."""

    def found() -> dict[str, Any]:
        return asdict(read_waiting(ops, parameters.queue))

    return await answer(found)


@router.post("/waiting/end", response_model=MovedAnswer, operation_id="end_wait")
async def end(ops: Calling, body: EndBody) -> Response:
    """Send waiting messages to their work queues now, or to the dead set."""
    return await answer(lambda: asdict(end_wait(ops, body.queue, body.act, ids=body.ids, most=body.most, why=body.why)))
