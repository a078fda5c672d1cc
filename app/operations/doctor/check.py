"""One check of `perennial doctor`: what it reads, what it needs, and its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from amqp.exceptions import AccessRefused
from redis import RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from app.broker.errors import ApplicationError, BrokerUnreachable, PublishFailed, error_with_class
from app.topology.check import TopologyReport, server_version
from app.topology.model import QueueDefinition
from config.settings import Settings

#: `problem`: messages can be lost, or work cannot continue. `warning`: only in the case that the text names.
#: `unverified`: this process's account at the broker may not try it.
CheckStatus = Literal["ok", "unverified", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One result of a check, whose name the runner of the checks fills in."""

    status: CheckStatus
    text: str
    check: str = ""


def unverified(error: Exception, name: str) -> CheckResult:
    """Return the result of a check that the broker refuses to this account."""
    return CheckResult("unverified", f"this account may not try it, that of an administrator may: {error}", name)


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What checks read. Those that need no broker get the settings alone.

    `report` compares the topology; it is missing without the broker's management API.
    """

    settings: Settings
    connection: Any = None
    publisher: Any = None
    report: TopologyReport | None = None

    @property
    def found(self) -> Mapping[str, QueueDefinition]:
        """Our queues as the broker has them, by name; none without a report."""
        if self.report is None:
            return {}
        found = self.report.found.queues
        return {name: found[name] for name in self.report.ours.queues if name in found}

    @property
    def version(self) -> tuple[int, ...]:
        """RabbitMQ's version."""
        return server_version(self.connection)


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One check. `needs` a broker, or also the broker's own report of its exchanges and queues, or Redis, or none.

    A worker makes the `quick` ones every minute: they publish and write nothing. `perennial status` makes those of an
    `outage`: what workers wait for.
    """

    name: str
    run: Callable[[CheckContext], Iterator[CheckResult]]
    needs: Literal["", "broker", "report", "redis"] = ""
    quick: bool = False
    outage: bool = False

    def results(self, context: CheckContext) -> Iterator[CheckResult]:
        """Yield the results, with its name. An error that it raises is a problem; raises BrokerUnreachable."""
        try:
            for result in self.run(context):
                yield replace(result, check=self.name)
        except BrokerUnreachable:
            raise
        except (RedisConnectionError, RedisTimeoutError):
            return  # The runner of the checks reports it.
        except AccessRefused as error:
            yield unverified(error, self.name)
        except PublishFailed as error:
            refused = isinstance(error.__cause__, AccessRefused)
            text = f"PublishFailed: {error}"
            yield unverified(error, self.name) if refused else CheckResult("problem", text, self.name)
        except (ApplicationError, RedisError, OSError) as error:
            yield CheckResult("problem", error_with_class(error), self.name)
