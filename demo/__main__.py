"""`python -m demo [--site URL]`: what `make demo` runs."""

from __future__ import annotations

import argparse
import io
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path

from app.broker.errors import ApplicationError
from app.errors import DemoFailed
from app.services import install
from config.settings import ROOT, get_settings
from demo import plan as plans
from demo.answers import Answer
from demo.plan import Plan
from demo.rendering import rendered_site
from demo.report import Report
from demo.run import alone, fresh, leave, quietly_stopped
from demo.screen import Plain, Terminal
from demo.server import DemoSite
from demo.story import Clock, Story, await_services
from demo.supervisor import Supervisor
from demo.witness import Witness


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return 0, or 1 where it failed, or 130 or 143 where it was interrupted."""
    parser = argparse.ArgumentParser(prog="make demo", description="Crawl, pack and search a web site.")
    parser.add_argument("--site", metavar="URL", help="a site of yours (default: one that the demo makes itself)")
    site = parser.parse_args(arguments).site
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A page's title may have characters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="replace")
    screen = Terminal() if sys.stdin.isatty() and sys.stdout.isatty() else Plain()
    try:
        _run(site, screen)
    except ApplicationError as error:
        print(f"The demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        screen.say("Interrupted; all is stopped.")
        return 130
    return 0


def _run(site: str | None, screen: Terminal | Plain) -> None:
    clock, given = Clock(), get_settings()
    folder = given.data_dir.resolve() / "demo"
    with alone(folder), ExitStack() as stack:
        home = fresh(folder / "home")
        own = None if site else stack.enter_context(DemoSite())
        plan = plans.own_site(given, home, own.url) if own else plans.users_site(given, home, str(site))
        _refuse_other_workers(plan)
        supervisor = stack.enter_context(
            quietly_stopped(Supervisor(plan.environment, log=folder / "processes.log"), screen.say)
        )
        _introduce(plan, own, folder, screen, clock)
        with clock.part("starting"):
            await_services(plan, supervisor)
        witness = stack.enter_context(Witness(plan.settings, plan.start.domain))
        story = Story(plan, screen=screen, supervisor=supervisor, witness=witness, clock=clock, site=own)
        stack.callback(story.close)
        report = _tell(story, plan, screen, clock)
        if isinstance(screen, Terminal):
            _until_interrupted(supervisor)
    if isinstance(screen, Plain):
        print(report.to_json(), flush=True)


def _introduce(plan: Plan, own: DemoSite | None, folder: Path, screen: Terminal | Plain, clock: Clock) -> None:
    screen.say("Perennial: crawl, pack and search a web site.")
    given = plan.settings
    if install.missing(broker=not given.broker_url.get_secret_value(), redis=not given.redis_url.get_secret_value()):
        screen.say("RabbitMQ or Redis are not on this machine: they are installed first, which takes about a minute.")
    if own is not None:
        screen.say("The site: the standard library's own documentation, rendered by pydoc while the services start.")
        with clock.part("rendering"):
            own.show(rendered_site(folder))
        screen.say(f"It has {own.pages} pages on {own.url}. One of them fails twice, one until it is repaired.")
    else:
        screen.say(f"The site: {plan.start.url}")
    for remark in plan.remarks:
        screen.say(remark)


def _tell(story: Story, plan: Plan, screen: Terminal | Plain, clock: Clock) -> Report:
    with screen.live() if isinstance(screen, Terminal) else nullcontext():
        _crawl(story, packs_what_is_there=plan.query == "")
        dead, replayed = story.bury_and_replay()
        answers = story.answers()
        report = story.report(answers, dead, replayed)
    for answer in answers:
        screen.answer(answer)
    screen.say("")
    _sum_up(report, screen, clock)
    _where_to_look(story, plan, answers[0], screen)
    return report


def _crawl(story: Story, *, packs_what_is_there: bool) -> None:
    """Crawl; of a site of the user's, which may be large, Ctrl-C packs what is there."""
    if not packs_what_is_there:
        story.crawl()
        return
    before = signal.signal(signal.SIGINT, lambda *_: story.interrupt())
    try:
        story.crawl()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, before)
        story.pack_what_is_there()
    finally:
        signal.signal(signal.SIGINT, before)


def _sum_up(report: Report, screen: Terminal | Plain, clock: Clock) -> None:
    screen.say(
        f"{report.pages} pages; {report.retried} retries came back from delay queues; {report.dead} messages died, "
        f"{report.replayed} were replayed."
    )
    screen.say(f"{str(clock).capitalize()}.")


def _where_to_look(story: Story, plan: Plan, answer: Answer, screen: Terminal | Plain) -> None:
    results, flower = story.addresses(answer.query)
    user, _, password = plan.settings.flower_login.partition(":")
    home = plan.settings.data_dir
    shown = home.relative_to(ROOT) if home.is_relative_to(ROOT) else home
    screen.say(f"Results page:  {results}")
    screen.say(f"Flower:        {flower}  (user {user}, password {password})")
    screen.say(f"The dead set:  PERENNIAL_DATA_DIR={shown} .venv/bin/perennial dead list")


def _until_interrupted(supervisor: Supervisor) -> None:
    print("Everything runs on. Ctrl-C stops it.", flush=True)
    try:
        while not threading.Event().wait(1.0):
            supervisor.check()
    except KeyboardInterrupt:
        print()


def _refuse_other_workers(plan: Plan) -> None:
    """Private services are the demo's alone; on given ones somebody else may be at work, with other settings."""
    if not plan.settings.broker_url.get_secret_value():
        return
    with Witness(plan.settings, plan.start.domain) as witness:
        if witness.consumers():
            raise DemoFailed(
                "workers run on the broker of BROKER_URL, and would take the demo's messages: stop them first"
            )


if __name__ == "__main__":
    sys.exit(main())
