"""A container that boots systemd, as a machine of its own: it runs the units that `perennial systemd` writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.containers.engine import SOURCES, Engine
from tests.support.waiting import eventually

IMAGE, NAME = "localhost/perennial-machine", "perennial-machine"

#: For a machine whose control groups have version 1, which systemd 257 uses only with both options.
_OLD_GROUPS = "systemd.unified_cgroup_hierarchy=0 SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"

#: Goes before each command: an operator has the settings and programs of the units.
_OPERATOR = """\
set -a; . /etc/perennial/perennial.env; PERENNIAL_DATA_DIR=/var/lib/perennial PATH=/venv/bin:$PATH; set +a
"""


class Machine:
    """A running machine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(self, script: str) -> str:
        """Run a shell script as root, and return what it prints."""
        return self._engine.podman("exec", NAME, "sh", "-ec", _OPERATOR + script)

    def states(self, pattern: str) -> dict[str, str]:
        """Return the states of units by their names, such as `running` or `dead`."""
        listed = json.loads(self.run(f"systemctl list-units --all --output=json '{pattern}'"))
        return {each["unit"]: each["sub"] for each in listed}


@contextmanager
def machine(engine: Engine) -> Iterator[Machine]:
    """Yield a machine with RabbitMQ, Redis and the programs of the image, and without any unit of Perennial."""
    engine.build(SOURCES, "--target=machine", f"--tag={IMAGE}")
    options = ["--systemd=always", "--cap-add=SYS_ADMIN"]
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        options.append(f"--env=SYSTEMD_PROC_CMDLINE={_OLD_GROUPS}")
    engine.podman("run", "--detach", "--replace", f"--name={NAME}", *options, IMAGE)
    made = Machine(engine)
    services = {"rabbitmq-server.service": "running", "redis-server.service": "running"}
    try:
        eventually(lambda: _answers(engine), "systemd answers", seconds=120)
        eventually(lambda: made.states("r*-server.service") == services, "the services run", seconds=300, every=1)
        yield made
    finally:
        engine.podman("rm", "--force", "--time=1", NAME)


def _answers(engine: Engine) -> bool:
    try:
        engine.podman("exec", NAME, "systemctl", "list-units")
    except AssertionError:
        return False
    return True


def check_units(made: Machine) -> list[str]:
    """Write and start the units, crawl a site while the worker is killed, search it, and stop all; return the units."""
    made.run("perennial systemd && systemctl daemon-reload")
    made.run(
        "install --directory --owner=perennial $PERENNIAL_DATA_DIR; runuser -u perennial -- perennial store create"
    )
    made.run("perennial topology apply && systemctl enable --now perennial.target")
    eventually(lambda: set(made.states("perennial-*").values()) == {"running"}, "all run", seconds=120, every=1)
    units = sorted(made.states("perennial-*"))
    made.run("systemd-run --unit=site --property=WorkingDirectory=/site python3 -m http.server 8080 --bind 127.0.0.1")
    made.run("systemctl kill --signal=KILL perennial-worker && perennial index --crawl http://127.0.0.1:8080/")
    search = "perennial search 127.0.0.1:8080 amber || true"
    eventually(lambda: "All about amber" in made.run(search), "the page is found", seconds=120, every=1)
    assert made.run("systemctl show --property=NRestarts --value perennial-worker").strip() == "1"
    made.run("perennial doctor")
    made.run("systemctl stop perennial.target")
    eventually(lambda: set(made.states("perennial-*").values()) <= {"dead"}, "all have ended", seconds=120, every=1)
    lines = made.run("journalctl --output=cat --unit='perennial-*'").splitlines()
    assert [line for line in lines if "Failed with result" in line] == [
        "perennial-worker.service: Failed with result 'signal'."
    ]
    return units
