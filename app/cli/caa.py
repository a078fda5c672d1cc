"""`perennial caa`: write items of the Cover Art Archive anew, and compare them with MusicBrainz's database."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import typer

from app.cli import caa_view as view
from app.cli.caa_work import Pace, Place, Scope, Sender, Way, batches
from app.coverart import musicbrainz
from app.coverart.audit import ArtFinding
from app.coverart.audit import audit as compare
from app.coverart.jobs import Delete, Index
from app.coverart.musicbrainz import Connection
from app.errors import ArchiveError, ArchiveUnavailable, EntityNotFound
from config.settings import get_settings

cli = typer.Typer(no_args_is_help=True, help="Cover art and event art: what the archive holds, and what it should.")

#: Messages that go into the queue at once without a question.
_FLOOD = 10_000

Gids = Annotated[list[str] | None, typer.Argument(metavar="GID", help="Releases, or events of event art.")]
Every = Annotated[bool, typer.Option("--all", help="Every one that has images, in the order of the gids.")]
Archive = Annotated[str, typer.Option(metavar="EXCHANGE", help="Which archive, where more than one is served.")]
After = Annotated[str, typer.Option(metavar="GID", help="With --all: only those behind this one.")]
Limit = Annotated[int | None, typer.Option(min=1, help="With --all: so many at most.")]
Rate = Annotated[float | None, typer.Option(min=0.001, help="So many a second at most.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@cli.command()
def reindex(
    gids: Gids = None,
    every: Every = False,
    archive: Archive = "",
    after: After = "",
    limit: Limit = None,
    rate: Rate = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask, however many they are.")] = False,
    as_json: AsJson = False,
) -> None:
    """Enqueue `index` of releases: their listing and metadata are written anew."""
    scope = Scope.of(gids, every=every, after=after, limit=limit)
    place = Place.named(archive, get_settings())
    sender, way, pace = Sender(place), Way(scope), Pace(rate)
    with place.connect() as connection, way.told():
        if every and rate is None and not yes:
            _ask_before_a_flood(scope.count(connection, place.project, merged=False))
        chosen = scope.existing(connection, place.project)
        with view.progress(partial(scope.count, connection, place.project, merged=False), shown=every) as advance:
            for batch in batches(chosen, pace.batch):
                pace.wait(len(batch))
                sender.post([Index(gid) for gid in batch])
                way.went(batch)
                advance(len(batch))
    result = {"archive": place.project.prefix, "enqueued": way.count, "last": way.last}
    typer.echo(json.dumps(result) if as_json else f"index of {place.things(way.count)} enqueued")


@cli.command()
def audit(
    gids: Gids = None,
    every: Every = False,
    fix: Annotated[bool, typer.Option("--fix", help="Enqueue the jobs that mend what is found.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --fix: delete images without asking.")] = False,
    archive: Archive = "",
    after: After = "",
    limit: Limit = None,
    rate: Rate = None,
    as_json: AsJson = False,
) -> None:
    """Compare what the archive holds with the database; exit 1 where anything was found. --all: merged ones, too."""
    if yes and not fix:
        raise typer.BadParameter("--yes goes with --fix")
    scope = Scope.of(gids, every=every, after=after, limit=limit)
    place = Place.named(archive, get_settings())
    way, pace, found = Way(scope), Pace(rate), _Found(place, fix=fix, yes=yes, as_json=as_json, named=not every)
    with (
        place.connect() as connection,
        way.told(),
        view.progress(partial(scope.count, connection, place.project, merged=True), shown=every) as advance,
    ):
        for gid in scope.auditable(connection, place.project):
            pace.wait()
            found.look(gid, connection)
            way.went([gid])
            advance(1)
    found.delete_images()
    found.sum_up(way.count)
    raise typer.Exit(1 if found.kinds or found.unread else 0)


@dataclass(slots=True)
class _Found:
    """What an audit found so far, and what was done about it."""

    place: Place
    fix: bool
    yes: bool
    as_json: bool
    #: Whether somebody named each gid: then one that there is not is an error.
    named: bool
    sender: Sender = field(init=False)
    kinds: Counter[str] = field(default_factory=Counter)
    items: int = 0
    unread: int = 0
    #: Deletions of images that somebody has to agree to.
    held: list[Delete] = field(default_factory=list)
    shown: list[ArtFinding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sender = Sender(self.place)

    def look(self, gid: str, connection: Connection) -> None:
        """Look at one item; one that cannot be read is told of, and the next one may be."""
        try:
            findings = _findings(self.place, gid, connection, named=self.named)
        except ArchiveUnavailable:
            raise
        except ArchiveError as error:
            self.unread += 1
            typer.echo(f"{gid}: not looked at: {error}", err=True)
            return
        if not findings:
            return
        self.items += 1
        self.kinds.update(finding.kind for finding in findings)
        if self.as_json:
            self.shown += findings
        else:
            view.show(gid, findings, to_people=sys.stdout.isatty())
        if self.fix:
            self._mend(findings)

    def delete_images(self) -> None:
        """Enqueue the deletions of images that were held back, if somebody agrees."""
        if not self.held:
            return
        images = f"{len(self.held):,} image{'' if len(self.held) == 1 else 's'}"
        if not sys.stdin.isatty():
            typer.echo(f"{images} not deleted, since nobody is there to ask: say --yes", err=True)
        elif typer.confirm(f"Delete {images} at the archive, which keeps an old version of each?", err=True):
            self.sender.post(self.held)
            self.held = []

    def sum_up(self, count: int) -> None:
        """Print what was found and enqueued."""
        if self.as_json:
            told = {
                "archive": self.place.project.prefix,
                "items": count,
                "unread": self.unread,
                "findings": [view.fields(finding) for finding in self.shown],
            }
            enqueued = {"enqueued": dict(self.sender.sent), "not_deleted": len(self.held)} if self.fix else {}
            typer.echo(json.dumps(told | enqueued))
            return
        found = f"{self.kinds.total():,} finding{'' if self.kinds.total() == 1 else 's'}"
        line = f"{self.place.things(count)} looked at: {found}"
        line += f" in {self.items:,} of them" if self.items and count > 1 else ""
        line += f"; {self.unread:,} could not be read" if self.unread else ""
        # Of lines for a program, this is none.
        typer.echo(line + (f"; {view.jobs(self.sender.sent)} enqueued" if self.fix else ""), err=True)

    def _mend(self, findings: tuple[ArtFinding, ...]) -> None:
        fixes = [finding.fix for finding in findings if finding.fix is not None]
        images = [job for job in fixes if isinstance(job, Delete) and job.id is not None]
        if not self.yes:
            self.held += images
            fixes = [job for job in fixes if job not in images]
        self.sender.post(fixes)


def _findings(place: Place, gid: str, connection: Connection, *, named: bool) -> tuple[ArtFinding, ...]:
    project, holdings = place.project, place.holdings
    entity = musicbrainz.entity(connection, project, gid)
    item = holdings.item(project.bucket(gid))
    if named and entity is None and item is None:
        raise EntityNotFound(f"{project.entity} {gid}: neither MusicBrainz's database nor the archive has it")
    return compare(project, gid, entity, item, holdings, find_homes=partial(musicbrainz.homes, connection, project))


def _ask_before_a_flood(count: int) -> None:
    if count <= _FLOOD:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{count:,} messages at once: say --yes, or --rate or --limit")
    if not typer.confirm(f"Enqueue {count:,} messages at once? (--rate spreads them, --limit takes a part)", err=True):
        raise typer.Exit(1)
