"""The wheel, installed without a checkout: `perennial up` starts all its processes, a site is found, `down` ends it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import requests

from app.processes.procfile import formation, left_out, procfile
from config.settings import ROOT, Settings
from tests.servers.site import Site, page
from tests.support.generated import commands, options
from tests.support.manual import manual
from tests.support.waiting import eventually
from tests.support.web import free_port

pytestmark = pytest.mark.acceptance

#: What the build reads. A copy: setuptools would put modules that are gone from the checkout's `build` into the wheel.
SOURCES = ("app", "config", "tasks", "Procfile", "pyproject.toml", "README.md", "LICENSE")


def run(*command: object, folder: Path, environment: dict[str, str] | None = None) -> str:
    """Run a command in a folder and return what it printed."""
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder)
    (folder / "man").mkdir()
    (folder / "man" / "perennial.1").write_text(manual())
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "wheel", *options, ".", folder=folder)
    [built] = folder.glob("perennial-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """Install the wheel and return the `bin` of its environment.

    The dependencies are those of the environment of the tests, whose `.pth` files, the checkout's among them, are not
    read. `make release` installs them from the registry.
    """
    environment = wheel.parent / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, folder=wheel.parent)
    paths = {"base": str(environment), "platbase": str(environment)}
    modules = Path(sysconfig.get_path("purelib", "venv", paths))
    options = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", environment, "install", *options, wheel, folder=wheel.parent)
    (modules / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    celery = (Path(sys.executable).parent / "celery").read_text()
    script = environment / "bin" / "celery"
    script.write_text(f"#!{environment}/bin/python\n" + celery.partition("\n")[2])
    script.chmod(0o755)
    return environment / "bin"


def test_the_wheel_holds_every_file_of_its_packages(installed: Path) -> None:
    files = (path for name in ("app", "config", "tasks") for path in (ROOT / name).rglob("*") if path.is_file())
    listed = [str(path.relative_to(ROOT)) for path in files if path.parent.name != "__pycache__"]
    code = "import config.settings; print(config.settings.ROOT)"
    modules = Path(run(installed / "python", "-c", code, folder=installed).strip())
    assert modules.is_relative_to(installed.parent)
    missing = [name for name in listed if not (modules / name).is_file()]
    assert missing == ["app/broker/pyproject.toml"], "all but that of a distribution of its own"


def test_the_wheel_of_a_release_holds_a_man_page_with_every_command_and_option(installed: Path) -> None:
    page = (installed.parent / "share" / "man" / "man1" / "perennial.1").read_text().replace("\\-", "-")
    for name, command in commands().items():
        section = page.partition(f'.SS "{name} ')[2].partition("\n.SS ")[0]
        assert section, name
        assert not [each for each in options(command) if each.startswith("-") and each not in section], name


def test_an_installed_wheel_has_its_data_in_the_users_folder(installed: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path)}
    command = (installed / "perennial", "config", "show", "--json")
    assert f'"value": "{tmp_path}/.local/share/perennial"' in run(*command, folder=tmp_path, environment=environment)


@pytest.mark.slow
def test_the_whole_procfile_of_the_wheel_alone_starts_serves_a_crawled_site_and_stops_warm(
    installed: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    folder, web, flower = tmp_path / "empty", free_port(), free_port()
    folder.mkdir()
    # The checkout's scripts are not found: the Procfile's `celery` is that of the wheel's environment.
    path = os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if not Path(part, "celery").exists())
    chosen = {
        **environment,
        "PATH": path,
        "WEB_ADDRESS": f"127.0.0.1:{web}",
        "FLOWER_ADDRESS": f"127.0.0.1:{flower}",
        "FLOWER_BASIC_AUTH": "me:secret",
    }

    def command(*arguments: object) -> str:
        return run(installed / "perennial", *arguments, folder=folder, environment=chosen)

    log = tmp_path / "up.log"
    with Site({"/": page("Trees", "All about amber trees")}) as site, log.open("wb") as output:
        up = subprocess.Popen([installed / "perennial", "up"], cwd=folder, env=chosen, stdout=output, stderr=output)
        try:
            command("index", "--crawl", "--wait", site.at("/"))
            found: Callable[[], bool] = lambda: is_found(web, site.domain)  # noqa: E731 - it is awaited once.
            eventually(found, f"the search page finds it; log:\n{log.read_text()[-3_000:]}", seconds=90)
            assert "Trees" in command("search", site.domain, "amber")
            assert status_of(web, "/healthz") == 200
            eventually(lambda: status_of(flower) == 401, "Flower asks for a password", seconds=60)
            assert status_of(flower, auth=("me", "secret")) == 200
            eventually(lambda: log.read_text().count(" ready.") == 5, "all workers are ready", seconds=60)
            require_whole_procfile(up, log.read_text(), environment, f"{installed}/python")
            processes = psutil.Process(up.pid).children(recursive=True)
            with pytest.raises(AssertionError, match=f"perennial up runs already, as process {up.pid}"):
                command("up")
            assert "processes stopped" in command("down")
            assert up.wait(60) == 143
            assert not [process for process in processes if process.is_running()]
            # Worker, packer and orchestrator are Celery workers; searchers are not.
            assert log.read_text().count("Warm shutdown") == 3
            for name in ("worker", "packer", "orchestrator", "searcher.1", "searcher.2"):
                assert f"{name} stopped (rc=0)" in log.read_text()
        finally:
            if up.poll() is None:
                up.kill()


def require_whole_procfile(up: subprocess.Popen[bytes], log: str, environment: Mapping[str, str], python: str) -> None:
    """Assert that all processes run, each of the wheel's environment, and that none shows the broker's password."""
    names = set(formation(procfile(), searchers=2))
    assert {name for name in names if f"{name} started" in log} == names - left_out(Settings())
    commands = [process.cmdline() for process in psutil.Process(up.pid).children(recursive=True)]
    assert {command[0] for command in commands} <= {python, "python"}, "a process runs from another environment"
    password = urlsplit(environment["BROKER_URL"]).password
    assert password
    assert not [command for command in commands if password in " ".join(command)]


def status_of(port: int, path: str = "/", **options: Any) -> int:
    """Return the status of a GET, or 0 without an answer."""
    with suppress(requests.ConnectionError):
        return requests.get(f"http://127.0.0.1:{port}{path}", timeout=5, **options).status_code
    return 0


def is_found(port: int, domain: str) -> bool:
    """Return whether the search page shows the page."""
    with suppress(requests.ConnectionError):
        answer = requests.get(f"http://127.0.0.1:{port}/", params={"domain": domain, "q": "amber"}, timeout=5)
        return "about <mark>amber</mark> trees" in answer.text
    return False
