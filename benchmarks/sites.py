"""Real sites from Debian packages, unpacked but not installed, served by a private nginx."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests

from app.machine import tail, wait_until
from app.private_services import ports
from benchmarks.errors import BenchmarkError
from tests.support.programs import program


@dataclass(frozen=True, slots=True)
class DebianSite:
    """A site in a package. `root` is its folder in the package, `/` its start page."""

    package: str
    root: str


SITES = {
    "postgresql-doc-15": DebianSite("postgresql-doc-15", "usr/share/doc/postgresql-doc-15/html"),
    "python3.11-doc": DebianSite("python3.11-doc", "usr/share/doc/python3.11/html"),
}


@dataclass(frozen=True, slots=True)
class ServedSites:
    """Served sites: start URLs by name, and the server's process id."""

    urls: dict[str, str]
    pid: int


def python_doc() -> DebianSite:
    """Return the documentation of this Debian release's own Python; raises BenchmarkError where apt knows none."""
    find = ["apt-cache", "depends", "python3-doc"]
    try:
        found = re.search(r"python3\.\d+-doc", _run(find, Path("/")))
    except BenchmarkError:
        found = None
    if found is None:
        _run([*_root(), "apt-get", "-qq", "update"], Path("/"))
        found = re.search(r"python3\.\d+-doc", _run(find, Path("/")))
    if found is None:
        raise BenchmarkError(f"`{' '.join(find)}` names no package: the sites are Debian packages")
    return DebianSite(found[0], f"usr/share/doc/{found[0].removesuffix('-doc')}/html")


def unpack(site: DebianSite, folder: Path) -> Path:
    """Return the folder of a site's pages, downloading and unpacking its package below `folder` the first time.

    Raises BenchmarkError when the package cannot be downloaded or unpacked.
    """
    target = folder / site.package
    if not target.exists():
        work = target.with_name(f".{site.package}.new")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        _download(site.package, work)
        (archive,) = work.glob("*.deb")
        _run(["dpkg-deb", "-x", str(archive), str(work)], work)
        (work / "name").write_text(archive.stem)
        archive.unlink()
        work.rename(target)
    return target / site.root


def version(site: DebianSite, folder: Path) -> str:
    """Return package, version and architecture of an unpacked site, from its archive's name."""
    return (folder / site.package / "name").read_text().replace("%3a", ":")


def _download(package: str, folder: Path) -> None:
    try:
        _run(["apt-get", "-qq", "download", package], folder)
    except BenchmarkError:
        # The package lists are missing or older than the archive.
        _run([*_root(), "apt-get", "-qq", "update"], folder)
        _run(["apt-get", "-qq", "download", package], folder)


def ensure_nginx() -> str:
    """Return the path of nginx, installing it without starting its default site if it is missing."""
    return program("nginx", "nginx-light")


def _root() -> list[str]:
    return [] if os.geteuid() == 0 else ["sudo", "-n"]


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
    except FileNotFoundError as error:
        raise BenchmarkError(f"`{command[0]}` not found: the sites are Debian packages") from error
    if done.returncode:
        raise BenchmarkError(f"`{' '.join(command)}` failed:\n{(done.stderr or done.stdout)[-1_000:]}")
    return done.stdout


# Serving

_CONF = """\
daemon off;
user {user};
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    types {{
        text/html html htm;
        text/plain txt;
        text/css css;
        text/javascript js;
        image/png png;
        image/gif gif;
        image/svg+xml svg;
    }}
    default_type application/octet-stream;
    access_log off;
    gzip off;
    sendfile on;
    disable_symlinks off;
    index index.html;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{servers}
}}
"""
_SERVER = '    server {{ listen 127.0.0.1:{port}; root "{root}"; }}'


@contextmanager
def serve(names: Collection[str], folder: Path) -> Iterator[ServedSites]:
    """Serve SITES on free ports of 127.0.0.1 during the block, with files below `folder`."""
    program, home = ensure_nginx(), folder / "nginx"
    home.mkdir(parents=True, exist_ok=True)
    roots = {name: unpack(SITES[name], folder / "sites") for name in names}
    chosen = ports.choose(names)
    _configure(home, roots, chosen)
    command = [program, "-p", str(home), "-c", str(home / "nginx.conf"), "-e", str(home / "error.log")]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    urls = {name: f"http://127.0.0.1:{chosen[name]}/" for name in names}
    try:
        if not wait_until(lambda: process.poll() is not None or all(map(_answers, urls.values())), 10):
            raise BenchmarkError(f"nginx does not answer:\n{tail(home / 'error.log')}")
        if process.poll() is not None:
            raise BenchmarkError(f"nginx ended with {process.returncode}:\n{tail(home / 'error.log')}")
        yield ServedSites(urls, process.pid)
    finally:
        process.terminate()
        process.wait(10)


def _configure(home: Path, roots: dict[str, Path], chosen: dict[str, int]) -> None:
    servers = [_SERVER.format(port=chosen[name], root=root) for name, root in roots.items()]
    # By default nginx, started by root, reads pages as another user without permission.
    user = pwd.getpwuid(os.geteuid()).pw_name
    (home / "nginx.conf").write_text(_CONF.format(folder=home, user=user, servers="\n".join(servers)))


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=2).ok
    except requests.RequestException:
        return False
