"""An operator's process killed between every two operations: no message is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from app.broker.dead_letters.exports import read_export
from app.broker.dead_letters.sets import DeadSets
from app.broker.headers import REPLAY_HISTORY
from app.broker.publishing import Publisher
from config.settings import ROOT
from tests.support.broker import Broker
from tests.support.dead import bury, dead_sets, declare, died

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("act", "step"),
    [("replay", 2), ("drop", 2), *(pytest.param(act, 1, marks=pytest.mark.long) for act in ("replay", "drop"))],
)
@pytest.mark.timeout(400)
def test_killed_before_any_operation_nothing_is_missing_and_nothing_left_without_a_line(
    broker_url: str, tmp_path: Path, act: str, step: int
) -> None:
    declare(broker_url)
    publisher, broker = Publisher(broker_url, timeout=60), Broker(broker_url)
    dead = dead_sets(broker_url, publisher)
    command = [sys.executable, "-m", "tests.support.dead_killing"]
    killed = twice = 0
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as operators:
        assert operators.stdin is not None
        assert operators.stdout is not None
        for operation in count(1, step):
            ids = bury(publisher, [died(number) for number in range(3)])
            file = tmp_path / f"{operation}.jsonl"
            print(json.dumps([act, broker_url, operation, str(file)]), file=operators.stdin, flush=True)
            ended = json.loads(operators.stdout.readline())
            assert not ended["failed"]
            twice += found_everywhere(ids, dead, broker, file)
            if not ended["killed"]:
                break
            killed += 1
        operators.stdin.close()
    publisher.close()
    assert killed > 30 // step
    # What was safe elsewhere when its operator died is in both places.
    assert twice >= 1


def found_everywhere(ids: list[str], dead: DeadSets, broker: Broker, file: Path) -> int:
    """Assert that each message is somewhere, and noted if it left; return how many are in two places; tidy up."""
    left = [letter.id for letter in dead.letters()]
    sent = [message.headers[REPLAY_HISTORY][0] for message in broker.take("mail")]
    exported = [letter.id for letter in read_export(file)] if file.exists() else []
    audit = file.with_suffix(".audit")
    noted = [json.loads(line)["id"] for line in audit.read_text().splitlines()] if audit.exists() else []
    assert set(left) | set(sent) | set(exported) == set(ids)
    assert set(ids) - set(left) <= set(noted)
    assert left == [each for each in ids if each in left]
    broker.take("post.dead")
    return len(set(left) & {*sent, *exported})
