"""A replay or drop that is killed before each of its operations: no letter is lost."""

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
from tests.support.dead import dead_letter, dead_sets, declare, failed_delivery

pytestmark = pytest.mark.integration


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "step"),
    [("replay", 2), ("drop", 2), *(pytest.param(act, 1, marks=pytest.mark.long) for act in ("replay", "drop"))],
)
@pytest.mark.timeout(400)
def test_after_a_kill_before_any_operation_no_letter_is_lost_and_each_removal_is_audited(
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
            ids = dead_letter(publisher, [failed_delivery(number) for number in range(3)])
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
    # A letter that was safe elsewhere at the kill, and not yet removed, is in both places.
    assert twice >= 1


def found_everywhere(ids: list[str], dead: DeadSets, broker: Broker, file: Path) -> int:
    """Assert that each letter is somewhere, and audited if it left; empty the queues; return how many are twice."""
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
