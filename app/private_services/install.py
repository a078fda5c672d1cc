"""Install RabbitMQ and Redis from the distribution's packages, without starting a system service."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from app.errors import ServicesError
from app.machine import try_lock, wait_until

#: What a user can do instead, for error messages.
ALTERNATIVES = "Install it yourself, set BROKER_URL and REDIS_URL to servers that you have, or run `docker compose up`."

#: The file that invoke-rc.d(8) runs before it starts a service, and the exit code that forbids the start.
POLICY = Path("/usr/sbin/policy-rc.d")
_FORBIDDEN = 101

#: The line by which our policy is known.
_SIGNATURE = "# written by an installation of Perennial"
#: Seconds to wait for an installation by another process.
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
    """Forbid packages to start, stop or restart system services within the block; other installations wait.

    Writes a file to `policy` that forbids it while this process holds the lock of the folder. The kernel frees the
    lock with the process, so what a killed installation leaves forbids nothing; the next one removes it. The policy of
    another program stays. `prefix` comes before each command, to run it as root. Raises ServicesError where that
    policy allows a start, and after _OTHER_INSTALLATION seconds of waiting for another installation.
    """
    # Read permission is enough to lock a folder, so all users of one machine share the lock.
    folder = os.open(policy.parent, os.O_RDONLY)
    try:
        if not wait_until(lambda: try_lock(folder), _OTHER_INSTALLATION):
            raise ServicesError(f"another installation has not ended within {_OTHER_INSTALLATION:g} s. {ALTERNATIVES}")
        if not os.path.lexists(policy):
            with tempfile.NamedTemporaryFile("w") as ours:
                ours.write(f"#!/bin/sh\n{_SIGNATURE}\nflock --nonblock '{policy.parent}' true || exit {_FORBIDDEN}\n")
                ours.flush()
                _run([*prefix, "install", "-m", "755", ours.name, str(policy)])
        elif not _forbids_starts(policy):
            raise ServicesError(f"{policy} lets packages start their services at once. {ALTERNATIVES}")
        try:
            yield
        finally:
            with suppress(OSError):  # A policy that is missing or unreadable is not ours.
                if _SIGNATURE.encode() in policy.read_bytes().splitlines():
                    _run([*prefix, "rm", "-f", str(policy)])
    finally:
        os.close(folder)


def _forbids_starts(policy: Path) -> bool:
    """Return whether the policy of another program forbids packages to start services."""
    if not os.access(policy, os.X_OK):
        return False
    # By a shell, as invoke-rc.d does it: a script without an interpreter line runs, too.
    by_shell = ["/bin/sh", "-c", '"$0" "$@"', str(policy), "rabbitmq-server", "start"]
    return subprocess.run(by_shell, check=False).returncode == _FORBIDDEN  # noqa: S603


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
