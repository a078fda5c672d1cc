"""`perennial caa`: reindex and audit items of the Cover Art Archive, and work on events of MusicBrainz's table."""

from __future__ import annotations

from contextlib import closing, nullcontext
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from app.cli.arguments import AsJson, DryRun, Why
from app.cli.caa_audit import AuditReport, Comparison
from app.cli.caa_run import GidRun
from app.cli.context import operator_context
from app.cli.printing import confirm, iso, print_json, print_lines, print_result, printable
from app.coverart import event_table
from app.coverart.archive import PublicArchive
from app.coverart.event_table import ArtEventRow, ArtEventState, Requeued
from app.coverart.jobs import Index
from app.coverart.webservice import WebService
from app.operations import art

cli = typer.Typer(no_args_is_help=True, help="Cover art and event art: what the archive holds, and what it should.")

events = typer.Typer(no_args_is_help=True, help="Events of MusicBrainz's table, and their reader.")
cli.add_typer(events, name="events")

#: Messages that are published at once without a confirmation of the user.
_UNCONFIRMED = 10_000

Gids = Annotated[list[str] | None, typer.Argument(metavar="[GID]...", help="Releases, or events of event art.")]
Every = Annotated[bool, typer.Option("--all", help="All that have images, in the order of their gids.")]
ArchiveOption = Annotated[str, typer.Option(metavar="EXCHANGE", help="Which archive, where more than one is served.")]
After = Annotated[str, typer.Option(metavar="GID", help="With --all: only those after this gid.")]
Limit = Annotated[int | None, typer.Option(min=1, help="With --all: the most that are processed.")]
Rate = Annotated[float | None, typer.Option(min=0.001, help="The most that are processed in a second.")]


@cli.command()
def reindex(
    gids: Gids = None,
    every: Every = False,
    archive: ArchiveOption = "",
    after: After = "",
    limit: Limit = None,
    rate: Rate = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask, even for many messages.")] = False,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Enqueue `index` of releases, which writes their listing and metadata again."""
    run = GidRun(archive, gids, every=every, after=after, limit=limit, rate=rate)
    run.require_database()
    with run.resumable():
        total = partial(run.total, audited=False)
        if every and rate is None and not yes and (messages := total()) > _UNCONFIRMED:
            confirm(
                f"Enqueue {messages:,} messages at once? (--rate spreads them, --limit takes a part)",
                without_terminal=f"{messages:,} messages at once: confirm with --yes, or use --rate or --limit",
            )
        with run.progress(total) as show, run.act("art reindex", why):
            for batch in run.batches(run.existing()):
                run.wait(len(batch))
                run.publish([Index(gid) for gid in batch])
                run.advance(batch)
                show()
    result = {"archive": run.project.prefix, "enqueued": run.count, "last": run.last}
    print_result(result, f"index of {run.count_text(run.count)} enqueued", as_json=as_json)


@cli.command()
def audit(
    gids: Gids = None,
    every: Every = False,
    fix: Annotated[bool, typer.Option("--fix", help="Enqueue the jobs that repair the findings.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --fix: delete images without asking.")] = False,
    metadata: Annotated[
        bool,
        typer.Option("--metadata", help="Compare all metadata, at one request to the web service for each item."),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Items that are compared at the same time.")] = 4,
    archive: ArchiveOption = "",
    after: After = "",
    limit: Limit = None,
    rate: Rate = None,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Compare the archive with the database; exit 1 on findings. --all includes merged and deleted releases."""
    if yes and not fix:
        raise typer.BadParameter("--yes goes with --fix")
    # What a standby lacks must not be deleted from the archive.
    run = GidRun(archive, gids, every=every, after=after, limit=limit, rate=rate, primary=fix)
    report = AuditReport(run, fix=fix, yes=yes, as_json=as_json)
    run.require_database()
    with run.resumable(), report.kept(), run.act("art repair", why) if fix else nullcontext():
        public, web_service = PublicArchive.of(run.settings), WebService.of(run.settings)
        comparison = Comparison(run, public, web_service, every_metadata=metadata)
        compared = comparison.compare(run.auditable(), jobs=jobs)
        with (
            report.deleting_images(comparison.gids_of_images),
            run.progress(partial(run.total, audited=True)) as show,
            closing(compared),
        ):
            for gid, found in compared:
                report.add(gid, found)
                run.advance([gid])
                show()
        report.print_summary()
    raise typer.Exit(1 if report.audit.kinds or report.audit.unread else 0)


@cli.command()
def handback(dry_run: DryRun = False, why: Why = "", as_json: AsJson = False) -> None:
    """Queue running events again, for the indexer that takes the table over. Stop reader and workers first."""
    print_requeued(art.hand_back(operator_context(), dry_run=dry_run, why=why), dry_run=dry_run, as_json=as_json)


# Events


@events.command("list")
def list_(
    state: Annotated[ArtEventState, typer.Option(help="Only events of this state.")] = "failed",
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List events of a state, the oldest first.

    The columns are id, type, action, runs, creation, last reason and message.
    """
    with art.open_table(operator_context()) as connection:
        events = event_table.list_events(connection, state, limit=limit)
    cells = (
        (each.id, each.entity, each.action, each.attempts, iso(each.created), "".join(each.reasons[-1:]), each.message)
        for each in events
    )
    if as_json:
        print_json(map(_as_json, events))
    elif not print_lines(cells):
        typer.echo(f"No event is {state}.", err=True)


@events.command()
def show(ident: Annotated[int, typer.Argument(metavar="ID", help="An event.")], as_json: AsJson = False) -> None:
    """Show one event with the reason of each failed run."""
    with art.open_table(operator_context()) as connection:
        [event] = event_table.find_events(connection, [ident])
    lines = [f"{name}: {value}" for name, value in _as_json(event).items() if name != "reasons"]
    lines += [f"failed: {reason}" for reason in event.reasons]
    print_result(_as_json(event), "\n".join(map(printable, lines)), as_json=as_json)


@events.command()
def requeue(
    ids: Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Failed events.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All failed events.")] = False,
    dry_run: DryRun = False,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Queue failed events again with all their runs, and remove their dead letters."""
    if bool(ids) == every:
        raise typer.BadParameter("give IDs, or --all")
    print_requeued(art.requeue(operator_context(), ids, dry_run=dry_run, why=why), dry_run=dry_run, as_json=as_json)


@events.command()
def pause(why: Why = "") -> None:
    """Publish no event until `resume`; jobs of published ones go on."""
    art.steer_reader(operator_context(), paused=True, why=why)
    typer.echo("the event reader is paused")


@events.command()
def resume(why: Why = "") -> None:
    """Publish events again."""
    art.steer_reader(operator_context(), paused=False, why=why)
    typer.echo("the event reader is resumed")


def print_requeued(done: Requeued, *, dry_run: bool, as_json: bool) -> None:
    """Print what was queued again, or would be."""
    text = f"would be: {len(done.ids):,} events queued again" if dry_run else str(done)
    print_result({**asdict(done), "dry_run": dry_run}, text, as_json=as_json)


def _as_json(event: ArtEventRow) -> dict[str, object]:
    times = {name: iso(getattr(event, name)) for name in ("created", "last_updated")}
    return {**asdict(event), **times}
