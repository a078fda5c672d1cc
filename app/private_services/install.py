"""Install RabbitMQ and Redis from the distribution's packages, without starting a system service."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from app.errors import ServicesError
from app.private_services.process_states import ProcessId, identify, is_running
from app.private_services.service import wait_until

log = logging.getLogger(__name__)

#: What a user can do instead, for error messages.
ALTERNATIVES = "Install it yourself, set BROKER_URL and REDIS_URL to servers that you have, or run `docker compose up`."

#: The file that invoke-rc.d(8) runs before it starts a service; exit code 101 forbids the start.
POLICY = Path("/usr/sbin/policy-rc.d")

#: The line of our policy that names the process which wrote it, before its id and start time.
_SIGNATURE = "# written by an installation of Perennial, by process "
#: Seconds to wait for an installation of another checkout.
_OTHER_INSTALLATION = 600.0

_SCRIPTS = ("lib/rabbitmq_server-*/sbin/rabbitmq-server", "bin/rabbitmq-server")
_QUIET = ("env", "DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_SUSPEND=1", "NEEDRESTART_MODE=l")
_APT = (*_QUIET, "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300")


def rabbitmq_script(root: Path = Path("/usr/lib/rabbitmq")) -> Path | None:
    """Return the real rabbitmq-server script, or None. The one in /usr/sbin is a wrapper that changes the user."""
    if not (shutil.which("erl") and shutil.which("epmd")):
        return None
    candidates = [path for pattern in _SCRIPTS for path in sorted(root.glob(pattern), reverse=True)]
    on_path = shutil.which("rabbitmq-server")
    if on_path and Path(on_path).resolve().name == "rabbitmq-server":
        candidates.append(Path(on_path).resolve())
    real = (path for path in candidates if (path.parent / "rabbitmq-env").exists())
    return next(real, None)


def missing(*, broker: bool, redis: bool) -> list[str]:
    """Return the packages whose programs are needed and not installed."""
    packages = ["rabbitmq-server"] if broker and rabbitmq_script() is None else []
    return packages + (["redis-server"] if redis and shutil.which("redis-server") is None else [])


def ensure(*, broker: bool, redis: bool) -> None:
    """Install the packages that are needed and missing; raises ServicesError, which names the alternatives."""
    remove_leftover_policy(POLICY)
    packages = missing(broker=broker, redis=redis)
    if not packages:
        return
    add_packages(packages)
    if missing(broker=broker, redis=redis):
        raise ServicesError(f"{' and '.join(packages)}: installed, but its program was not found. {ALTERNATIVES}")


def add_packages(packages: Sequence[str]) -> None:
    """Install packages with apt-get; their services do not start, neither now nor at the next boot.

    Raises ServicesError where apt-get is missing, root's rights are missing, or the installation fails.
    """
    prefix = _privilege()
    if shutil.which("apt-get") is None or prefix is None:
        names = " and ".join(packages)
        raise ServicesError(
            f"{names} not found, and not installable here (needs apt-get and root or sudo). {ALTERNATIVES}"
        )
    command = [*prefix, *_APT, "install", "-y", "--no-install-recommends", *packages]
    with services_kept_off(POLICY, prefix):
        try:
            _run(command)
        except ServicesError:
            # The package lists are missing or older than the archive.
            _run([*prefix, *_APT, "update"])
            _run(command)
    if Path("/run/systemd/system").is_dir() and shutil.which("systemctl"):
        _run([*prefix, "systemctl", "--quiet", "disable", *packages])


@contextmanager
def services_kept_off(policy: Path, prefix: Sequence[str]) -> Iterator[None]:
    """Forbid packages to start, stop or restart system services within the block.

    Writes a file to `policy` that forbids it, and restores a former one afterwards. A policy that another program
    writes within the block stays. `prefix` comes before each command, to run it as root.
    """
    wait_until(lambda: not _writer_runs(policy), _OTHER_INSTALLATION)
    remove_leftover_policy(policy, prefix)
    if os.path.lexists(policy):
        _run([*prefix, "mv", "-f", str(policy), str(_kept(policy))])
    ourselves = identify(os.getpid()) or ProcessId(os.getpid(), 0)
    text = f"#!/bin/sh\n{_SIGNATURE}{ourselves.pid} {ourselves.started}\nexit 101\n"
    with tempfile.NamedTemporaryFile("w") as ours:
        ours.write(text)
        ours.flush()
        _run([*prefix, "install", "-m", "755", ours.name, str(policy)])
    try:
        yield
    finally:
        _restore(policy, prefix)


def remove_leftover_policy(policy: Path, prefix: Sequence[str] | None = None) -> None:
    """Undo what an installation that was killed has left at `policy`; the file of another program stays.

    Without `prefix` it is looked up how to run a command as root, but only if there is something to undo.
    """
    was_moved_only = not os.path.lexists(policy) and os.path.lexists(_kept(policy))
    if not was_moved_only and (_writer(policy) is None or _writer_runs(policy)):
        return
    prefix = _privilege() if prefix is None else prefix
    if prefix is None:
        log.warning("%s was left by an installation that was killed. It keeps services off: remove it as root", policy)
    else:
        _restore(policy, prefix)


def _restore(policy: Path, prefix: Sequence[str]) -> None:
    kept = _kept(policy)
    if os.path.lexists(policy) and _writer(policy) is None:
        return
    _run([*prefix, "mv", "-f", str(kept), str(policy)] if os.path.lexists(kept) else [*prefix, "rm", "-f", str(policy)])


def _kept(policy: Path) -> Path:
    """Return where a policy that was there before is kept."""
    return policy.with_name(f"{policy.name}.before-perennial")


def _writer_runs(policy: Path) -> bool:
    writer = _writer(policy)
    return writer is not None and is_running(writer)


def _writer(policy: Path) -> ProcessId | None:
    """Return the installer that wrote the policy, which may have ended; None for a policy of another program."""
    try:
        text = policy.read_text()
    except (OSError, UnicodeDecodeError):
        return None
    found = re.search(rf"^{_SIGNATURE}(\d+) (\d+)$", text, re.MULTILINE)
    return ProcessId(int(found[1]), int(found[2])) if found else None


def _privilege() -> list[str] | None:
    """Return the words before a command that run it as root, None where it cannot be run as root."""
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    allowed = sudo and subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode == 0  # noqa: S603
    return [sudo, "-n"] if sudo and allowed else None


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)  # noqa: S603
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).splitlines()[-8:])
        raise ServicesError(f"`{' '.join(command)}` failed:\n{last}\n{ALTERNATIVES}")
