"""`python -m app.web`: serve the search page on WEB_ADDRESS until SIGINT or SIGTERM."""

from __future__ import annotations

import sys

from app import error_reports, tracing
from app.cluster.client.cluster import ClusterSearchClient
from app.crawl.reports.first_crawls import CrawlsInRedis
from app.sites.names import site_names
from app.sites.search_counter import search_counter
from app.timers.timers import packing_state
from app.web.application import create_app
from app.web.ops.access import Access
from app.web.ops.requests import OpsState
from app.web.server import create_server
from config.checks import host_and_port
from config.logs import configure
from config.settings import get_settings


def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    settings = get_settings()
    configure()
    tracing.begin("web", settings.otel_exporter_otlp_endpoint)
    error_reports.begin("web", settings)
    client = ClusterSearchClient.of(settings)
    names = site_names(settings)
    counter = search_counter(settings, names.counted)
    counter.start()
    app = create_app(
        client,
        rate_limit=settings.web_rate_limit,
        counts=client.counts,
        packing=packing_state(settings.redis),
        site_names=names,
        search_counter=counter,
        first_crawls=CrawlsInRedis(settings.redis),
        origins=settings.web_cors_origins,
        ops=OpsState(settings, Access.of(settings)),
    )
    host, port = host_and_port(settings.web_address)
    server = create_server(app, host=host, port=port, proxies=settings.forwarded_allow_ips)
    listener = server.config.bind_socket()
    # A connection to the printed address waits until the server accepts it, and is not refused.
    listener.listen(server.config.backlog)
    host, port = listener.getsockname()[:2]
    sys.stdout.write(f"Search page: http://{f'[{host}]' if ':' in host else host}:{port}/\n")
    sys.stdout.flush()
    server.run(sockets=[listener])


if __name__ == "__main__":
    main()
