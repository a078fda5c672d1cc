"""The routes of one subject of operations: pages, addresses of the API, and acts, which are both."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from fastapi import APIRouter, Response

from app.broker.errors import InvalidMessage
from app.web.ops.api_requests import answer
from app.web.ops.page_requests import Acting
from app.web.paths import OPS_API, OPS_PAGES


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
