"""What a command says of a broker or a Redis that does not answer, or refuses, and what a user can do."""

from __future__ import annotations

from typing import Literal

from redis.exceptions import AuthenticationError

from config.settings import Settings


def unreachable_text(service: Literal["RabbitMQ", "Redis"], error: BaseException, settings: Settings) -> str:
    """Return the text about an unreachable service; it names the setting with the URL of the service."""
    variable, url = {
        "RabbitMQ": ("BROKER_URL", settings.broker_url),
        "Redis": ("REDIS_URL", settings.redis_url),
    }[service]
    reason = str(error).removesuffix(".")
    if isinstance(error, AuthenticationError) or "ACCESS_REFUSED" in str(error):
        return f"{service} refuses the account: {reason}. Check user, password and permissions of {variable}"
    if url.get_secret_value():
        return f"{service} does not answer: {reason}. Check {variable}"
    # `perennial up` refuses to run twice, and leaves a service down that crashed again and again.
    start = "`perennial services up`, or with all processes by `perennial up`"
    return f"{service} is not running: start it with {start}, or set {variable}"
