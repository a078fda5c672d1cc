"""When a crashed process is restarted, how processes are described, and which of them the settings need."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from app.coverart.project import COVER_ART, EVENT_ART, settings_of
from app.errors import ServicesError
from app.private_services import rabbitmq
from app.private_services.state import ServicesState
from app.processes.process_states import ProcessId, ProcessState, UpState, identify, load, save
from app.processes.procfile import left_out, require_free_addresses
from app.processes.supervisor import RECOVERED, RESTARTS, ProcessSupervisor, _Child
from config.settings import Settings
from tests.support.command import as_process_with, invoked

pytestmark = pytest.mark.unit


def test_each_restart_waits_twice_as_long_the_sixth_crash_is_the_last_and_one_after_a_recovery_is_a_first_one(
    tmp_path: Path,
) -> None:
    state = ServicesState("node", "password", ports={"amqp": 1, "management": 1, "dist": 1, "epmd": 1})
    servers = [rabbitmq.broker(tmp_path, state, script=tmp_path), rabbitmq.port_mapper(tmp_path, state)]
    # A RabbitMQ that hangs at each start stays down, too. One that runs gets a quarter of the time; before and after a
    # start it is stopped, and killed within five seconds.
    seconds = sum(1.25 * each.start_timeout + 2 * (each.stop_timeout + 5) for each in servers)
    watcher = _Child("rabbitmq", "python -m app.private_services rabbitmq", "")
    waits = list[float | None]()
    for ran in (*[seconds] * (RESTARTS + 1), RECOVERED):
        watcher.note_crash(watcher.started_at + ran)
        waits.append(watcher.restart_at and watcher.restart_at - ran)
    assert waits == [1, 2, 4, 8, 16, None, 1]


def test_a_process_that_cannot_be_started_has_crashed_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start: Any = subprocess.Popen
    states: list[Sequence[ProcessState]] = []

    def refuse(command: str, **options: Any) -> Any:
        if "refused" in command:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return start(command, **options)

    monkeypatch.setattr("app.processes.supervisor.FIRST_WAIT", 0.001)
    monkeypatch.setattr("app.processes.supervisor.signal.signal", lambda *_: None)
    monkeypatch.setattr("app.processes.supervisor.subprocess.Popen", refuse)
    commands = {"one": "sh -c 'exit 3'", "two": "refused"}
    assert ProcessSupervisor(commands, os.environ, changed=states.append).run() == 3
    assert [(each.name, each.state, each.crashes) for each in states[-1]] == [("one", "down", 6), ("two", "down", 6)]
    assert "two not started: [Errno 11] Resource temporarily unavailable; restart 1 of 5" in capsys.readouterr().out


def test_states_are_read_as_they_were_saved_and_a_damaged_file_is_no_state(tmp_path: Path) -> None:
    state = UpState(ProcessId(1, 2), (ProcessState("a", "running", ProcessId(3, 4), -9, 1), ProcessState("b", "down")))
    assert load(tmp_path) == UpState(None)
    save(tmp_path, state)
    assert load(tmp_path) == state
    (tmp_path / "up.json").write_text('{"processes": [{"name": "a"}]}')
    assert load(tmp_path) == UpState(None)


def test_down_without_up_is_no_error(tmp_path: Path) -> None:
    with as_process_with({"PERENNIAL_DATA_DIR": str(tmp_path)}):
        assert invoked("down") == "services stopped\n"


def test_status_without_a_domain_shows_the_processes_and_fails_for_one_that_is_down(tmp_path: Path) -> None:
    running = ProcessState("web", "running", ProcessId(os.getpid(), 1))
    down = ProcessState("worker", "down", None, 1, 6)
    with as_process_with({"PERENNIAL_DATA_DIR": str(tmp_path)}):
        assert invoked("status", exit_code=1) == "perennial up does not run here\n"
        save(tmp_path, UpState(identify(os.getpid()), (running,)))
        invoked("status")
        save(tmp_path, UpState(identify(os.getpid()), (running, down)))
        shown = invoked("status", exit_code=1)
    assert shown.splitlines() == [
        f"web          running    pid {os.getpid()}",
        "worker       down       6 crashes in a row, exit code 1",
    ]


DATABASE = SecretStr("postgresql://127.0.0.1/musicbrainz_db")


@pytest.mark.parametrize("variable", ["web_address", "flower_address"])
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_an_address_at_which_another_program_listens_is_refused_by_the_name_of_its_setting(
    variable: str, host: str
) -> None:
    family = socket.AF_INET6 if "[" in host else socket.AF_INET
    with socket.create_server((host.strip("[]"), 0), family=family) as other:
        address = f"{host}:{other.getsockname()[1]}"
        free: dict[str, Any] = {"web_address": "127.0.0.1:0", "flower_address": "127.0.0.1:0"}
        with pytest.raises(
            ServicesError, match=f"^{variable.upper()}={re.escape(address)} cannot be served: .* in use"
        ):
            require_free_addresses(Settings(**free | {variable: address}))
        require_free_addresses(Settings(**free))


def test_cover_art_event_art_and_the_event_reader_run_only_where_they_have_work() -> None:
    assert left_out(Settings()) == {"coverart", "eventart", "eventreader"}
    assert left_out(Settings(musicbrainz_url=DATABASE, event_art_exchange="")) == {"eventart", "eventreader"}
    assert left_out(Settings(musicbrainz_url=DATABASE)) == {"eventreader"}
    assert left_out(Settings(musicbrainz_url=DATABASE, art_event_queue_url=DATABASE)) == set()
    assert left_out(Settings(art_event_queue_url=DATABASE)) == {"coverart", "eventart", "eventreader"}


def test_event_art_uses_its_own_keys_or_else_those_of_cover_art() -> None:
    given = Settings(archive_keys=SecretStr("a:b"))
    own = given.model_copy(update={"event_art_keys": SecretStr("c:d")})
    assert settings_of(EVENT_ART, given).archive_keys.get_secret_value() == "a:b"
    assert settings_of(EVENT_ART, own).archive_keys.get_secret_value() == "c:d"
    assert settings_of(COVER_ART, own).archive_keys.get_secret_value() == "a:b"
