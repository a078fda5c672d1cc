"""`python -m demo [--site URL]`: what `make demo` runs."""

from __future__ import annotations

import argparse
import io
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from app.errors import DemoFailed
from app.private_services import install
from config.settings import ROOT, get_settings
from demo.display import Display
from demo.monitor import BrokerMonitor
from demo.plan import Plan, plan_own_site, plan_user_site
from demo.run import DemoRun, DemoSummary, await_services
from demo.site import DemoSite, rendered_site
from demo.supervisor import Supervisor, empty_data_folder, exclusive, exit_status, uninterrupted_stop


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo. Return 0, 1 after a failure, or 130 or 143 after an interrupt."""
    parser = argparse.ArgumentParser(prog="make demo", description="Crawl, pack and search a web site.")
    parser.add_argument("--site", metavar="URL", help="your own site (default: a site that the demo serves itself)")
    site = parser.parse_args(arguments).site
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Titles of pages may have characters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="replace")
    display = Display()
    return exit_status(partial(run_demo, site, display), display.say)


def run_demo(site: str | None, display: Display) -> int:
    """Run the demo on the user's `site`, or on its own (None); return 0. On a terminal, keep it until Ctrl-C."""
    began, given = time.monotonic(), get_settings()
    folder = given.data_dir.resolve() / "demo"
    with exclusive(folder), ExitStack() as stack:
        data_folder = empty_data_folder(folder / "home")
        own = None if site else stack.enter_context(DemoSite())
        plan = plan_own_site(given, data_folder, own.url) if own else plan_user_site(given, data_folder, str(site))
        if plan.settings.broker_url.get_secret_value():
            # Workers with other settings would take the demo's messages.
            with BrokerMonitor(plan.settings, plan.start.domain) as broker:
                if broker.consumers():
                    raise DemoFailed(
                        "workers of the broker at BROKER_URL would take the demo's messages: stop them first"
                    )
        supervisor = stack.enter_context(
            uninterrupted_stop(Supervisor(plan.environment, log=folder / "processes.log"), display.say)
        )
        introduce(plan, own, folder, display)
        await_services(plan, supervisor)
        broker = stack.enter_context(BrokerMonitor(plan.settings, plan.start.domain))
        run = DemoRun(plan, display=display, supervisor=supervisor, broker=broker, site=own)
        stack.callback(run.close)
        summary = crawl_and_search(run, display, began)
        if display.is_terminal:
            print("Everything keeps running until you press Ctrl-C.", flush=True)
            try:
                while not threading.Event().wait(1.0):
                    supervisor.check()
            except KeyboardInterrupt:
                print()
    if not display.is_terminal:
        print(summary.to_json(), flush=True)
    return 0


def introduce(plan: Plan, own: DemoSite | None, folder: Path, display: Display) -> None:
    """Render the demo's own site, and print which site is crawled with which settings."""
    display.say("Perennial: crawl, pack and search a web site.")
    given = plan.settings
    if install.missing(broker=not given.broker_url.get_secret_value(), redis=not given.redis_url.get_secret_value()):
        display.say("RabbitMQ or Redis is not installed. Installing takes about a minute.")
    if own is not None:
        display.say("The site: the documentation of Python's standard library, rendered by pydoc.")
        own.show(rendered_site(folder))
        display.say(f"It has {own.pages} pages on {own.url}. One page fails twice, one until the demo repairs it.")
    else:
        display.say(f"The site: {plan.start.url}")
    for remark in plan.remarks:
        display.say(remark)


def crawl_and_search(run: DemoRun, display: Display, began: float) -> DemoSummary:
    """Crawl, pack, replay and search. Print the results and where to see more, and return the summary.

    The demo began at `began` on the monotonic clock.
    """
    run.crawl()
    dead, replayed = run.replay_dead_letters()
    results, searchers = run.search()
    first_query, first_result = results[0]
    seconds = time.monotonic() - began
    summary = run.summary(seconds=seconds, hits=first_result.total, dead=dead, replayed=replayed, searchers=searchers)
    for query, result in results:
        display.show_result(query, result)
    display.say("")
    display.say(
        f"Pages packed: {summary.pages}; retries through delay queues: {summary.retried}; "
        f"dead letters: {summary.dead}, replayed: {summary.replayed}; {summary.seconds:.1f} s."
    )
    results_url, flower_url = run.addresses(first_query)
    user, _, password = run.plan.settings.flower_login.partition(":")
    data_folder = run.plan.settings.data_dir
    shown_folder = data_folder.relative_to(ROOT) if data_folder.is_relative_to(ROOT) else data_folder
    display.say(f"Results page:  {results_url}")
    display.say(f"Flower:        {flower_url}  (user {user}, password {password})")
    display.say(f"The dead set:  PERENNIAL_DATA_DIR={shown_folder} .venv/bin/perennial dead list")
    return summary


if __name__ == "__main__":
    sys.exit(main())
