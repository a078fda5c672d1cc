"""The manifests for Kubernetes: valid, complete, and true to the Procfile, the settings and docker-compose.yml."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from pydantic import SecretStr
from ruamel.yaml import YAML

from app.cli.config import variable_of
from app.processes.procfile import procfile
from config.settings import ROOT, Settings

pytestmark = pytest.mark.unit

FOLDER = ROOT / "docs/kubernetes"
SERVICES: dict[str, Any] = YAML(typ="safe").load((ROOT / "docker-compose.yml").read_text())["services"]
#: The processes of cover art.
ART = {name for name in procfile() if "profiles" in SERVICES[name]}
#: Where a pod has the secrets of its process, each in a file.
SECRETS = "/run/secrets/perennial"

#: The version of Kubernetes whose schemas the manifests are compared with.
KUBERNETES = "1.31"

Manifest = dict[str, Any]


def manifests(*folders: str) -> list[Manifest]:
    return [each for folder in folders for each in manifests_of(folder)]


@cache
def manifests_of(folder: str) -> list[Manifest]:
    files = sorted((FOLDER / folder).glob("*.yaml"))
    return [each for file in files for each in YAML(typ="safe").load_all(file.read_text())]


def of_kind(*kinds: str) -> list[Manifest]:
    return [each for each in manifests("base", "art", "keda") if each["kind"] in kinds]


def workloads() -> list[Manifest]:
    return of_kind("Deployment", "StatefulSet", "Job")


def container(workload: Manifest) -> Manifest:
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(only)


def test_the_processes_are_those_of_the_procfile_with_the_same_commands() -> None:
    commands = {container(each)["name"]: container(each)["command"] for each in workloads() if each["kind"] != "Job"}
    assert commands == {name: shlex.split(command) for name, command in procfile().items()}
    assert {container(each)["name"] for each in manifests("art") if each["kind"] == "Deployment"} == ART


def test_grace_periods_health_checks_and_secrets_are_those_of_compose() -> None:
    for each in workloads():
        if each["kind"] == "Job":
            continue
        only = container(each)
        service = SERVICES[only["name"]]
        seconds = int(service["stop_grace_period"][:-1]) * {"s": 1, "m": 60}[service["stop_grace_period"][-1]]
        assert each["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == seconds, only["name"]
        for probe in (only["readinessProbe"], only["livenessProbe"]):
            check = ["sh", "-c", service["healthcheck"]["test"][1]]
            assert "httpGet" in probe or probe["exec"]["command"] == check, only["name"]
        required = {name for name, value in service["environment"].items() if re.search(r"\$\{\w+:\?", str(value))}
        files = {"AWS_SHARED_CREDENTIALS_FILE" if name.startswith("AWS_") else f"{name}_FILE" for name in required}
        assert files <= {variable["name"] for variable in only["env"]}, only["name"]


def test_the_job_makes_what_the_services_of_compose_make_that_end() -> None:
    (job,) = of_kind("Job")
    commands = [SERVICES[name]["command"].removeprefix("sh -c ").strip('"') for name in ("bucket", "accounts")]
    assert container(job)["command"] == ["sh", "-c", " && ".join(commands)]


def test_every_manifest_is_valid_by_the_schemas_of_kubernetes() -> None:
    checked = [each for each in manifests("base", "art") if "kustomize" not in each["apiVersion"]]
    for each in checked:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
    assert len(checked) > len(procfile())


def test_every_secret_is_a_file_and_every_other_variable_a_setting() -> None:
    fields = {variable_of(name, field): field for name, field in Settings.model_fields.items()}
    secrets = {f"{name}_FILE" for name, field in fields.items() if field.annotation is SecretStr}
    for each in workloads():
        for variable in container(each)["env"]:
            if variable["name"] != "DECLARE_TOPOLOGY":
                assert variable["name"] in {*secrets, "AWS_SHARED_CREDENTIALS_FILE"}
                assert variable["value"].startswith(f"{SECRETS}/")
    (base,) = (each for each in manifests("base") if each["kind"] == "Kustomization")
    (common,) = base["configMapGenerator"]
    literals = {each.partition("=")[0] for each in common["literals"]}
    assert literals <= {*fields, "AWS_EC2_METADATA_DISABLED"}
    assert not literals & {name.removesuffix("_FILE") for name in secrets}


def test_no_pod_has_rights_and_each_has_limits_and_probes() -> None:
    for each in workloads():
        pod, only = each["spec"]["template"]["spec"], container(each)
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        assert only["securityContext"]["readOnlyRootFilesystem"]
        assert only["resources"]["limits"]["memory"]
        assert each["kind"] == "Job" or {"readinessProbe", "livenessProbe"} <= only.keys()


def test_selectors_and_policies_name_processes_and_each_process_has_a_policy_for_what_it_connects_to() -> None:
    names = {*procfile(), "setup"}
    governed: list[str] = []
    for each in of_kind("NetworkPolicy"):
        for expression in each["spec"]["podSelector"].get("matchExpressions", ()):
            governed += expression["values"] if "Egress" in each["spec"]["policyTypes"] else []
            assert set(expression["values"]) <= names
    assert sorted(governed) == sorted(names)
    for each in of_kind("Service"):
        assert each["spec"]["selector"]["app.kubernetes.io/component"] in names
    for each in of_kind("StatefulSet"):
        assert each["spec"]["serviceName"] in {service["metadata"]["name"] for service in of_kind("Service")}
    (scaled,) = of_kind("ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["name"] in {each["metadata"]["name"] for each in workloads()}
    queues = re.findall(r"site\.\w+", procfile()["worker"])
    assert {each["metadata"]["queueName"] for each in scaled["spec"]["triggers"]} <= set(queues)


def test_the_example_gives_each_process_the_secrets_that_it_names() -> None:
    (example,) = manifests("example")
    given = {each["name"]: {file.partition("=")[0] for file in each["files"]} for each in example["secretGenerator"]}
    named = {
        each["metadata"]["name"]: {
            variable["value"].rpartition("/")[2]
            for variable in container(each)["env"]
            if variable["name"].endswith("_FILE")
        }
        for each in workloads()
        if container(each)["name"] not in ART
    }
    named["perennial-worker"].add("SITE_SECRETS")
    assert given == named


def test_kustomize_builds_the_example_and_cover_art(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    overlay = tmp_path / "example/kustomization.yaml"
    (tmp_path / "example/secrets").mkdir()
    for name in re.findall(r"=secrets/(.+)", overlay.read_text()):
        (tmp_path / "example/secrets" / name).write_text("hush4711\n")
    overlay.write_text(overlay.read_text().replace("  - ../keda\n", "  - ../keda\n  - ../art\n"))
    # That of Debian 12 knows no components; this one came with the tests' dependencies.
    command = [str(Path(sys.executable).with_name("kubectl")), "kustomize", str(overlay.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    built = list(YAML(typ="safe").load_all(done.stdout))
    assert {each["kind"] for each in built} >= {"Secret", "ConfigMap", "ScaledObject", "StatefulSet"}
    workloads = [each for each in built if each["kind"] in ("Deployment", "StatefulSet", "Job")]
    assert len(workloads) == len(procfile()) + 1
    for each in workloads:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
        assert container(each)["image"] == "registry.example/perennial:0.1.0"
        mounted = each["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"]
        made = {secret["metadata"]["name"] for secret in built if secret["kind"] == "Secret"}
        assert mounted in made or container(each)["name"] in ART
