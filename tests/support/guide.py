"""Follows a guide whose commands need a situation of their own: runs its `perennial` lines in this process."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from typer.testing import CliRunner

from app.cli.main import cli
from tests.support.documents import Block, blocks, commands, matches, read


class Guide:
    """The console blocks of a page, each followed once, in their order."""

    def __init__(self, page: str, names: Mapping[str, str], *, only: str = "") -> None:
        """`names` are texts of the page and what stands for each of them in this test.

        With `only`, the blocks that contain this text are followed.
        """
        self._blocks: Iterator[Block] = iter(block for block in blocks(read(page), "console") if only in block.text)
        self._names = names

    def follow(self, *, exit_codes: Mapping[str, int] = {}) -> None:
        """Run the next block; each line prints what the page shows, and exits with 0 or the code given for it."""
        for command in commands(next(self._blocks)):
            line = command.line
            for theirs, ours in self._names.items():
                line = line.replace(theirs, ours)
            ran = CliRunner().invoke(cli, shlex.split(line)[1:])
            printed = ran.stdout
            for theirs, ours in self._names.items():
                printed = printed.replace(ours, theirs)
            assert ran.exit_code == exit_codes.get(command.line, 0), f"{line}: {ran.output}{ran.exception!r}"
            assert matches(command.output, printed), f"{line}\nprinted:\n{printed}\nexpected:\n{command.output}"

    def end(self) -> None:
        """Fail unless every block was followed."""
        assert next(self._blocks, None) is None, "the guide has more commands than its test"
