"""Erlang expressions on a private RabbitMQ node, where `rabbitmqctl` would start a second Erlang for seconds."""

from __future__ import annotations

import subprocess
from pathlib import Path

from app.private_services import state
from config.settings import Settings
from tests.support.kill import service_processes


def evaluate(settings: Settings, expression: str) -> None:
    """Evaluate an expression on the private node of these settings; raises AssertionError if it fails there."""
    folder = settings.services_file.parent
    services = state.load(folder)
    (node,) = service_processes("beam.smp", folder / "rabbitmq")
    cookie = (folder / "rabbitmq" / ".erlang.cookie").read_text()
    done = subprocess.run(
        [Path(node.exe()).with_name("erl_call"), "-sname", services.node, "-c", cookie, "-e"],
        input=f"{expression}.\n",
        env={"ERL_EPMD_PORT": str(services.ports["epmd"]), "HOME": str(folder / "rabbitmq")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.startswith("{ok,"), f"{expression}: {done.stdout}{done.stderr}"


def set_memory_limit(settings: Settings, limit: str) -> None:
    """Set the use of memory above which the node accepts no messages, such as `512MB`."""
    evaluate(settings, f'ok = vm_memory_monitor:set_vm_memory_high_watermark({{absolute, "{limit}"}})')


def set_disk_limit(settings: Settings, limit: str) -> None:
    """Set the free space on the disk below which the node accepts no messages, such as `200MB`."""
    evaluate(settings, f'ok = rabbit_disk_monitor:set_disk_free_limit("{limit}")')
