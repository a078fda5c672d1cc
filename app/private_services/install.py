"""Install RabbitMQ and Redis from the distribution's packages, without starting a system service."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from app.errors import ServicesError
from app.private_services.service import locked, wait_until

log = logging.getLogger(__name__)

#: What a user can do instead, for error messages.
ALTERNATIVES = "Install it yourself, set BROKER_URL and REDIS_URL to servers that you have, or run `docker compose up`."

#: The file that invoke-rc.d(8) runs before it starts a service; exit code 101 forbids the start.
POLICY = Path("/usr/sbin/policy-rc.d")

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
    writes within the block stays. `prefix` comes before each command, to run it as root. Other installations wait.
    Raises ServicesError after _OTHER_INSTALLATION seconds of waiting for one.
    """
    with _locked(policy.parent, wait=_OTHER_INSTALLATION) as alone:
        if not alone:
            raise ServicesError(f"another installation has not ended within {_OTHER_INSTALLATION:g} s. {ALTERNATIVES}")
        _undo_leftover(policy, prefix)
        if os.path.lexists(policy):
            _run([*prefix, "mv", "-f", str(policy), str(_kept(policy))])
        with tempfile.NamedTemporaryFile("w") as ours:
            ours.write(f"#!/bin/sh\n{_SIGNATURE}\nexit 101\n")
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
    if not _is_left_over(policy):
        return
    with _locked(policy.parent, wait=0.0) as alone:
        if not alone:
            return  # An installation runs.
        prefix = _privilege() if prefix is None else prefix
        if prefix is None:
            log.warning(
                "%s was left by an installation that was killed. It keeps services off: remove it as root", policy
            )
        else:
            _undo_leftover(policy, prefix)


@contextmanager
def _locked(folder: Path, *, wait: float) -> Iterator[bool]:
    """Yield whether this process got the lock of a folder within `wait` seconds. The kernel frees it with the process.

    Read permission is enough to lock a folder, so all users of one machine share the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield wait_until(lambda: locked(descriptor), wait)
    finally:
        os.close(descriptor)


def _is_left_over(policy: Path) -> bool:
    """Return whether, without an installation under way, it is our policy, or one that we only moved aside."""
    return _is_ours(policy) or (not os.path.lexists(policy) and os.path.lexists(_kept(policy)))


def _undo_leftover(policy: Path, prefix: Sequence[str]) -> None:
    if _is_left_over(policy):
        _restore(policy, prefix)


def _restore(policy: Path, prefix: Sequence[str]) -> None:
    kept = _kept(policy)
    if os.path.lexists(policy) and not _is_ours(policy):
        return
    _run([*prefix, "mv", "-f", str(kept), str(policy)] if os.path.lexists(kept) else [*prefix, "rm", "-f", str(policy)])


def _kept(policy: Path) -> Path:
    """Return where a policy that was there before is kept."""
    return policy.with_name(f"{policy.name}.before-perennial")


def _is_ours(policy: Path) -> bool:
    """Return whether our installation wrote the policy."""
    try:
        return _SIGNATURE in policy.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return False


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
