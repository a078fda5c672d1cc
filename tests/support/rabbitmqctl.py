"""`rabbitmqctl` on a private node."""

from __future__ import annotations

import subprocess

from app.private_services import install, rabbitmq, state
from config.settings import Settings


def rabbitmqctl(settings: Settings, *arguments: str) -> None:
    """Run `rabbitmqctl` on the private node of these settings."""
    folder, script = settings.services_file.parent, install.rabbitmq_script()
    assert script is not None, "rabbitmq-server is not installed"
    node = rabbitmq.broker(folder, state.load(folder), script=script)
    command = [str(script.with_name("rabbitmqctl")), "--quiet", *arguments]
    done = subprocess.run(command, env=dict(node.env), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(arguments)}: {done.stdout}{done.stderr}"
