"""`perennial dead` as an operator types it, with a real broker: in this process, or on a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.broker.publishing import Publisher
from app.broker.worker.failures import carry_out_one
from app.cli.main import cli
from app.operations.audit import AuditLog
from app.storage.open import store_of
from app.topology.queues import DEAD_SET
from app.topology.retry_policies import site_policy
from config.settings import ROOT, Settings
from tests.support.broker import Broker
from tests.support.command import as_process_with
from tests.support.dead import failed_delivery, failure

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("declared")]


def dead_letter(
    settings: Settings, publisher: Publisher, *bodies: Mapping[str, Any], line: int = 7, **fields: Any
) -> None:
    """Dead-letter messages of `site.index` as a worker does."""
    for body in bodies:
        delivery = failed_delivery(body, "site.index")
        decision = site_policy(settings).decide(delivery, failure(line, permanent=True, **fields))
        carry_out_one(decision, delivery, publisher=publisher)


def perennial(environment: Mapping[str, str], *arguments: str, exit_status: int = 0) -> str:
    """Run `perennial dead ...` in this process; return what it prints, and the error that it ends with."""
    with as_process_with({**environment, "COLUMNS": "100"}):
        ran = CliRunner().invoke(cli, ["dead", *arguments])
    assert ran.exit_code == exit_status, ran.output
    return ran.output + (str(ran.exception) if exit_status == 1 else "")


def on_a_terminal(environment: Mapping[str, str], *arguments: str, width: int, typed: str = "") -> list[str]:
    """Run `perennial dead ...` on a terminal of this width; return the lines that it shows."""
    ours, its = pty.openpty()
    shown = {**environment, "COLUMNS": str(width), "TERM": "dumb", "NO_COLOR": "1"}
    words = [sys.executable, "-m", "app.cli.main", "dead", *arguments]
    with subprocess.Popen(words, cwd=ROOT, env=shown, stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        os.write(ours, typed.encode())
        output = b""
        while True:
            try:
                output += os.read(ours, 65_536)
            except OSError:
                break
        process.wait()
    os.close(ours)
    return output.decode().replace("\r", "").splitlines()


def test_dead_letters_are_listed_shown_grouped_and_filtered(
    broker: Broker, settings: Settings, environment: dict[str, str], publisher: Publisher
) -> None:
    pages = [{"type": "index", "url": f"https://a.gov/{number}", "domain": "a.gov"} for number in range(60)]
    dead_letter(settings, publisher, *pages, task="site.index", message="\x1b[31m[red]\x07")
    dead_letter(settings, publisher, {"type": "pack_full", "host": "B.gov"}, line=9)
    broker.post(b'{"type": "crawl", "url": "https://c.gov/x"}', key="misspelt")

    rows = [line.split("\t") for line in perennial(environment, "list").splitlines()]
    assert len(rows) == 62
    assert [row[7:9] for row in rows[-3:]] == [
        ["site.index", "a.gov"],
        ["site.pack_full", "b.gov"],
        ["site.crawl", "c.gov"],
    ]
    assert len(json.loads(perennial(environment, "list", "--json", "--limit", "7"))) == 7
    for filters, count in (
        (["--domain", "A.gov"], 60),
        (["--task", "site.crawl"], 1),
        (["--reason", "unroutable", "--set", DEAD_SET], 1),
        (["--exception", "KeyError", "--before", "1d"], 61),
        (["--after", "1d"], 0),
    ):
        assert len(json.loads(perennial(environment, "list", "--json", *filters))) == count, filters

    group_letters = json.loads(perennial(environment, "list", "--groups", "--json"))
    assert [(group["count"], group["location"]) for group in group_letters[:2]] == [
        (60, "shop/till.py:7 in sell"),
        (1, "shop/till.py:9 in sell"),
    ]
    assert len(json.loads(perennial(environment, "list", "--group", group_letters[0]["group"], "--json"))) == 60

    for act in (["replay"], ["replay", "--dry-run"], ["drop"], ["drop", "--dry-run"], ["export"]):
        refused = perennial(environment, *act, "--group", "0badkey", exit_status=1)
        assert "no dead letter has the group 0badkey" in refused, act

    page = perennial(environment, "show", rows[0][0][:8]).splitlines()
    assert page[0] == f"id:              {rows[0][0]}"
    assert "reason:          exception" in page
    assert "group:           " + group_letters[0]["group"] in page
    assert '    "domain": "a.gov"' in page
    assert page[-1] == "  KeyError: 1"
    details = json.loads(perennial(environment, "show", rows[0][0], "--json"))
    assert details["arguments"] == pages[0]
    assert details["traceback"].endswith("KeyError: 1\n")


def test_a_list_fits_its_terminal_and_prints_no_escape_sequence_of_a_message(
    broker: Broker, settings: Settings, environment: dict[str, str], publisher: Publisher
) -> None:
    body = {"type": "index", "url": "https://a.gov/", "domain": "a.gov"}
    dead_letter(settings, publisher, *[body] * 55, message="\x1b[31m[red]" + "x" * 300)
    lines = on_a_terminal(environment, "list", width=90)
    assert len(lines) == 52
    assert 80 < max(map(len, lines)) <= 90
    assert lines[-1] == "50 of 55 shown; --limit shows more, --groups counts causes."
    assert "\x1b" not in "".join(lines)
    assert "[31m[red]xx" in lines[1]
    assert "…" in lines[1]


def test_a_drop_is_confirmed_and_can_be_restored_and_tidy_drops_what_the_settings_do_not_keep(
    broker: Broker, settings: Settings, environment: dict[str, str], publisher: Publisher, tmp_path: Path
) -> None:
    assert "The dead sets are empty." in perennial(environment, "list")
    dead_letter(settings, publisher, *({"type": "index", "domain": f"{name}.gov"} for name in "abc"))
    assert "confirm with --yes" in perennial(environment, "drop", "--all", exit_status=2)
    perennial(environment, "replay", "--all", "--dry-run")
    question = on_a_terminal(environment, "drop", "--all", width=80, typed="n\n")
    assert any("Drop 3 of site.dead? They are exported first [y/N]:" in line for line in question)
    assert broker.depth(DEAD_SET) == 3
    dropped = json.loads(perennial(environment, "drop", "--all", "--domain", "a.gov", "--yes", "--json"))
    assert (len(dropped["dropped"]), broker.depth(DEAD_SET)) == (1, 2)
    assert perennial(environment, "restore", dropped["file"]) == "1 restored\n"
    assert broker.depth(DEAD_SET) == 3
    file = tmp_path / "all.jsonl"
    perennial(environment, "export", "--output", str(file))
    assert sorted(file.read_text().splitlines()) == sorted(perennial(environment, "export").splitlines())
    assert len(file.read_text().splitlines()) == 3
    audit = [json.loads(line) for line in (settings.data_dir / "dead" / "audit.jsonl").read_text().splitlines()]
    assert [(line["act"], line["outcome"]) for line in audit] == [("drop", "exported"), ("restore", "restored")]
    assert perennial(environment, "tidy") == "0 dropped; in shards: none\n"
    tidied = json.loads(perennial({**environment, "DEAD_MAX_LETTERS": "2"}, "tidy", "--json"))
    assert (len(tidied["dropped"]), broker.depth(DEAD_SET)) == (1, 2)


def test_letters_are_edited_redirected_and_noted_and_each_act_is_audited(
    broker: Broker, settings: Settings, environment: dict[str, str], publisher: Publisher
) -> None:
    dead_letter(settings, publisher, {"type": "index", "url": "htps://a.gov/"}, {"type": "crawl"}, {"type": "page"})
    first, second, third = (row["id"] for row in json.loads(perennial(environment, "list", "--json")))
    assert "not JSON" in perennial(environment, "edit", first, "--arguments", "{", exit_status=1)
    assert "Nothing was changed." in "".join(on_a_terminal({**environment, "EDITOR": "true"}, "edit", first, width=100))
    body = {"type": "index", "url": "https://a.gov/"}
    assert perennial(environment, "edit", first[:8], "--arguments", json.dumps(body), "--why", "a wrong scheme") == (
        "1 replayed\n"
    )
    assert json.loads(broker.peek("site.index")[0].body) == body
    assert "expected one of" in perennial(environment, "redirect", second, "--queue", "elsewhere", exit_status=1)
    assert "no queue for redirections" in perennial(
        environment, "redirect", second, "--exchange", "site", "--key", "x", exit_status=1
    )
    assert perennial(environment, "redirect", second, third, "--queue", "site.crawl") == "2 redirected\n"
    assert broker.depths([DEAD_SET, "site.index", "site.crawl"]) == [0, 1, 2]
    dead_letter(settings, publisher, body)
    [noted] = json.loads(perennial(environment, "list", "--json"))
    assert perennial(environment, "note", noted["id"][:8], "ask the owner") == f"{noted['id']}: 1 notes\n"
    assert perennial(environment, "replay", "--all", "--reason", "exception", "--why", "repaired") == "1 replayed\n"
    entries = [(entry.act, entry.subject, entry.why, entry.result) for entry in AuditLog(store_of(settings)).entries()]
    assert entries == [
        ("replay letters", "reason exception", "repaired", "1 replayed"),
        ("note", noted["id"], "", "ask the owner"),
        ("redirect letters", f"{second}, {third}", "", "2 redirected"),
        ("edit letters", first, "a wrong scheme", "1 edited and replayed"),
    ]
