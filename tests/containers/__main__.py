"""`make test-containers`: the image, its programs as units of systemd, and docker-compose.yml. Needs root.

The containers are started, used, broken and upgraded.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from app.storage.disk import locked
from tests.chaos.faults import EVERYTHING
from tests.chaos.ledger import Ledger, Remains, violations
from tests.chaos.records import AWAY, Observer, PackWatch, watched_packs
from tests.chaos.rounds import at_rest
from tests.chaos.sites import plan_site
from tests.containers.engine import FOLDER, RUN, Engine, compose_program, named_images, refusal, stand_ins
from tests.containers.machine import check_units, machine
from tests.containers.stack import CHECKOUT, IMAGE, Stack, clean_checkout, stack
from tests.support.waiting import eventually

#: The sites of override.yml: seed and pages.
SMALL, LARGE = plan_site("small", pages=40), plan_site("large", pages=600)

#: What the containers are upgraded to.
NEXT_IMAGE = "localhost/perennial:next"

_began = time.monotonic()


def say(text: str) -> None:
    """Print a line with the seconds so far."""
    print(f"{time.monotonic() - _began:6.0f} s  {text}", flush=True)


def build(engine: Engine) -> None:
    """Build the image as docker-compose.yml would, and another one to upgrade to."""
    engine.build(CHECKOUT, f"--tag={IMAGE}")
    (folder := FOLDER / "next").mkdir(exist_ok=True)
    (folder / "Containerfile").write_text(f"FROM {IMAGE}\nLABEL next=true\n")
    engine.build(folder, f"--tag={NEXT_IMAGE}")


def check_image(engine: Engine) -> None:
    """Print the image's size, and check what it promises."""
    base = named_images(CHECKOUT)[0]
    size, above = (number / 1e6 for number in (engine.size(IMAGE), engine.size(IMAGE) - engine.size(base)))
    sbom = json.loads(engine.podman("run", "--rm", IMAGE, "cat", "/usr/share/perennial/sbom.cdx.json"))
    say(f"the image has {above:.0f} MB above its base, {size:.0f} MB with it")
    say(f"its SBOM has {len(sbom['components'])} packages")
    assert above < 200
    assert {"celery", "lxml"} <= {each["name"] for each in sbom["components"]}
    (image,) = json.loads(engine.podman("image", "inspect", IMAGE))
    assert image["Healthcheck"]["Test"]
    assert image["Labels"]["org.opencontainers.image.title"] == "Perennial"
    assert engine.podman("run", "--rm", IMAGE, "id", "--user").strip() == "10001"
    tools = engine.podman("run", "--rm", IMAGE, "sh", "-c", "command -v cc gcc c++ ld make || echo none")
    assert tools.strip() == "none", tools


def found(containers: Stack, query: str) -> int:
    """Return how many pages of the small site a query finds, when it finds one."""

    def total() -> int:
        return int(containers.search("small.test", query)["total"])

    return eventually(total, f"{query!r} finds a page", seconds=120, every=0.5)


def first_search(containers: Stack) -> None:
    """Crawl the small site and find its pages over the published port."""
    containers.compose("exec", "-T", "worker", "perennial", "index", "--crawl", "http://small.test/")
    assert found(containers, "page") == len(SMALL.fetchable)


def replay(containers: Stack) -> None:
    """See the failing page's dead letter, repair the page, replay the letter, and find the page."""
    (path,) = SMALL.of_kind("dead")
    (letter,) = json.loads(containers.perennial("dead", "list", "--json", "--domain", "small.test"))
    assert letter["message"] == f"GET http://small.test{path}: 500", letter
    containers.repair("SMALL_PORT")
    containers.perennial("dead", "replay", "--all", "--domain", "small.test")
    found(containers, SMALL.pages[path].text.split()[0])
    say("the dead letter of the failing page is replayed, and its page found")


class Crawl:
    """The crawl of the large site, in which things are killed."""

    def __init__(self, containers: Stack) -> None:
        self._containers = containers

    def fetched(self) -> int:
        """Return how many pages the site has given."""
        return len({get.path for get in self._containers.journal("LARGE_PORT") if get.status == 200})

    def at(self, share: float, text: str, act: Callable[[], object]) -> None:
        """Do something when this share of the pages is fetched."""
        total = len(LARGE.fetchable)
        eventually(lambda: self.fetched() >= share * total, f"{share:.0%} of the pages", seconds=600, every=0.5)
        before, began = self.fetched(), time.monotonic()
        assert before < total, "the crawl is over before everything was done to it"
        act()
        say(f"{text} after {before} of {total} pages: {time.monotonic() - began:.0f} s")


def scale(containers: Stack) -> None:
    """Run three workers and three searchers; check that all of them are at work."""
    containers.up(worker=3, searcher=3)
    consumers = containers.broker.consumers("site.page")
    searchers = json.loads(containers.perennial("searchers", "--json"))
    assert consumers == 3, consumers
    assert len(searchers["searchers"]) == 3, searchers


def upgrade(containers: Stack) -> None:
    """Replace the containers by ones of another image; volumes stay."""
    containers.engine.podman("tag", NEXT_IMAGE, IMAGE)
    containers.up(worker=3, searcher=3)
    running = [each for each in containers.inspect(*containers.containers()) if each["ImageName"] == IMAGE]
    old = [each["Name"] for each in running if "next" not in each["Config"]["Labels"]]
    assert len(running) >= 10, running
    assert not old, old


def faults(containers: Stack) -> None:
    """Kill, scale and upgrade while the large site is crawled; check that nothing is lost."""
    crawl, sites = Crawl(containers), {"large.test": LARGE}
    with (
        closing(Observer(containers, sites)) as observer,
        tempfile.TemporaryDirectory() as folder,
        watched_packs(containers, list(sites), Path(folder)) as packs,
    ):
        containers.compose("exec", "-T", "worker", "perennial", "index", "--crawl", "http://large.test/")
        for share, service in ((0.05, "worker"), (0.15, "rabbitmq"), (0.3, "redis"), (0.4, "searcher")):
            crawl.at(share, f"killed a {service}", partial(containers.kill, service))
            found(containers, "page")
        crawl.at(0.5, "scaled workers and searchers to three", partial(scale, containers))
        crawl.at(0.75, "upgraded the image", partial(upgrade, containers))
        at_end = partial(remains_at_rest, observer, packs)
        remains = eventually(at_end, "nothing is left to do, and the pack is served", seconds=600, every=2)
        assert remains is not None
        ledger = Ledger(
            sites=sites,
            gets=containers.journal("LARGE_PORT"),
            stored=observer.stored(),
            packs=tuple(packs.records),
            letters=observer.letters(),
            remains=remains,
            repeatable=EVERYTHING,
        )
    lost = [str(each) for each in violations(ledger)]
    assert not lost, "\n".join(lost)
    say(f"nothing is lost: {len(packs.records[-1].contents)} pages in pack {packs.records[-1].generation}")


def remains_at_rest(observer: Observer, packs: PackWatch) -> Remains | None:
    """Return what remains once nothing is left to do and a searcher serves the pack; None before."""
    try:
        remains = observer.remains(packs.records, ())
    except AWAY:
        return None
    return remains if packs.records and at_rest(remains) and not remains.unserved else None


def last_checks(containers: Stack) -> None:
    """Check that the doctor finds nothing, all are healthy, and none wrote where only podman mounts memory."""
    containers.perennial("doctor")
    engine, names = containers.engine, containers.checked()
    assert [name for name in names if not engine.healthy(name)] == []
    for each in containers.inspect(*names):
        if each["ImageName"] == IMAGE:
            written = engine.podman("exec", each["Name"], "find", "/run", "/var/tmp", "-type", "f").split()
            assert written == ["/run/podman-init"], (each["Name"], written)
    say(f"the doctor finds nothing, and {len(names)} containers are healthy")


def main() -> int:
    """Run everything; return the exit status."""
    if reason := refusal():
        print(f"make test-containers cannot run: {reason}")
        return 1
    engine = Engine()
    with locked(str(RUN / "lock")):
        test(engine)
    return 0


def test(engine: Engine) -> None:
    """Build the images, then start and use the containers."""
    clean_checkout()
    for line in stand_ins(engine, CHECKOUT):
        say(line)
    program = compose_program(engine)
    build(engine)
    check_image(engine)
    with machine(engine) as made:
        say(f"systemd has run {len(check_units(made))} units of the image's programs through a crawl and a kill")
    began = time.monotonic()
    clean_checkout()
    with engine.serving(), stack(engine, program) as containers:
        containers.up()
        say(f"every container is healthy {time.monotonic() - began:.0f} s after the checkout")
        first_search(containers)
        say(f"a page is found {time.monotonic() - began:.0f} s after the checkout")
        replay(containers)
        faults(containers)
        last_checks(containers)


if __name__ == "__main__":
    sys.exit(main())
