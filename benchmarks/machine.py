"""The machine and the versions of a measurement."""

from __future__ import annotations

import platform
import re
import sqlite3
import subprocess
from importlib.metadata import version
from pathlib import Path

import psutil
from kombu import Connection

from app.redis_state.client import get_redis
from benchmarks.sites import ensure_nginx
from config.settings import ROOT, Settings

PACKAGES = (
    "celery",
    "kombu",
    "amqp",
    "redis",
    "hiredis",
    "selectolax",
    "urllib3",
    "fastapi",
    "uvicorn",
    "scrapy",
    "tantivy",
    "py-spy",
)
WRITTEN = ("benchmarks/RESULTS.md", "benchmarks/results", "benchmarks/plots")
"""What a row writes; the row after it measures the same commit."""


def machine() -> dict[str, str]:
    """Return processor, cores, memory and operating system."""
    try:
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        system = platform.system()
    return {
        "processor": f"{_processor()}, {psutil.cpu_count()} cores",
        "memory": f"{psutil.virtual_memory().total / 1e9:.0f} GB",
        "system": f"{system}, kernel {platform.release()}",
    }


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def commit() -> str:
    """Return the measured commit, marked if other files than WRITTEN differ from it; empty outside of git."""
    name = _git("describe", "--always", "--abbrev=12")
    changed = _git("status", "--porcelain", "--", ".", *(f":!{path}" for path in WRITTEN))
    return f"{name} with changes" if changed else name


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """Return the versions of Perennial, Python, SQLite and PACKAGES."""
    own = {
        "Perennial": commit() or version("perennial"),
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
    }
    return own | {name: version(name) for name in PACKAGES}


def services_versions(settings: Settings) -> dict[str, str]:
    """Return the versions of the running RabbitMQ and Redis."""
    with Connection(settings.broker) as connection:
        connection.connect()
        broker = str(connection.connection.server_properties["version"])
    return {"RabbitMQ": broker, "Redis": str(get_redis(settings.redis).info()["redis_version"])}


def nginx_version() -> dict[str, str]:
    """Return the version of nginx."""
    output = subprocess.run([ensure_nginx(), "-v"], capture_output=True, text=True, check=True).stderr
    return {"nginx": output.rpartition("/")[2].strip()}
