"""The crawled site in a container: a generated site, a journal of what it answered, and a way to repair it."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import asdict

from tests.chaos.sites import Get, answer_of, plan_site
from tests.servers.site import Request, Site, Wire, page, reply

#: The port in the container: with HTTP's own, the domain is the container's name.
PORT = 80
#: Paths that no page links to: the answers so far as JSON, and a request that lets the failing page answer.
JOURNAL, REPAIR = "/-/journal", "/-/repair"


def main() -> None:
    """Serve the site of this domain, seed and number of pages until the container is stopped."""
    domain, seed, pages = sys.argv[1], sys.argv[2], int(sys.argv[3])
    plan, journal = plan_site(seed, pages=pages), list[Get]()
    site = Site(address="0.0.0.0", port=PORT)

    def repair(request: Request, wire: Wire) -> None:
        for path in plan.of_kind("dead"):
            planned = plan.pages[path]
            site.set(path, page(planned.title, planned.text, links=planned.links))
        reply()(request, wire)

    for planned in plan.pages.values():
        site.set(planned.path, answer_of(planned, domain, journal.append))
    site.set(REPAIR, repair)
    site.set(JOURNAL, lambda request, wire: reply(json.dumps([asdict(get) for get in list(journal)]))(request, wire))
    with site:
        threading.Event().wait()


if __name__ == "__main__":
    main()
