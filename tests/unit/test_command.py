"""The `perennial` command before any subcommand: version, help, what it imports, and how it explains errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from redis.exceptions import NoPermissionError, OutOfMemoryError, ReadOnlyError, RedisError
from typer.testing import CliRunner

from app.broker.errors import BrokerUnreachable
from app.cli.errors import explained
from app.cli.main import COMMANDS, LazyCommand, cli
from config.settings import ROOT
from tests.support.command import perennial

pytestmark = pytest.mark.unit


def test_an_empty_url_is_said_to_be_empty() -> None:
    assert "URL '': it is empty" in str(CliRunner().invoke(cli, ["index", ""]).exception)


def test_help_imports_no_library_that_only_subcommands_need() -> None:
    script = (
        "import sys\n"
        "from app.cli.main import cli\n"
        "try:\n    cli(['--help'])\n"
        "finally:\n    print([name for name in ('boto3', 'celery', 'fastapi', 'kombu', 'pydantic', 'redis', 'rich')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "Commands" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_help_of_a_subcommand_is_the_one_that_its_module_gives(command: LazyCommand) -> None:
    assert command.help == command.load().help, "copy the docstring's text to COMMANDS in app/cli/main.py"


def test_the_shell_completes_the_commands_below_a_subcommand() -> None:
    words = {"_PERENNIAL_COMPLETE": "complete_bash", "COMP_WORDS": "perennial dead re", "COMP_CWORD": "2"}
    done = CliRunner().invoke(cli, env=words, prog_name="perennial")
    assert done.output.split() == ["replay", "restore", "redirect"]


def test_a_misspelt_subcommand_is_wrong_usage_and_suggests_the_right_one() -> None:
    done = CliRunner().invoke(cli, ["serch"])
    assert done.exit_code == 2
    assert "'search'" in done.output


@pytest.mark.parametrize(
    ("arguments", "service", "variable"),
    [
        (("explain", "http://site.example/"), "Redis", "REDIS_URL"),
        (("index", "http://site.example/"), "RabbitMQ", "BROKER_URL"),
    ],
)
def test_without_services_one_line_says_how_to_start_them(
    arguments: tuple[str, ...], service: str, variable: str, tmp_path: Path
) -> None:
    done = perennial({**os.environ, "PERENNIAL_DATA_DIR": str(tmp_path)}, *arguments)
    start = "start it with `perennial services up`, or with all processes by `perennial up`"
    line = f"perennial: {service} is not running: {start}, or set {variable}\n"
    assert (done.returncode, done.stderr) == (1, line)


def test_a_given_broker_that_does_not_answer_is_named_without_its_password() -> None:
    done = perennial({**os.environ, "BROKER_URL": "amqp://guest:hush4711@127.0.0.1:1//"}, "dead", "list")
    assert done.returncode == 1
    assert done.stderr.startswith("perennial: RabbitMQ does not answer: ")
    assert done.stderr.endswith(". Check BROKER_URL\n")
    assert "hush4711" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_broker_that_refuses_the_account_is_not_said_to_be_away() -> None:
    refusal = BrokerUnreachable("(0, 0): (403) ACCESS_REFUSED - Login was refused")
    assert explained(refusal) == (
        1,
        [f"RabbitMQ refuses the account: {refusal}. Check user, password and permissions of BROKER_URL"],
    )


@pytest.mark.parametrize("kind", [OutOfMemoryError, ReadOnlyError, NoPermissionError])
def test_what_redis_refuses_is_one_line_and_no_traceback(kind: type[RedisError]) -> None:
    assert explained(kind("refused")) == (1, ["Redis refuses: refused. Check REDIS_URL, and the log of Redis"])


def test_a_terminal_that_cannot_show_a_character_gets_its_escape_and_no_traceback(tmp_path: Path) -> None:
    environment = {**os.environ, "STORE_URL": (tmp_path / "store").as_uri()}
    assert perennial(environment, "store", "create").returncode == 0
    assert perennial(environment, "site", "add", "site.example", "name=Żółw").returncode == 0
    # A forked process would not read how its output is encoded.
    command = [sys.executable, "-m", "app.cli.main", "site", "show", "site.example"]
    environment["PYTHONIOENCODING"] = "latin-1"
    shown = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="latin-1", check=False)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "name\t\\u017bó\\u0142w\n" in shown.stdout


@pytest.mark.parametrize("arguments", [("--version",), ("config", "show")])
def test_a_full_disk_behind_the_output_is_one_line_and_no_traceback(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "app.cli.main", *arguments]
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "perennial: the output cannot be written: No space left on device\n")


def test_what_is_left_in_the_buffer_is_written_before_the_exit_code_is_chosen() -> None:
    script = "import sys\nfrom app.cli import main\nmain.cli = lambda: sys.stdout.write('x')\nmain.main()"
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "perennial: the output cannot be written: No space left on device\n")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
    for words, expected in (("--version >&-", (0, "")), ("password <&- >&- 2>/dev/null", (2, ""))):
        closed = ["/bin/sh", "-c", f"{sys.executable} -m app.cli.main {words}"]
        done = subprocess.run(closed, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stderr) == expected


def test_an_export_that_fails_leaves_no_file_that_could_pass_for_one(tmp_path: Path) -> None:
    file = tmp_path / "letters.jsonl"
    done = perennial({**os.environ, "BROKER_URL": "amqp://127.0.0.1:1//"}, "dead", "export", "--output", str(file))
    assert (done.returncode, file.exists()) == (1, False)
    file.write_text("kept")
    done = perennial({**os.environ, "BROKER_URL": "amqp://127.0.0.1:1//"}, "dead", "export", "--output", str(file))
    assert (done.returncode, done.stderr) == (1, f"perennial: {file}: File exists\n")
    assert file.read_text() == "kept"


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_the_password_of_a_line_is_hashed_without_the_end_of_the_line(end: bytes) -> None:
    result = CliRunner().invoke(cli, ["password"], input=b"correct horse" + end)
    assert PasswordHasher().verify(result.stdout.strip(), "correct horse")


def test_a_password_that_is_not_utf_8_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli, ["password"], input=b"correct horse\xff\n")
    assert (result.exit_code, "not UTF-8" in result.stderr) == (2, True)
