"""`python -m app.private_services rabbitmq` or `redis`: start the service unless it runs, and end when it has ended.

`perennial up` supervises this process as any other one, so that a service which dies is started again. The service
itself runs on when this process ends, or is killed: workers that stop still need it.
"""

from __future__ import annotations

import logging
import signal
import sys

from app.errors import ServicesError
from app.private_services.lifecycle import private_names, start_again, watch
from config.logs import configure
from config.settings import get_settings

log = logging.getLogger(__package__)


def main(argument: str) -> int:
    """Return 1 when the service has ended, or cannot be started; SIGTERM exits with 0, and the service runs on."""
    settings = get_settings()
    configure()
    name = next((each for each in private_names(settings) if each == argument), None)
    if name is None:
        log.critical("%s is no private service of these settings", argument)
        return 1

    def leave(*_: object) -> None:
        log.info("%s runs on until `perennial down`", name)
        sys.exit()

    signal.signal(signal.SIGTERM, leave)
    try:
        servers = start_again(settings, name)
        log.info("%s answers", ", ".join(f"{server.name} (pid={server.pids()[0]})" for server in servers))
        watch(servers)
    except ServicesError as error:
        log.critical("%s", error)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
