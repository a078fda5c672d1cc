"""An S3-compatible server for tests: moto's, in its own process, on a free loopback port, or in a container."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

BUCKET = "perennial-test"
ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True)
class S3Server:
    """The server's address, its only bucket, and the environment variables that a client needs."""

    endpoint_url: str
    bucket: str = BUCKET
    environment: dict[str, str] = field(
        default_factory=lambda: {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    )

    def store_url(self, prefix: str = "") -> str:
        """Return the URL of a store in its bucket."""
        return f"s3://{self.bucket}{f'/{prefix}' if prefix else ''}?endpoint={self.endpoint_url}"


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server with one empty bucket during the block. It keeps objects in memory."""
    command = [sys.executable, "-m", "tests.servers.s3"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip()
        assert endpoint.startswith("http://"), f"moto did not start: {endpoint!r}, exit {process.poll()}"
        yield S3Server(endpoint)


def main(host: str = "127.0.0.1", port: str = "0") -> None:
    """Serve until standard input closes, also when the test run is killed; in a container until that is stopped."""
    import logging

    import boto3
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    s3, turn = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def respond(environ: dict[str, Any], start_response: Any) -> Any:
        if environ["PATH_INFO"] == "/healthz":
            start_response("200 OK", [])
            return []
        if length := environ.get("CONTENT_LENGTH"):
            # A client that hangs in its upload must not hold up others.
            environ["wsgi.input"] = BytesIO(environ["wsgi.input"].read(int(length)))
        # One at a time: moto checks a condition, and others could write before it does.
        with turn:
            return s3(environ, start_response)

    server = make_server(host, int(port), respond, threaded=True)
    if port != "0":
        server.serve_forever()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://{host}:{server.port}"
    os.environ.update(S3Server(endpoint).environment)
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
    print(endpoint, flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
