"""Log in to the operations page with a name and a password, and log out."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool

from app.broker.errors import ApplicationError, InvalidMessage
from app.web.ops.access import MAX_NAME, require_same_origin, set_cookie
from app.web.ops.requests import Acting, OpsState, Subject, anonymous, ops_state, read_form
from app.web.paths import LOGIN_PATH, OPS_PAGES

subject = Subject()

State = Annotated[OpsState, Depends(ops_state)]


@subject.pages.get("/login", response_class=HTMLResponse)
async def login_page(request: Request, state: State) -> HTMLResponse:
    """Show the form."""
    return _login_page(request, state)


@subject.pages.post("/login")
async def log_in(request: Request, state: State) -> Response:
    """Begin a session, and open the home page."""
    name = ""
    try:
        require_same_origin(request)
        form = await read_form(request)
        name = next(iter(form.get("name", ())), "").strip()
        if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
            raise InvalidMessage(f"your name: expected 1 to {MAX_NAME} characters, which the audit shows")
        password = next(iter(form.get("password", ())), "")
        operator, cookie = await run_in_threadpool(state.access.log_in, name, password)
    except ApplicationError as error:
        await run_in_threadpool(state.note_refusal, request, error, name=name)
        return _login_page(request, state, name=name, fault=str(error), status=error.problem.status)
    response = RedirectResponse(OPS_PAGES, status_code=303, headers={"Cache-Control": "no-store"})
    set_cookie(request, response, cookie)
    await run_in_threadpool(state.context_of(operator).audit.write, operator, "log in", name, result="done")
    return response


@subject.pages.post("/logout")
async def log_out(visit: Acting) -> Response:
    """End the session."""
    visit.state.access.log_out(visit.request)
    response = RedirectResponse(LOGIN_PATH, status_code=303, headers={"Cache-Control": "no-store"})
    set_cookie(visit.request, response, "")
    return response


def _login_page(
    request: Request, state: OpsState, *, name: str = "", fault: str = "", status: int = 200
) -> HTMLResponse:
    return anonymous(request, state).page("login.html", status=status, name=name, fault=fault, max_name=MAX_NAME)
