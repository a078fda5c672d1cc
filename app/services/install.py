"""RabbitMQ, Redis and PostgreSQL from the distribution's packages, where we may; a system service is never started."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from app.errors import ServicesError

WAYS_OUT = "Install it yourself, give BROKER_URL and REDIS_URL of servers that you have, or run `docker compose up`."
POLICY = Path("/usr/sbin/policy-rc.d")

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
    """Return the packages whose programs are needed and not here."""
    packages = ["rabbitmq-server"] if broker and rabbitmq_script() is None else []
    return packages + (["redis-server"] if redis and shutil.which("redis-server") is None else [])


def ensure(*, broker: bool, redis: bool) -> None:
    """Install what is needed and not here.

    Raises:
        ServicesError: it cannot be installed; names the ways out.
    """
    packages = missing(broker=broker, redis=redis)
    if not packages:
        return
    prefix = _add(packages)
    _disable(packages, prefix)
    if missing(broker=broker, redis=redis):
        raise ServicesError(f"{' and '.join(packages)}: installed, and still not found. {WAYS_OUT}")


def program(name: str, package: str) -> str:
    """Return the path of a program, its package installed if it is not here; its service is not started.

    Raises:
        ServicesError: it cannot be installed.
    """
    # What only root needs is not on everybody's path.
    path = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin"
    if shutil.which(name, path=path) is None:
        _add([package])
    found = shutil.which(name, path=path)
    if found is None:
        raise ServicesError(f"{name}: {package} is installed, and it is still not found")
    return found


def postgres_programs(root: Path = Path("/usr/lib/postgresql")) -> Path | None:
    """Return the folder of initdb and postgres, or None. Debian keeps them off the path, one folder a release."""
    releases = (path.parent for path in root.glob("*/bin/initdb") if path.parts[-3].isdigit())
    newest = max(releases, key=lambda path: int(path.parts[-2]), default=None)
    on_path = shutil.which("initdb")
    return newest or (Path(on_path).resolve().parent if on_path else None)


def ensure_postgres() -> Path:
    """Return the folder of PostgreSQL's programs, its package installed if they are not here; no cluster is started.

    Raises:
        ServicesError: it cannot be installed.
    """
    if postgres_programs() is None:
        _disable(["postgresql"], _add(["postgresql"]))
    found = postgres_programs()
    if found is None:
        raise ServicesError(f"postgresql: installed, and initdb is still not found. {WAYS_OUT}")
    return found


def _add(packages: Sequence[str]) -> list[str]:
    """Install packages, no service started; return what to put before a command to run it as root."""
    prefix = _privilege()
    if shutil.which("apt-get") is None or prefix is None:
        names = " and ".join(packages)
        raise ServicesError(f"{names} not found, and not installable here (needs apt-get and root or sudo). {WAYS_OUT}")
    with services_kept_off(POLICY, prefix):
        _install(packages, prefix)
    return prefix


@contextmanager
def services_kept_off(policy: Path, prefix: Sequence[str]) -> Iterator[None]:
    """Deny every start, stop and restart of a system service by a package while in the block.

    `policy` is the file that invoke-rc.d(8) asks (exit code 101: forbidden by policy). One that is there is moved
    aside and moved back, so that afterwards all is as it was; `prefix` is put before each command.
    """
    kept = policy.with_name(f"{policy.name}.before-perennial")
    if os.path.lexists(policy) and not os.path.lexists(kept):
        _run([*prefix, "mv", str(policy), str(kept)])
    with tempfile.NamedTemporaryFile("w") as ours:
        ours.write("#!/bin/sh\nexit 101\n")
        ours.flush()
        _run([*prefix, "install", "-m", "755", ours.name, str(policy)])
    try:
        yield
    finally:
        _run([*prefix, "mv", "-f", str(kept), str(policy)] if os.path.lexists(kept) else [*prefix, "rm", str(policy)])


def _privilege() -> list[str] | None:
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    allowed = sudo and subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode == 0  # noqa: S603
    return [sudo, "-n"] if sudo and allowed else None


def _install(packages: Sequence[str], prefix: Sequence[str]) -> None:
    command = [*prefix, *_APT, "install", "-y", "--no-install-recommends", *packages]
    try:
        _run(command)
    except ServicesError:
        # The package lists are missing or older than the archive.
        _run([*prefix, *_APT, "update"])
        _run(command)


def _disable(packages: Sequence[str], prefix: Sequence[str]) -> None:
    # What we installed for ourselves is not to come up as a system service at the next boot either.
    if Path("/run/systemd/system").is_dir() and shutil.which("systemctl"):
        _run([*prefix, "systemctl", "--quiet", "disable", *packages])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)  # noqa: S603
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).splitlines()[-8:])
        raise ServicesError(f"`{' '.join(command)}` failed:\n{last}\n{WAYS_OUT}")
