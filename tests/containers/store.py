"""The S3 server in a container: moto's, on the port and with the health check of the one that it stands in for."""

from __future__ import annotations

import logging
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

from tests.servers.s3 import one_at_a_time

PORT = 8333


def main() -> None:
    """Serve until the container is stopped. Objects are kept in memory."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    s3 = DomainDispatcherApplication(create_backend_app)
    answer = one_at_a_time(lambda server, *arguments: s3(*arguments))

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        if environ["PATH_INFO"] == "/healthz":
            start_response("200 OK", [])
            return []
        return answer(s3, environ, start_response)

    # Inside a container every address means the network of these containers.
    run_simple("0.0.0.0", PORT, application, threaded=True)


if __name__ == "__main__":
    main()
