"""`perennial caa`: reindex items of the Cover Art Archive, and audit them against MusicBrainz's database."""

from __future__ import annotations

from contextlib import closing, nullcontext
from functools import partial
from typing import Annotated

import typer

from app.cli.arguments import AsJson, DryRun, Why
from app.cli.caa_audit import AuditReport, Comparison
from app.cli.caa_events import cli as events
from app.cli.caa_events import print_requeued
from app.cli.caa_run import GidRun
from app.cli.context import operator_context
from app.cli.printing import confirm, print_result
from app.coverart.archive import PublicArchive
from app.coverart.jobs import Index
from app.coverart.webservice import WebService
from app.operations import art

cli = typer.Typer(no_args_is_help=True, help="Cover art and event art: what the archive holds, and what it should.")

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
