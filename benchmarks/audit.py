"""`python -m benchmarks.audit`: an audit of items that agree, at an archive that answers after 250 ms.

Prints requests per item, items a second, their share of jobs divided by latency, CPU time per item, and memory.
The database and the archive are the stand-ins of the tests; the archive is a process of its own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Annotated, Any

import psycopg
import typer

from app.coverart import musicbrainz
from app.coverart.project import COVER_ART, listing
from config.settings import ROOT
from tests.servers.archive import ArchiveServer
from tests.servers.musicbrainz import changes, database
from tests.servers.postgres import postgres
from tests.servers.site import Request


def measure(
    items: Annotated[int, typer.Option(help="Releases with an image each.")] = 2_000,
    jobs: Annotated[int, typer.Option(help="--jobs of the audit.")] = 16,
    latency: Annotated[float, typer.Option(help="Seconds until the archive answers.")] = 0.25,
) -> None:
    """Run one audit of all and print its figures."""
    with (
        postgres() as server,
        database.template(server) as name,
        database.copy_of(server, name) as url,
        psycopg.connect(url) as db,
    ):
        fill(db, items)
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks.audit", "serve", url, str(latency)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as archive:
            assert archive.stdin is not None
            assert archive.stdout is not None
            public_url = archive.stdout.readline().strip()
            seconds, cpu, memory = audit(jobs, {"MUSICBRAINZ_URL": url, "ARCHIVE_PUBLIC_URL": public_url})
            archive.stdin.close()
            requests = int(archive.stdout.readline())
    rate = items / seconds
    figures = {"items": items, "seconds": round(seconds, 1), "requests_per_item": requests / items}
    figures |= {"items_per_second": round(rate, 1), "share": round(rate / (jobs / latency), 3)}
    figures |= {"cpu_ms_per_item": round(1_000 * cpu / items, 1)}
    figures |= {"max_rss_mb": memory}
    typer.echo(json.dumps(figures))


def fill(db: psycopg.Connection[tuple[Any, ...]], items: int) -> None:
    """Add releases with an image each, without a message."""
    artist = changes.add_artist(db, "Various Artists")
    changes.add_release(db, "The first", artist)
    db.execute("SET LOCAL session_replication_role = replica")
    db.execute("INSERT INTO musicbrainz.edit (close_time) VALUES (now())")
    db.execute(
        "WITH made AS (INSERT INTO musicbrainz.release (name, artist_credit)"
        " SELECT 'Many', 1 FROM generate_series(1, %s) RETURNING id)"
        " INSERT INTO cover_art_archive.cover_art (id, release, edit, ordering, mime_type)"
        " SELECT 1000 + id, id, 1, 1, 'image/jpeg' FROM made",
        (items,),
    )
    db.commit()


def audit(jobs: int, environment: Mapping[str, str]) -> tuple[float, float, int]:
    """Run the command; return its seconds, CPU seconds and most memory in megabytes.

    The seconds are less those of a run of one item, which is the start of a process.
    """
    command = [sys.executable, "-m", "app.cli.main", "caa", "audit", "--all", "--jobs", str(jobs)]
    runs = []
    for more in (["--limit", "1"], []):
        began, cpu_before = time.monotonic(), os.times()
        subprocess.run([*command, *more], cwd=ROOT, env={**os.environ, **environment}, check=True)
        cpu = os.times()
        used = cpu.children_user + cpu.children_system - cpu_before.children_user - cpu_before.children_system
        runs.append((time.monotonic() - began, used))
    # The audits are the children that have ended; Linux counts kilobytes.
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1_024
    return runs[1][0] - runs[0][0], runs[1][1] - runs[0][1], memory


def serve(url: str, latency: float) -> None:
    """Serve the items of the database at `url` until standard input ends; print the URL, then the requests but one."""

    def wait(_: Request) -> None:
        threading.Event().wait(latency)

    with ArchiveServer() as archive, musicbrainz.connect(url) as connection:
        for gid in musicbrainz.gids_of("with_art", connection, COVER_ART):
            entity = musicbrainz.entity(connection, COVER_ART, gid)
            assert entity is not None
            bucket = COVER_ART.bucket(gid)
            archive.upload(bucket, "index.json", listing(COVER_ART, entity))
            archive.upload(bucket, COVER_ART.metadata_file(gid), b"<metadata/>", at=time.time())
            archive.upload(bucket, COVER_ART.image_file(gid, entity.images[0].id, "jpg"), b"picture")
        archive.before = wait
        typer.echo(archive.public_url)
        sys.stdin.read()
        typer.echo(len(archive.requests) - 1)


cli = typer.Typer(help=__doc__)
cli.command("measure")(measure)
cli.command("serve", hidden=True)(serve)

if __name__ == "__main__":
    cli()
