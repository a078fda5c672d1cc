"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only report what would be done.")]
Domain = Annotated[str, typer.Argument(metavar="DOMAIN", help="The site's domain, or a URL of it.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, for the audit.")]
