"""The private RabbitMQ node, with a name, cookie, port mapper, user and data of its own."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import amqp

from app.errors import FetchError
from app.http.api_client import ApiClient
from app.machine import make_directory, write_private
from app.private_services.ports import is_listening
from app.private_services.service import Service, environment
from app.private_services.state import USER, ServicesState

PORTS = ("amqp", "management", "dist")

#: Seconds that a call of the running node may take.
_CALL_TIMEOUT = 3.0

#: RabbitMQ keeps in memory what quorum queues log, up to the size of a log file. Its default of 512 MiB is enough for
#: the memory alarm, which blocks all publishers.
_CONF = """\
listeners.tcp.1 = 127.0.0.1:{amqp}
management.tcp.ip = 127.0.0.1
management.tcp.port = {management}
default_user = {user}
default_pass = {password}
vm_memory_high_watermark.absolute = 512MB
raft.wal_max_size_bytes = 64000000
disk_free_limit.absolute = 200MB
log.console = false
"""

#: Milliseconds after which a delay queue tries again to return a message; the default is three minutes. It matters when
#: a node of a cluster was just killed. rabbitmq.conf has no such key.
_ADVANCED = "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 5000}]}].\n"


def port_mapper(directory: Path, state: ServicesState) -> Service:
    """Return the private epmd; the one that a node starts itself would outlive it and listen on all addresses."""
    home = make_directory(directory / "epmd")
    port = state.ports["epmd"]
    return Service(
        name="epmd",
        directory=home,
        programs=frozenset({"epmd"}),
        argv=[shutil.which("epmd") or "epmd", "-address", "127.0.0.1", "-port", str(port)],
        env=environment(home),
        log=home / "epmd.log",
        ports=("epmd",),
        answers=lambda: is_listening(port),
        start_timeout=10.0,
        stop_timeout=5.0,
    )


def broker(directory: Path, state: ServicesState, *, script: Path) -> Service:
    """Return the private broker; `script` is the real rabbitmq-server, not the wrapper that changes users."""
    home = make_directory(directory / "rabbitmq")
    return Service(
        name="RabbitMQ",
        directory=home,
        programs=frozenset({"beam.smp", "rabbitmq-server", "erl", "erlexec"}),
        argv=[str(script)],
        # HOME has the Erlang cookie.
        env=environment(home) | _node_env(home, state),
        log=home / "boot.log",
        ports=PORTS,
        answers=lambda: answers(state),
        start_timeout=90.0,
        stop_timeout=30.0,
        before_stop=lambda pid: _remove_statistics(pid, home, state),
    )


def configure(directory: Path, state: ServicesState) -> None:
    """Write the node's files. The user and password take effect on the first boot only."""
    home = make_directory(directory / "rabbitmq")
    conf = _CONF.format(**state.ports, user=USER, password=state.password)
    write_private(home / "rabbitmq.conf", conf)
    # These three replace files below /etc/rabbitmq, which may belong to another node.
    write_private(home / "rabbitmq-env.conf", "")
    write_private(home / "advanced.config", _ADVANCED)
    write_private(home / "enabled_plugins", "[rabbitmq_management].\n")
    make_directory(home / "conf.d")
    cookie = home / ".erlang.cookie"
    if not cookie.exists():
        write_private(cookie, secrets.token_hex(20))
        cookie.chmod(0o400)


def answers(state: ServicesState) -> bool:
    """Return whether broker and management API on the node's ports accept its user; those of another node do not."""
    host = f"127.0.0.1:{state.ports['amqp']}"
    connection = amqp.Connection(
        host, userid=USER, password=state.password, connect_timeout=5, read_timeout=5, write_timeout=5
    )
    try:
        with closing(connection):
            connection.connect()
        return ApiClient(connect_timeout=5, response_timeout=5).send("GET", f"{state.broker_api_url}whoami").ok
    except (OSError, amqp.AMQPError, FetchError):
        return False


def _remove_statistics(pid: int, home: Path, state: ServicesState) -> None:
    """Remove the node's handler of statistics, which would hold up its stop by five seconds.

    When the node stops, that handler sets a variable of an application, and waits for the process that stops them. A
    node that does not answer is stopped slowly.
    """
    try:
        program = Path(f"/proc/{pid}/exe").resolve().with_name("erl_call")
        act = "gen_event delete_handler [rabbit_event,rabbit_mgmt_db_handler,[]]"
        subprocess.run(  # noqa: S603 - The program is a sibling of the one that runs.
            [program, "-sname", state.node, "-a", act],
            env=environment(home) | _port_mapper_env(state),
            capture_output=True,
            timeout=_CALL_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return


def _port_mapper_env(state: ServicesState) -> dict[str, str]:
    return {"ERL_EPMD_PORT": str(state.ports["epmd"]), "ERL_EPMD_ADDRESS": "127.0.0.1"}


def _node_env(home: Path, state: ServicesState) -> dict[str, str]:
    return _port_mapper_env(state) | {
        "RABBITMQ_NODENAME": state.node,
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(state.ports["amqp"]),
        "RABBITMQ_DIST_PORT": str(state.ports["dist"]),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_CONFIG_FILES": str(home / "conf.d" / "*.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
        "RABBITMQ_CONF_ENV_FILE": str(home / "rabbitmq-env.conf"),
        "RABBITMQ_PID_FILE": str(home / "pid"),
        "ERL_CRASH_DUMP_SECONDS": "0",  # A failed start must not write a dump of its memory.
        # The start script execs the node, so SIGTERM stops the node gracefully.
        "RUNNING_UNDER_SYSTEMD": "true",
    }
