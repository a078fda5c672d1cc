"""The processes as Kubernetes runs them; `python -m tests.support.kubernetes` writes them to docs/kubernetes.

Commands come from the Procfile, and grace periods, health checks and secrets from docker-compose.yml.
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from app.processes.procfile import procfile
from config.settings import ROOT

FOLDER = ROOT / "docs/kubernetes"
SERVICES: dict[str, dict[str, Any]] = YAML(typ="safe").load((ROOT / "docker-compose.yml").read_text())["services"]

#: Where a pod has the secrets of its process, each in a file.
SECRETS = "/run/secrets/perennial"
HEADER = "# Written by `python -m tests.support.kubernetes`; do not edit. Change it by patches of your own.\n"
#: Seconds between two probes, and failures of the heartbeat until a container is started again: ten minutes.
PERIOD, FAILURES = 15, 40


@dataclass(frozen=True, slots=True)
class Pods:
    """What docker-compose.yml does not say of a process: replicas, CPU, memory, and a disk that outlives its pod."""

    cpu: str
    memory: str
    limit: str
    replicas: int = 1
    one_only: bool = False
    disk: tuple[str, str] | None = None
    #: Secrets without which the process has nothing to do, beside those that docker-compose.yml requires.
    secrets: tuple[str, ...] = ()


_ART = ("MUSICBRAINZ_URL", "ARCHIVE_KEYS")
BASE = {
    "worker": Pods("500m", "512Mi", "2Gi", replicas=2),
    "packer": Pods("250m", "512Mi", "4Gi", disk=("/data/dead", "1Gi")),
    "orchestrator": Pods("100m", "192Mi", "1Gi", one_only=True),
    "searcher": Pods("250m", "256Mi", "2Gi", replicas=2, disk=("/data", "6Gi")),
    "beat": Pods("50m", "128Mi", "256Mi", one_only=True),
    "web": Pods("100m", "256Mi", "1Gi", replicas=2),
    "flower": Pods("50m", "192Mi", "512Mi", secrets=("FLOWER_BASIC_AUTH",)),
}
ART = {
    "coverart": Pods("100m", "384Mi", "1Gi", secrets=_ART),
    "eventart": Pods("100m", "384Mi", "1Gi", secrets=_ART),
    "eventreader": Pods("50m", "128Mi", "512Mi", secrets=("MUSICBRAINZ_URL", "ART_EVENT_QUEUE_URL")),
}
PORTS = {"web": ("/readyz", 8000), "flower": ("/healthcheck", 5555)}


def manifests(processes: Mapping[str, Pods]) -> str:
    """Return the manifests of processes as YAML."""
    text = io.StringIO()
    yaml = YAML()
    yaml.width = 1_000
    yaml.representer.ignore_aliases = lambda _: True
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump_all([workload(name, pods) for name, pods in processes.items()], text)
    return HEADER + text.getvalue()


def workload(name: str, pods: Pods) -> dict[str, Any]:
    """Return the Deployment of a process, or the StatefulSet of one with a disk of its own."""
    labels = {"app.kubernetes.io/name": "perennial", "app.kubernetes.io/component": name}
    spec: dict[str, Any] = {
        "replicas": pods.replicas,
        "selector": {"matchLabels": {**labels}},
        "template": {"metadata": {"labels": {**labels}}, "spec": pod(name, pods)},
    }
    if pods.disk:
        size = {"requests": {"storage": pods.disk[1]}}
        claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": size}}
        spec |= {
            "serviceName": f"perennial-{name}",
            "podManagementPolicy": "Parallel",
            "volumeClaimTemplates": [claim],
        }
    elif pods.one_only:
        spec["strategy"] = {"type": "Recreate"}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet" if pods.disk else "Deployment",
        "metadata": {"name": f"perennial-{name}", "labels": {**labels}},
        "spec": spec,
    }


def pod(name: str, pods: Pods) -> dict[str, Any]:
    """Return the specification of a pod: no rights, no token, a read-only root, and its own secrets alone."""
    files = secret_files(name, pods)
    mounts = {"secrets": SECRETS, "tmp": "/tmp", "data": "/data"}
    if pods.disk:
        mounts["data"] = pods.disk[0]
    volumes: list[dict[str, Any]] = [
        {"name": "secrets", "secret": {"secretName": f"perennial-{name}", "defaultMode": 0o440}},
        {"name": "tmp", "emptyDir": {}},
    ]
    if not pods.disk:
        volumes.append({"name": "data", "emptyDir": {}})
    elif pods.disk[0] != "/data":
        mounts["scratch"] = "/data"
        volumes.append({"name": "scratch", "emptyDir": {}})
    container = {
        "name": name,
        "image": "perennial:local",
        "command": shlex.split(procfile()[name]),
        "envFrom": [
            {"configMapRef": {"name": "perennial-settings"}},
            {"configMapRef": {"name": f"perennial-{name}", "optional": True}},
        ],
        "env": [{"name": variable, "value": f"{SECRETS}/{file}"} for variable, file in files.items()],
        **probes(name),
        "resources": {"requests": {"cpu": pods.cpu, "memory": pods.memory}, "limits": {"memory": pods.limit}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in mounts.items()],
    }
    if name in PORTS:
        container["ports"] = [{"name": "http", "containerPort": PORTS[name][1]}]
    spread = {"matchLabels": {"app.kubernetes.io/component": name}}
    return {
        # Kubernetes would set variables such as PERENNIAL_WEB_PORT for each service.
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": seconds(SERVICES[name]["stop_grace_period"]),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "fsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": spread,
            }
        ],
        "containers": [container],
        "volumes": volumes,
    }


def secret_files(name: str, pods: Pods) -> dict[str, str]:
    """Return the variables that name the files of the secrets of a process, with the keys of its Secret."""
    given = SERVICES[name]["environment"]
    required = [variable for variable, value in given.items() if re.search(r"\$\{\w+:\?", str(value))]
    ours = [variable for variable in required if not variable.startswith("AWS_")]
    files = {f"{key}_FILE": key for key in sorted([*ours, *pods.secrets])}
    return files | ({"AWS_SHARED_CREDENTIALS_FILE": "aws-credentials"} if len(required) > len(ours) else {})


def probes(name: str) -> dict[str, Any]:
    """Return the probes of a process: those over HTTP where it serves it, or else its health check in Compose.

    A process that waits for its broker is not ready. It is started again only after ten minutes of that.
    """
    if name in PORTS:
        path, port = PORTS[name]
        alive: dict[str, Any] = {"httpGet": {"path": "/healthz" if name == "web" else path, "port": port}}
        ready: dict[str, Any] = {"httpGet": {"path": path, "port": port}}
    else:
        alive = ready = {"exec": {"command": ["sh", "-c", SERVICES[name]["healthcheck"]["test"][1]]}}
    every = {"periodSeconds": PERIOD, "timeoutSeconds": 10}
    return {
        "readinessProbe": {**ready, **every},
        "livenessProbe": {**alive, **every, "failureThreshold": FAILURES},
    }


def seconds(text: str) -> int:
    """Return the seconds of a duration such as `70s` or `10m`."""
    return int(text[:-1]) * {"s": 1, "m": 60}[text[-1]]


def written() -> dict[Path, str]:
    """Return the texts of the files that this module writes."""
    return {FOLDER / "base/processes.yaml": manifests(BASE), FOLDER / "art/processes.yaml": manifests(ART)}


if __name__ == "__main__":
    for _path, _text in written().items():
        _path.write_text(_text)
