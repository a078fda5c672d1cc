"""Reports of errors to Sentry, an extra: without its setting nothing is imported or done."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from config.logs import about_task, scrub, secrets_in
from config.settings import Settings

log = logging.getLogger(__name__)

#: An event as Sentry's SDK has it, and what it was made of.
SentryEvent = dict[str, Any]
Filter = Callable[[SentryEvent, dict[str, Any]], SentryEvent | None]


def begin(process: str, settings: Settings) -> None:
    """Send the errors of this process, and of those that it forks, to Sentry, if SENTRY_DSN names one.

    Its SDK reads its other settings itself, from the variables `SENTRY_…`.
    """
    dsn = settings.sentry_dsn.get_secret_value()
    if not dsn:
        return
    try:
        import sentry_sdk
        from sentry_sdk.integrations.celery import CeleryIntegration
        from sentry_sdk.integrations.stdlib import StdlibIntegration
    except ImportError as error:
        log.warning("No errors are sent to Sentry: install perennial[sentry]: %s", error)
        return
    sentry_sdk.init(
        dsn=dsn,
        integrations=[CeleryIntegration(propagate_traces=False)],
        # Those of web frameworks would send what visitors search for.
        auto_enabling_integrations=False,
        # It would note each request to a site.
        disabled_integrations=[StdlibIntegration()],
        # Variables may have texts of pages, and secrets that are not settings.
        include_local_variables=False,
        before_send=before_send(settings),  # type: ignore[arg-type]
    )
    sentry_sdk.get_global_scope().set_tag("process", process)


def before_send(settings: Settings) -> Filter:
    """Return the function that says what an event is about and hides secrets; it drops what was sent before."""
    secrets = secrets_in(settings)

    def scrubbed(value: Any) -> Any:
        if isinstance(value, str):
            return scrub(value, secrets)
        if isinstance(value, dict):
            return {name: scrubbed(each) for name, each in value.items()}
        return [scrubbed(each) for each in value] if isinstance(value, list | tuple) else value

    def prepared(event: SentryEvent, hint: dict[str, Any]) -> SentryEvent | None:
        record = hint.get("log_record")
        # The process of the run has sent the exception itself; this is the line of the worker's main process.
        if getattr(record, "is_announced", False):
            return None
        about = about_task(record)
        event["extra"] = {**event.get("extra", {}), "url": about.pop("url", "")}
        event["tags"] = {**event.get("tags", {}), **about}
        return dict(scrubbed(event))

    return prepared
