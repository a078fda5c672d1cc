"""`perennial caa`: reindex items of the Cover Art Archive, and audit them against MusicBrainz's database."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import typer

from app.cli import caa_view as view
from app.cli.caa_jobs import GidSelection, JobPublisher, ResumePoint, ServedArchive, Throttle, batches
from app.coverart import musicbrainz
from app.coverart.audit import ArtFinding
from app.coverart.audit import audit as compare
from app.coverart.jobs import Delete, Index
from app.coverart.musicbrainz import Connection
from app.errors import ArchiveError, ArchiveUnavailable, EntityNotFound
from config.settings import get_settings

cli = typer.Typer(no_args_is_help=True, help="Cover art and event art: what the archive holds, and what it should.")

#: Messages that are published at once without a confirmation of the user.
_UNCONFIRMED = 10_000

Gids = Annotated[list[str] | None, typer.Argument(metavar="GID", help="Releases, or events of event art.")]
Every = Annotated[bool, typer.Option("--all", help="All that have images, in the order of their gids.")]
Archive = Annotated[str, typer.Option(metavar="EXCHANGE", help="Which archive, where more than one is served.")]
After = Annotated[str, typer.Option(metavar="GID", help="With --all: only those after this gid.")]
Limit = Annotated[int | None, typer.Option(min=1, help="With --all: the most that are processed.")]
Rate = Annotated[float | None, typer.Option(min=0.001, help="The most that are processed in a second.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@cli.command()
def reindex(
    gids: Gids = None,
    every: Every = False,
    archive: Archive = "",
    after: After = "",
    limit: Limit = None,
    rate: Rate = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask, even for many messages.")] = False,
    as_json: AsJson = False,
) -> None:
    """Enqueue `index` of releases, which writes their listing and metadata again."""
    selection = GidSelection.of(gids, every=every, after=after, limit=limit)
    served = ServedArchive.of(archive, get_settings())
    publisher, resume, throttle = JobPublisher(served), ResumePoint(selection), Throttle(rate)
    with served.connect() as connection, resume.printed():
        count = partial(selection.count, connection, served.project, merged=False)
        if every and rate is None and needs_confirmation(messages := count(), yes=yes):
            _confirm(messages)
        existing = selection.existing(connection, served.project)
        with view.progress(count, shown=every) as advance:
            for batch in batches(existing, throttle.batch):
                throttle.wait(len(batch))
                publisher.publish([Index(gid) for gid in batch])
                resume.advance(batch)
                advance(len(batch))
    result = {"archive": served.project.prefix, "enqueued": resume.count, "last": resume.last}
    typer.echo(json.dumps(result) if as_json else f"index of {served.count_text(resume.count)} enqueued")


@cli.command()
def audit(
    gids: Gids = None,
    every: Every = False,
    fix: Annotated[bool, typer.Option("--fix", help="Enqueue the jobs that repair the findings.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --fix: delete images without asking.")] = False,
    archive: Archive = "",
    after: After = "",
    limit: Limit = None,
    rate: Rate = None,
    as_json: AsJson = False,
) -> None:
    """Compare the archive with the database; exit 1 on findings. --all includes releases that were merged."""
    if yes and not fix:
        raise typer.BadParameter("--yes goes with --fix")
    selection = GidSelection.of(gids, every=every, after=after, limit=limit)
    served = ServedArchive.of(archive, get_settings())
    resume, throttle = ResumePoint(selection), Throttle(rate)
    run = _Audit(served, fix=fix, yes=yes, as_json=as_json, must_exist=not every)
    with (
        served.connect() as connection,
        resume.printed(),
        view.progress(partial(selection.count, connection, served.project, merged=True), shown=every) as advance,
    ):
        for gid in selection.auditable(connection, served.project):
            throttle.wait()
            run.examine(gid, connection)
            resume.advance([gid])
            advance(1)
    run.delete_images()
    run.print_summary(resume.count)
    raise typer.Exit(1 if run.kinds or run.unread else 0)


@dataclass(slots=True)
class _Audit:
    """The findings of one audit, and the jobs that it published for them."""

    archive: ServedArchive
    fix: bool
    yes: bool
    as_json: bool
    #: Whether a gid that neither database nor archive has is an error: the user gave each gid.
    must_exist: bool
    publisher: JobPublisher = field(init=False)
    kinds: Counter[str] = field(default_factory=Counter)
    items: int = 0
    unread: int = 0
    #: Deletions of images, which need the user's confirmation.
    unconfirmed: list[Delete] = field(default_factory=list)
    json_findings: list[ArtFinding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.publisher = JobPublisher(self.archive)

    def examine(self, gid: str, connection: Connection) -> None:
        """Compare one item and print its findings; an item that cannot be read is reported and counted."""
        project, public = self.archive.project, self.archive.public
        try:
            entity = musicbrainz.entity(connection, project, gid)
            item = public.item(project.bucket(gid))
            if self.must_exist and entity is None and item is None:
                raise EntityNotFound(f"{project.entity} {gid}: neither MusicBrainz's database nor the archive has it")
            find_homes = partial(musicbrainz.homes, connection, project)
            findings = compare(project, gid, entity, item, public, find_homes=find_homes)
        except ArchiveUnavailable:
            raise
        except ArchiveError as error:
            self.unread += 1
            typer.echo(f"{gid}: not compared: {error}", err=True)
            return
        if not findings:
            return
        self.items += 1
        self.kinds.update(finding.kind for finding in findings)
        if self.as_json:
            self.json_findings += findings
        else:
            view.show(gid, findings, to_people=sys.stdout.isatty())
        if self.fix:
            fixes = [finding.fix for finding in findings if finding.fix is not None]
            images = [job for job in fixes if isinstance(job, Delete) and job.id is not None]
            if not self.yes:
                self.unconfirmed += images
                fixes = [job for job in fixes if job not in images]
            self.publisher.publish(fixes)

    def delete_images(self) -> None:
        """Publish the deletions of images if the user confirms them."""
        if not self.unconfirmed:
            return
        images = f"{len(self.unconfirmed):,} image{'' if len(self.unconfirmed) == 1 else 's'}"
        if not sys.stdin.isatty():
            typer.echo(f"{images} not deleted: standard input is not a terminal; confirm with --yes", err=True)
        elif typer.confirm(f"Delete {images} at the archive, which keeps an old version of each?", err=True):
            self.publisher.publish(self.unconfirmed)
            self.unconfirmed = []

    def print_summary(self, count: int) -> None:
        """Print the numbers of findings and jobs; `count` is the number of compared items."""
        if self.as_json:
            summary = {
                "archive": self.archive.project.prefix,
                "items": count,
                "unread": self.unread,
                "findings": [view.fields(finding) for finding in self.json_findings],
            }
            jobs = {"enqueued": dict(self.publisher.published), "not_deleted": len(self.unconfirmed)}
            typer.echo(json.dumps(summary | (jobs if self.fix else {})))
            return
        line = f"{self.archive.count_text(count)} compared: "
        line += f"{self.kinds.total():,} finding{'' if self.kinds.total() == 1 else 's'}"
        line += f" in {self.items:,} of them" if self.items and count > 1 else ""
        line += f"; {self.unread:,} could not be read" if self.unread else ""
        # Standard output has one line for each finding, for programs.
        typer.echo(line + (f"; {view.jobs(self.publisher.published)} enqueued" if self.fix else ""), err=True)


def needs_confirmation(messages: int, *, yes: bool) -> bool:
    """Return whether the user must confirm that this many messages are published at once."""
    return messages > _UNCONFIRMED and not yes


def _confirm(messages: int) -> None:
    """Ask the user; raises BadParameter without a terminal, and Exit for a no."""
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{messages:,} messages at once: confirm with --yes, or use --rate or --limit")
    if not typer.confirm(
        f"Enqueue {messages:,} messages at once? (--rate spreads them, --limit takes a part)", err=True
    ):
        raise typer.Exit(1)
