"""Installing RabbitMQ and Redis: what is looked for, and how system services are kept from starting."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from app.errors import ServicesError
from app.private_services import install, up
from config.settings import ROOT, Settings

pytestmark = pytest.mark.unit

ALLOW, FORBID = "#!/bin/sh\nexit 0\n", "#!/bin/sh\nexit 101\n"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return tmp_path / "policy-rc.d"


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_system_services_are_kept_off_during_an_installation_only(policy: Path) -> None:
    with install.services_kept_off(policy, []):
        assert subprocess.run([policy, "rabbitmq-server", "start"]).returncode == 101
    assert list(policy.parent.iterdir()) == []


@pytest.mark.parametrize("text", [FORBID, "exit 101\n"], ids=["interpreter", "no-interpreter"])
@pytest.mark.parametrize("mode", ["before", "meanwhile"])
def test_the_policy_of_another_program_is_never_replaced_or_removed(policy: Path, mode: str, text: str) -> None:
    if mode == "before":
        policy.symlink_to(script(policy.parent / "theirs", text))
    with install.services_kept_off(policy, []):
        if mode == "meanwhile":
            script(policy, text)
        assert subprocess.run(["/bin/sh", "-c", str(policy)]).returncode == 101
    assert policy.read_text() == text


def test_no_package_is_installed_where_a_policy_allows_services_to_start(policy: Path) -> None:
    script(policy, ALLOW)
    with pytest.raises(ServicesError, match="lets packages start"), install.services_kept_off(policy, []):
        pytest.fail("it installs")
    assert policy.read_text() == ALLOW


def test_a_killed_installation_forbids_nothing_and_the_next_one_removes_what_it_left(policy: Path) -> None:
    killed_script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom app.private_services import install\n"
        "with install.services_kept_off(Path(sys.argv[1]), []): os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", killed_script, str(policy)], cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    assert subprocess.run([policy]).returncode == 0
    with pytest.raises(ServicesError, match="no room"), install.services_kept_off(policy, []):
        raise ServicesError("no room")
    assert list(policy.parent.iterdir()) == []


def test_installations_of_several_processes_wait_for_each_other(policy: Path) -> None:
    install_once = (
        "import subprocess, sys\nfrom pathlib import Path\nfrom app.private_services import install\n"
        "for _ in range(5):\n"
        "    with install.services_kept_off(Path(sys.argv[1]), []):\n"
        "        assert subprocess.run([sys.argv[1]]).returncode == 101\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", install_once, str(policy)], cwd=ROOT) for _ in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0] * 3
    assert list(policy.parent.iterdir()) == []


def test_the_wrapper_that_changes_users_is_not_taken_for_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("erl", "epmd"):
        script(tmp_path / "path" / name, "")
    root = tmp_path / "rabbitmq"
    wrapper = script(root / "bin" / "rabbitmq-script-wrapper", "")
    (tmp_path / "path" / "rabbitmq-server").symlink_to(wrapper)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert install.rabbitmq_script(root) is None
    real = script(root / "lib" / "rabbitmq_server-4.0.1" / "sbin" / "rabbitmq-server", "")
    script(real.parent / "rabbitmq-env", "")
    assert install.rabbitmq_script(root) == real


@pytest.mark.skipif(os.geteuid() != 0, reason="a user without root takes the way of sudo, which is not here")
def test_missing_packages_are_installed_after_one_update_and_may_not_start_services(
    tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands, log = tmp_path / "bin", tmp_path / "log"
    for name in ("env", "rm", "install", "sh", "chmod", "touch", "flock", "true"):
        script(commands / name, f'#!/bin/sh\nexec {shutil.which(name)} "$@"\n')
    script(
        commands / "apt-get",
        f"""#!/bin/sh
echo "$DEBIAN_FRONTEND $*" >>{log}
case "$*" in
*update*) touch {tmp_path}/lists ;;
*install*) [ -e {tmp_path}/lists ] || exit 100
    {policy} redis-server start; echo "policy says $?" >>{log}
    touch {commands}/redis-server; chmod 755 {commands}/redis-server ;;
esac
""",
    )
    monkeypatch.setenv("PATH", str(commands))
    monkeypatch.setattr(install, "POLICY", policy)
    install.ensure(broker=False, redis=True)
    first, second, third, said = log.read_text().splitlines()
    assert (
        first
        == third
        == "noninteractive -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends redis-server"
    )
    assert second.endswith("update")
    assert said == "policy says 101"
    assert not policy.exists()


def test_if_programs_are_missing_and_cannot_be_installed_the_error_names_alternatives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ServicesError, match=r"rabbitmq-server and redis-server not found.*BROKER_URL.*docker compose up"
    ):
        up(Settings(data_dir=tmp_path / "data"))


OUTLIVED = """
import os, sys
from pathlib import Path
from app.private_services import service
folder = Path(sys.argv[1])
print(service.start(["sleep", "600"], directory=folder, env=os.environ, log=folder / "log").pid)
"""


def test_a_service_outlives_the_process_that_started_it_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", OUTLIVED, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    started = psutil.Process(int(done.stdout))
    assert started.name() == "sleep"
    started.kill()
    assert done.stderr == ""
