"""Dockerfile, compose file and manifests, as the tools that will read them understand them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from headrace.cli import app
from support.container import ROOT

yaml = pytest.importorskip("yaml")

BIN = Path(sys.executable).parent
KUBERNETES = ROOT / "deploy" / "kubernetes"
# What is applied by itself; the overlays build on the rest.
APPLIED = ["pack", "notebook", *(f"overlays/{folder.name}" for folder in (KUBERNETES / "overlays").iterdir())]
TRAINING = {"1-gpu": (1, 1), "8-gpus": (1, 8), "4-nodes": (4, 8)}
VERSION = "1.33"


def tool(name: str) -> str:
    """A command of this environment, or of the machine."""
    found = shutil.which(name, path=str(BIN)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} isn't installed")
    return found


@cache
def objects(folder: str) -> list[dict[str, Any]]:
    """The manifests that `kubectl apply -k` would send."""
    built = subprocess.run(
        [tool("kubectl"), "kustomize", KUBERNETES / folder], capture_output=True, text=True, check=True
    )
    return list(yaml.safe_load_all(built.stdout))


def one(folder: str, kind: str) -> Any:
    (found,) = (each for each in objects(folder) if each["kind"] == kind)
    return found


def pods(folder: str) -> Iterator[tuple[str, Any]]:
    """Names and specs of what runs."""
    for each in objects(folder):
        if each["kind"] in ("Job", "Deployment"):
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]
        elif each["kind"] == "TrainingRuntime":
            for job in each["spec"]["template"]["spec"]["replicatedJobs"]:
                yield job["name"], job["template"]["spec"]["template"]["spec"]


def containers(pod: Any) -> list[Any]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def test_compose_understands_its_file() -> None:
    shown = subprocess.run(
        [tool("docker-compose"), "-f", ROOT / "compose.yaml", "--profile", "*", "config", "--format", "json"],
        env={**os.environ, "HEADRACE_DATA": "/mnt/imagenet"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    services = json.loads(shown.stdout)["services"]
    assert services.keys() == {"workspace", "train"}
    for service in services.values():
        (gpus,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert (gpus["driver"], gpus["count"], gpus["capabilities"]) == ("nvidia", -1, ["gpu"])
        assert int(service["shm_size"]) == 8 << 30
        assert service["ulimits"]["memlock"] == -1
        data = next(volume for volume in service["volumes"] if volume["target"] == "/data")
        assert (data["source"], data["read_only"]) == ("/mnt/imagenet", True)
    jupyter, ssh = services["workspace"]["ports"]
    assert (jupyter["target"], jupyter["host_ip"]) == (8888, "127.0.0.1")
    assert ssh["target"] == 2222


def test_compose_asks_where_the_data_is() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "HEADRACE_DATA"}
    ended = subprocess.run(
        [tool("docker-compose"), "-f", ROOT / "compose.yaml", "config"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode != 0
    assert "say where the data set is" in ended.stderr


def test_hadolint_has_nothing_to_say() -> None:
    ended = subprocess.run(
        [tool("hadolint"), ROOT / "deploy" / "Dockerfile"], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, "")


@pytest.mark.parametrize("folder", APPLIED)
def test_built_in_kinds_are_what_kubernetes_takes(folder: str) -> None:
    """Unknown fields are errors, too."""
    validate = pytest.importorskip("kubernetes_validate")
    kinds = set()
    for each in objects(folder):
        if each["apiVersion"].startswith(("trainer.kubeflow.org/", "monitoring.coreos.com/")):
            continue
        validate.validate(each, VERSION, strict=True)
        kinds.add(each["kind"])
    assert {"Namespace", "NetworkPolicy", "PersistentVolumeClaim"} <= kinds
    for name, pod in pods(folder):
        alone = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod}
        validate.validate(alone, VERSION, strict=True)


@pytest.mark.parametrize("path", sorted((KUBERNETES / "storage").iterdir()), ids=lambda path: path.stem)
def test_storage_classes_are_what_kubernetes_takes(path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    storage = yaml.safe_load(path.read_text())
    validate.validate(storage, VERSION, strict=True)
    assert storage["parameters"]["encrypted"] == "true"


@pytest.mark.parametrize("overlay", TRAINING)
def test_jobs_are_what_kubeflow_takes(overlay: str) -> None:
    """Through the models of Kubeflow's own package and back: a field that they don't know would be lost."""
    models = pytest.importorskip("kubeflow_trainer_api.models")
    for kind, model in (
        ("TrainJob", models.TrainerV1alpha1TrainJob),
        ("TrainingRuntime", models.TrainerV1alpha1TrainingRuntime),
    ):
        given = one(f"overlays/{overlay}", kind)
        assert json.loads(model.from_dict(given).to_json()) == given


@pytest.mark.parametrize("overlay", TRAINING)
def test_an_overlay_asks_for_its_gpus_and_can_share_its_batch(overlay: str) -> None:
    nodes, gpus = TRAINING[overlay]
    trainer = one(f"overlays/{overlay}", "TrainJob")["spec"]["trainer"]
    assert trainer["numNodes"] == nodes
    for kind in ("requests", "limits"):
        assert trainer["resourcesPerNode"][kind]["nvidia.com/gpu"] == str(gpus)
    (batch,) = (int(a.split("=")[1]) for a in trainer["args"] if a.startswith("--batch-size="))
    assert batch == 256 * nodes * gpus


def test_options_are_those_of_the_command() -> None:
    command = typer.main.get_command(app)
    verbs = command.commands  # type: ignore[attr-defined]
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    lines = [compose["services"]["train"]["command"]]
    lines += [one(f"overlays/{overlay}", "TrainJob")["spec"]["trainer"]["args"] for overlay in TRAINING]
    for line in lines:
        assert line[0] == "train"
        context = verbs["train"].make_context("train", [str(part) for part in line[1:]])
        assert context.params["resume"] == "auto"
        assert context.params["precision"] == "bf16"


@pytest.mark.parametrize("folder", APPLIED)
def test_pods_are_restricted(folder: str) -> None:
    """The Pod Security Standard `restricted`, which the namespace enforces, and a root that is read only."""
    labels = one(folder, "Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    seen = list(pods(folder))
    assert seen
    allowed = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"}
    allowed |= {"projected", "secret"}
    for _, pod in seen:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] != 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert pod["automountServiceAccountToken"] is False
        assert all(volume.keys() - {"name"} <= allowed for volume in pod["volumes"])
        for each in containers(pod):
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize("folder", APPLIED)
def test_objects_that_manifests_refer_to_exist(folder: str) -> None:
    """Claims, volumes, accounts, ports; and images have a registry and a tag."""
    names = {(each["kind"], each["metadata"]["name"]) for each in objects(folder)}
    for _, pod in pods(folder):
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in names
        if "serviceAccountName" in pod:
            assert ("ServiceAccount", pod["serviceAccountName"]) in names
        for each in containers(pod):
            assert {mount["name"] for mount in each["volumeMounts"]} <= volumes.keys()
            registry, tag = each["image"].rsplit(":", 1)
            assert "." in registry.split("/")[0]
            assert tag not in ("", "latest")
    for each in objects(folder):
        namespaced = each["kind"] not in ("Namespace", "ClusterRole", "ClusterRoleBinding")
        assert each["metadata"].get("namespace") == ("headrace" if namespaced else None)


@pytest.mark.parametrize("folder", APPLIED)
def test_no_secret_is_in_a_manifest(folder: str) -> None:
    for each in objects(folder):
        assert each["kind"] != "Secret" or not {"data", "stringData"} & each.keys()


@pytest.mark.parametrize("folder", APPLIED)
def test_nothing_comes_in_or_goes_out_but_by_a_policy(folder: str) -> None:
    policies = [each["spec"] for each in objects(folder) if each["kind"] == "NetworkPolicy"]
    everything = [policy for policy in policies if policy["podSelector"] == {}]
    assert len(everything) == 1
    assert sorted(everything[0]["policyTypes"]) == ["Egress", "Ingress"]
    assert "ingress" not in everything[0]


@pytest.mark.parametrize("overlay", TRAINING)
def test_prometheus_finds_the_proxy_and_the_proxy_the_trainer(overlay: str) -> None:
    monitor = one(f"overlays/{overlay}", "PodMonitor")["spec"]
    ((_, pod),) = pods(f"overlays/{overlay}")
    (proxy,) = pod["initContainers"]
    assert proxy["restartPolicy"] == "Always"
    assert [port["name"] for port in proxy["ports"]] == [e["port"] for e in monitor["podMetricsEndpoints"]]
    runtime = one(f"overlays/{overlay}", "TrainingRuntime")["spec"]["template"]["spec"]["replicatedJobs"][0]
    labels = runtime["template"]["spec"]["template"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    args = one(f"overlays/{overlay}", "TrainJob")["spec"]["trainer"]["args"]
    (port,) = (arg.split("=")[1] for arg in args if arg.startswith("--metrics-port="))
    assert f"--upstream=http://127.0.0.1:{port}/" in proxy["args"]


def test_behind_oauth_jupyter_listens_to_the_proxy_alone() -> None:
    ((_, pod),) = pods("overlays/notebook-oauth")
    notebook, proxy = sorted(pod["containers"], key=lambda each: each["name"])
    assert {"name": "JUPYTER_LISTEN", "value": "127.0.0.1:8888"} in notebook["env"]
    assert "--upstream=http://127.0.0.1:8888/" in proxy["args"]
    assert not [arg for arg in proxy["args"] if arg.startswith(("--client-secret=", "--cookie-secret="))]


def test_what_the_image_holds_is_what_the_rest_names() -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    place = "/usr/local/lib/headrace/entrypoint"
    assert f"COPY --chmod=0755 deploy/entrypoint {place}" in dockerfile
    ((_, pod),) = pods("notebook")
    assert pod["containers"][0]["startupProbe"]["exec"]["command"] == [place, "health"]
    ignored = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [line.split() for line in dockerfile.splitlines() if line.startswith("COPY")]
    for source in (part for line in copied for part in line[1:-1] if not part.startswith("--")):
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored
