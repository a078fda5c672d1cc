"""Podman in a folder of its own: images that stand in for those of a registry, and a socket for Docker Compose."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from app.errors import ServicesError
from app.private_services.install import add_packages
from config.settings import ROOT
from tests.support.waiting import eventually

#: Images stay here for the next run; nothing else does.
FOLDER = ROOT / ".perennial" / "containers"
#: Sockets have short paths, and what is in here must not outlive a boot.
RUN = Path("/run/perennial-containers")
#: The folder of Containerfile and override.yml.
SOURCES = Path(__file__).parent

#: What podman needs beside itself, by package.
PROGRAMS = {
    "podman": "/usr/bin/podman",
    "runc": "/usr/sbin/runc",
    "netavark": "/usr/lib/podman/netavark",
    "aardvark-dns": "/usr/lib/podman/aardvark-dns",
    "catatonit": "/usr/bin/catatonit",
    "iptables": "/usr/sbin/iptables",
    "debootstrap": "/usr/sbin/debootstrap",
}

#: The machine's own settings for pip, its certificates and the pinned versions: for the time of a build.
_BUILD_FILES = (
    ("/etc/pip.conf", "/etc/pip.conf"),
    ("/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/certs/ca-certificates.crt"),
    (str(ROOT / "constraints.txt"), "/constraints.txt"),
)

#: Limits are named because podman may not raise its own here; runc runs where crun refuses the cgroups.
_CONFIGURATION = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
tmp_dir = "{run}/tmp"
[network]
network_config_dir = "{folder}/networks"
"""
_STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{run}/storage"
"""


def refusal() -> str:
    """Return why no containers can be run here, or an empty text. Podman is installed if it is missing."""
    if os.geteuid():
        return "it needs root: podman sets up networks and mounts"
    try:
        if packages := [name for name, path in PROGRAMS.items() if not Path(path).exists()]:
            add_packages(packages)
    except ServicesError as error:
        return f"podman cannot be installed: {error}"
    return ""


class Engine:
    """Podman with storage, networks and a socket of its own."""

    def __init__(self) -> None:
        for folder in (FOLDER, RUN):
            folder.mkdir(parents=True, exist_ok=True)
        files = {"CONTAINERS_CONF": _CONFIGURATION, "CONTAINERS_STORAGE_CONF": _STORAGE}
        self.environment = {**os.environ, "DOCKER_HOST": f"unix://{RUN}/podman.sock"}
        for variable, text in files.items():
            path = FOLDER / f"{variable.lower()}.toml"
            path.write_text(text.format(folder=FOLDER, run=RUN))
            self.environment[variable] = str(path)

    def podman(self, *arguments: str) -> str:
        """Run podman and return what it prints; raises AssertionError with its errors."""
        return self.run(["podman", *arguments])

    def run(self, command: Sequence[str], *, folder: Path = ROOT, seconds: float = 1800) -> str:
        """Run a command with this engine's environment and return what it prints."""
        done = subprocess.run(
            command, env=self.environment, cwd=folder, capture_output=True, text=True, check=False, timeout=seconds
        )
        assert done.returncode == 0, (
            f"{' '.join(command)}: {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        )
        return done.stdout

    def has(self, image: str) -> bool:
        """Return whether an image is there."""
        return subprocess.run(["podman", "image", "exists", image], env=self.environment, check=False).returncode == 0

    def build(self, context: Path, *options: str) -> None:
        """Build an image; a layer that did not change is not built again."""
        mounts = [f"--volume={source}:{target}:ro" for source, target in _BUILD_FILES if Path(source).exists()]
        self.podman("build", "--quiet", "--network=host", "--format=docker", *mounts, *options, str(context))

    def size(self, image: str) -> int:
        """Return the size of an image with its base, in bytes."""
        return int(self.podman("image", "inspect", "--format={{.Size}}", image))

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Answer Docker's API on the socket, and call health checks as timers would, during the block."""
        socket, closing = RUN / "podman.sock", threading.Event()
        socket.unlink(missing_ok=True)
        checks = threading.Thread(target=self._check_health, args=[closing], name="health", daemon=True)
        with (
            (FOLDER / "service.log").open("wb") as log,
            subprocess.Popen(
                ["podman", "system", "service", "--time=0", f"unix://{socket}"], env=self.environment, stderr=log
            ) as service,
        ):
            try:
                eventually(socket.exists, "podman serves its socket")
                checks.start()
                yield
            finally:
                closing.set()
                checks.join()
                service.terminate()

    def healthy(self, container: str) -> bool:
        """Call the health check of a container."""
        command = ["podman", "healthcheck", "run", container]
        return subprocess.run(command, env=self.environment, capture_output=True, check=False).returncode == 0

    def _check_health(self, closing: threading.Event) -> None:
        """Check what is not healthy yet. Where systemd has no timers, podman never does so by itself."""
        while not closing.wait(1.0):
            filters = ("--filter=health=starting", "--filter=health=unhealthy")
            for name in {name for each in filters for name in self.podman("ps", each, "--format={{.Names}}").split()}:
                self.healthy(name)


def base_image(engine: Engine) -> None:
    """Make the image of a bare Debian 13, if it is not there."""
    image = "localhost/debian:trixie"
    if engine.has(image):
        return
    found = engine.run(["sh", "-c", "grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list* || true"])
    mirror = found.split()[:1]  # That of this machine, or else debootstrap's own.
    root = FOLDER / "debian"
    shutil.rmtree(root, ignore_errors=True)
    engine.run(["debootstrap", "--variant=minbase", "--include=ca-certificates", "trixie", str(root), *mirror])
    engine.run(["sh", "-c", f"tar -C '{root}' -c . | podman import - {image}"])
    shutil.rmtree(root)


def named_images(checkout: Path) -> list[str]:
    """Return the images that Dockerfile and docker-compose.yml name; the first one is the base of our image."""
    names = re.findall(r"^FROM (\S+:\S+)", (checkout / "Dockerfile").read_text(), re.MULTILINE)
    names += re.findall(r"^    image: (\S+)$", (checkout / "docker-compose.yml").read_text(), re.MULTILINE)
    return list(dict.fromkeys(names))


def stand_ins(engine: Engine, checkout: Path) -> Iterator[str]:
    """Build an image for each name in Dockerfile and docker-compose.yml; yield what stands in for what."""
    base_image(engine)
    for name in named_images(checkout):
        stage = name.partition(":")[0].rpartition("/")[2]
        full = f"docker.io/{name}" if "/" in name else f"docker.io/library/{name}"
        engine.build(SOURCES, f"--target={stage}", f"--tag={full}")
        version = engine.podman("run", "--rm", "--entrypoint=cat", full, "/stand-in").strip()
        yield f"{name} is replaced by {version}"


def compose_program(engine: Engine) -> Path:
    """Return Docker Compose, of Debian 13's package."""
    program = FOLDER / "docker-compose"
    if not program.exists():
        engine.build(SOURCES, "--target=compose", "--tag=localhost/compose")
        container = engine.podman("create", "localhost/compose", "true").strip()
        engine.podman("cp", f"{container}:/usr/libexec/docker/cli-plugins/docker-compose", str(program))
        engine.podman("rm", container)
    return program
