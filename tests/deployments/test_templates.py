"""The templates of deployments/: each against the schema of what will read it."""

from __future__ import annotations

import asyncio
import configparser
import importlib
import json
import re
import shlex
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "deployments"
POOLS = ("cpu", "gpu")


def pool(name: str) -> dict[str, Any]:
    """The base job template of a Kubernetes pool."""
    found: dict[str, Any] = json.loads((FOLDER / "kubernetes" / f"{name}-pool.json").read_text())
    return found


def job(name: str, **values: object) -> dict[str, Any]:
    """The Kubernetes job that Prefect's worker makes of it for a flow run."""
    pytest.importorskip("prefect_kubernetes", reason="prefect-kubernetes is not installed")
    from prefect.client.schemas.objects import FlowRun
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

    # No server is asked; without an address Prefect would start one.
    with temporary_settings({PREFECT_API_URL: "http://server:4200/api"}):
        made = asyncio.run(
            KubernetesWorkerJobConfiguration.from_template_and_values(pool(name), dict(values))
        )
        made.prepare_for_flow_run(FlowRun(id=uuid.uuid4(), flow_id=uuid.uuid4(), name="selection"))
    return made.job_manifest


def unknown(value: Any, kind: str, path: str = "job") -> list[str]:
    """Keys that the Kubernetes model of this kind does not have, and values of another type."""
    from kubernetes_asyncio.client import models

    if match := re.fullmatch(r"list\[(.*)\]", kind):
        if not isinstance(value, list):
            return [f"{path}: not a list"]
        return [p for i, one in enumerate(value) for p in unknown(one, match[1], f"{path}[{i}]")]
    if match := re.fullmatch(r"dict\(str, (.*)\)", kind):
        return [p for k, one in value.items() for p in unknown(one, match[1], f"{path}.{k}")]
    if hasattr(models, kind):
        model = getattr(models, kind)
        names = {json_name: name for name, json_name in model.attribute_map.items()}
        found = [f"{path}.{key}" for key in value if key not in names]
        for key, one in value.items():
            if key in names and one is not None:
                found += unknown(one, model.openapi_types[names[key]], f"{path}.{key}")
        return found
    simple = {"str": str, "int": int, "bool": bool, "object": object}
    return [] if isinstance(value, simple[kind]) else [f"{path}: {value!r} is no {kind}"]


@pytest.mark.parametrize("name", POOLS)
def test_kubernetes_pools_make_jobs(name: str) -> None:
    """Prefect's server and worker take the template, and Kubernetes knows every key of the job."""
    from prefect.server.schemas.actions import WorkPoolCreate

    template = pool(name)
    WorkPoolCreate(name=name, type="kubernetes", base_job_template=template)
    made = job(name, image="registry/datamask:1")
    assert unknown(made, "V1Job") == []
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry/datamask:1"
    assert "{{" not in json.dumps(made)
    gpus = container["resources"]["limits"].get("nvidia.com/gpu")
    assert gpus == (None if name == "cpu" else "1")


def test_the_walk_sees_a_misplaced_key() -> None:
    """As in Prefect's own template, which has `completions` in the pod's part of the job."""
    made = job("cpu")
    made["spec"]["template"]["spec"]["completions"] = 1
    made["spec"]["backoffLimit"] = "none"
    assert unknown(made, "V1Job") == [
        "job.spec.backoffLimit: 'none' is no int",
        "job.spec.template.spec.completions",
    ]


@pytest.mark.parametrize("name", POOLS)
def test_variables_of_pools_are_declared_used_and_valid(name: str) -> None:
    """Each variable has a meaning, its default is in its range, and nothing else is asked for."""
    template = pool(name)
    variables = template["variables"]
    jsonschema.Draft202012Validator.check_schema(variables)
    defaults = {key: value["default"] for key, value in variables["properties"].items()}
    jsonschema.validate(defaults, variables)
    used = re.findall(r"\{\{ (\w+) \}\}", json.dumps(template["job_configuration"]))
    assert set(used) == set(variables["properties"])
    assert all(value["description"] for value in variables["properties"].values())


STRING = {"type": "string"}
STRINGS = {"type": "array", "items": STRING}
COMMAND = {"anyOf": [STRING, STRINGS]}
DEVICE = {
    "type": "object",
    "required": ["capabilities"],
    "properties": {
        "driver": STRING,
        "device_ids": STRINGS,
        "count": {"type": ["integer", "string"]},
        "capabilities": STRINGS,
    },
    "additionalProperties": False,
}
SERVICE = {
    "type": "object",
    "properties": {
        "image": STRING,
        "build": {
            "type": "object",
            "properties": {"context": STRING, "dockerfile": STRING},
            "additionalProperties": False,
        },
        "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]},
        "command": COMMAND,
        "environment": {"type": "object", "additionalProperties": STRING},
        "volumes": STRINGS,
        "ports": STRINGS,
        "profiles": STRINGS,
        "depends_on": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["condition"],
                "properties": {
                    "condition": {
                        "enum": [
                            "service_started",
                            "service_healthy",
                            "service_completed_successfully",
                        ]
                    }
                },
                "additionalProperties": False,
            },
        },
        "healthcheck": {
            "type": "object",
            "properties": {
                "test": COMMAND,
                "interval": {"type": "string", "pattern": r"^\d+(s|m)$"},
                "retries": {"type": "integer"},
            },
            "additionalProperties": False,
        },
        "deploy": {
            "type": "object",
            "properties": {
                "resources": {
                    "type": "object",
                    "properties": {
                        "reservations": {
                            "type": "object",
                            "properties": {"devices": {"type": "array", "items": DEVICE}},
                            "additionalProperties": False,
                        }
                    },
                    "additionalProperties": False,
                }
            },
            "additionalProperties": False,
        },
    },
    "required": ["image"],
    "additionalProperties": False,
}
COMPOSE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"},
        "services": {"type": "object", "additionalProperties": SERVICE},
        "volumes": {"type": "object", "additionalProperties": {"type": ["object", "null"]}},
    },
    "patternProperties": {"^x-": {}},
    "additionalProperties": False,
    "required": ["services"],
}
"""What this file uses of the Compose Specification, closed to everything else."""


def test_compose_file() -> None:
    """The form of the Compose Specification, and every name in it leads somewhere."""
    data = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    jsonschema.validate(data, COMPOSE)
    services = data["services"]
    deployments = yaml.safe_load((FOLDER / "prefect.yaml").read_text())["deployments"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        for volume in service.get("volumes", []):
            source = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", volume).split(":")[0]
            assert source.startswith("/") or source in data["volumes"], volume
        if "build" in service:
            context = (FOLDER / service["build"]["context"]).resolve()
            assert (context / service["build"]["dockerfile"]).is_file()
        for needed, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[needed], needed
    workers = [services[name]["command"] for name in ("worker-cpu", "worker-gpu")]
    served = {re.search(r"--pool (\w+)", command)[1] for command in workers}  # type: ignore[index]
    assert served == {deployment["work_pool"]["name"] for deployment in deployments}


def test_the_image_holds_what_the_file_copies() -> None:
    """Every COPY of the Dockerfile is of something in the repository."""
    for line in (FOLDER / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY "):
            for source in line.split()[1:-1]:
                assert (FOLDER.parent / source).exists(), line


def test_systemd_unit(tmp_path: Path) -> None:
    """A unit systemd accepts (asked where it is installed), one GPU an instance."""
    unit = FOLDER / "systemd" / "datamask-gpu@.service"
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    assert parser.sections() == ["Unit", "Service", "Install"]
    assert "CUDA_VISIBLE_DEVICES=%i" in shlex.split(parser["Service"]["Environment"])
    command = shlex.split(parser["Service"]["ExecStart"])
    assert command[command.index("--pool") + 1] == "gpu"
    assert command[command.index("--limit") + 1] == "1"
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze on this machine: only the unit's form was looked at")
    # Its folder and program are not on this machine.
    text = unit.read_text().replace(command[0], "/bin/true")
    (tmp_path / "datamask-gpu@0.service").write_text(text)
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "datamask-gpu@0.service")],
        capture_output=True,
        text=True,
    )
    if "Failed to initialize manager" in verified.stderr:
        pytest.skip(f"systemd-analyze does not work here: {verified.stderr.strip()}")
    assert verified.returncode == 0, verified.stderr
    assert "Unknown" not in verified.stderr, verified.stderr


def test_deployments_lead_to_flows_and_parts_to_deployments() -> None:
    """Every entry point is a flow, and every stage of shards has a deployment for its parts."""
    from prefect import Flow

    from datamask.runs.stages import SHARD_STAGES
    from flows.orchestration.partitions import part_deployment

    registered = set()
    for item in yaml.safe_load((FOLDER / "prefect.yaml").read_text())["deployments"]:
        module, _, name = item["entrypoint"].rpartition(".")
        flow = getattr(importlib.import_module(module), name)
        assert isinstance(flow, Flow), item["entrypoint"]
        registered.add(f"{flow.name}/{item['name']}")
        assert item["work_pool"]["name"] in POOLS
    assert {part_deployment(stage) for stage in SHARD_STAGES} <= registered
