"""The templates of deployments/: each against the schema of what will read it."""

import asyncio
import configparser
import importlib
import itertools
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from datamask.config.loading import load_settings
from tests.cli.commands import here

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


@pytest.mark.parametrize("name", POOLS)
def test_kubernetes_pools_make_jobs(name):
    """Prefect's server and worker take the template, and Kubernetes knows every key of the job."""
    from prefect.server.schemas.actions import WorkPoolCreate

    template = pool(name)
    WorkPoolCreate(name=name, type="kubernetes", base_job_template=template)
    made = job(name, image="registry/datamask:1")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry/datamask:1"
    assert "{{" not in json.dumps(made)
    gpus = container["resources"]["limits"].get("nvidia.com/gpu")
    assert gpus == (None if name == "cpu" else "1")


@pytest.mark.parametrize("name", POOLS)
def test_jobs_fit_the_schema_of_kubernetes(name):
    """The strict schemas of the newest release and of one of 2023; a misplaced key is refused."""
    made = job(name)
    for version in ("1.28", kubernetes_validate.latest_version()):
        kubernetes_validate.validate(made, version, strict=True)
    # As in Prefect's own template.
    made["spec"]["template"]["spec"]["completions"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="completions"):
        kubernetes_validate.validate(made, version, strict=True)


@pytest.mark.parametrize("name", POOLS)
def test_variables_of_pools_are_declared_used_and_valid(name):
    """Each variable has a meaning, its default is in its range, and nothing else is asked for."""
    template = pool(name)
    variables = template["variables"]
    jsonschema.Draft202012Validator.check_schema(variables)
    defaults = {key: value["default"] for key, value in variables["properties"].items()}
    jsonschema.validate(defaults, variables)
    used = re.findall(r"\{\{ (\w+) \}\}", json.dumps(template["job_configuration"]))
    assert set(used) == set(variables["properties"])
    assert all(value["description"] for value in variables["properties"].values())


def schema_errors(schema: str, *paths: Path) -> str:
    """Check files with check-jsonschema, by one of the schemas that it carries."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*command, *map(str, paths)], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_workflows_fit_the_schema_of_github():
    """Every workflow; what is released is the image that deployments/ uses, too."""
    folder = FOLDER.parent / ".github/workflows"
    example = FOLDER / "deploy-from-github.yml"
    assert schema_errors("github-workflows", *sorted(folder.glob("*.yml")), example) == ""
    jobs = yaml.safe_load((folder / "release.yml").read_text())["jobs"]
    steps = " ".join(step.get("run", "") for step in jobs["image"]["steps"])
    assert "--file deployments/Dockerfile" in steps and "docker push" in steps


def test_workflows_run_only_what_is_pinned():
    """Actions are commits, tools of a release have hashes, and jobs with an identity run no code.

    A job with `id-token: write` can publish in the project's name.
    """
    folder = FOLDER.parent / ".github"
    for path in (*(folder / "workflows").glob("*.yml"), FOLDER / "deploy-from-github.yml"):
        text = path.read_text()
        used = re.findall(r"uses: *(.+)", text)
        assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+){2}", one) for one in used)
        whole = yaml.safe_load(text)
        assert "id-token" not in whole.get("permissions", {})
        for job in whole["jobs"].values():
            if "id-token" in job.get("permissions", {}):
                assert not any("run" in step for step in job["steps"])
            for command in (step.get("run", "") for step in job["steps"]):
                assert "pip install" not in command or "--require-hashes" in command
    lines = (folder / "requirements-release.txt").read_text().replace("\\\n", " ").splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    assert all("==" in line and "--hash=sha256:" in line for line in pinned)
    wanted = [
        line
        for line in (folder / "requirements-release.in").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert {*wanted} <= {line.partition("==")[0] for line in pinned}


def test_compose_file(tmp_path):
    """The schema of the Compose Specification, and every name in it leads somewhere."""
    text = (FOLDER / "compose.yaml").read_text()
    assert schema_errors("compose-spec", FOLDER / "compose.yaml") == ""
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(text.replace("interval: 5s", "intervall: 5s"))
    assert "intervall" in schema_errors("compose-spec", wrong)
    data = yaml.safe_load(text)
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


def test_the_image_holds_what_the_file_copies():
    """Every COPY of the Dockerfile copies something that the repository has."""
    for line in (FOLDER / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY "):
            for source in line.split()[1:-1]:
                assert (FOLDER.parent / source).exists(), line


def test_slurm_script(tmp_path):
    """Bash and shellcheck accept it; it passes its arguments on to the command, in the checkout."""
    script = FOLDER / "slurm" / "rebuild.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    found = subprocess.run(
        [shutil.which("shellcheck", path=Path(sys.executable).parent) or "shellcheck", str(script)],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout
    options = re.findall(r"^#SBATCH --([a-z-]+)=?", script.read_text(), re.MULTILINE)
    assert {"array", "requeue", "time", "output"} <= set(options)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    srun = tmp_path / ".venv/bin/srun"
    srun.write_text('#!/bin/sh\npwd -P; echo "$DATAMASK_CACHE"; printf "%s\\n" "$@"\n')
    srun.chmod(0o755)
    environment = {**os.environ, "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_TMPDIR": "/scratch"}
    environment.pop("DATAMASK_CACHE", None)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(script), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    assert run().returncode == 2 and "usage" in run().stderr
    lines = run("runs/a b", "--set", "seed=1").stdout.splitlines()
    expected = ["/scratch/datamask", "datamask", "rebuild", "runs/a b", "--set", "seed=1"]
    assert lines == [str(tmp_path.resolve()), *expected]


def test_systemd_unit(tmp_path):
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


def test_deployments_lead_to_flows_and_parts_to_deployments():
    """Every entry point is a flow, and every stage of shards has a deployment for its parts."""
    from prefect import Flow

    from flows.orchestration.partitions import FLOW

    registered = set()
    files = ("prefect.yaml", "variants.yaml")
    items = [yaml.safe_load((FOLDER / file).read_text())["deployments"] for file in files]
    for item in itertools.chain(*items):
        module, _, name = item["entrypoint"].rpartition(".")
        flow = getattr(importlib.import_module(module), name)
        assert isinstance(flow, Flow), item["entrypoint"]
        registered.add(f"{flow.name}/{item['name']}")
        assert item["work_pool"]["name"] in POOLS
    assert {f"{FLOW}/cpu", f"{FLOW}/gpu"} <= registered
    automations = yaml.safe_load((FOLDER / "on-events.yaml").read_text())["automations"]
    actions = [action for automation in automations for action in automation["actions"]]
    assert {action["deployment"] for action in actions if "deployment" in action} <= registered


def test_deploy_without_a_server_ends_in_one_line(capsys):
    """No server is named (status 2), or none answers (75)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        absent = f"http://127.0.0.1:{free.getsockname()[1]}"
    for options, status in (((), 2), (("--server", absent), 75)):
        assert here("deploy", *options) == status
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "metric", "weight", "pruned"),
    [
        ("fineweb", "facility_location", 0.3, 0.7),
        ("paper", "disf", 0.5, 0.4),
        ("demo-semantic", "facility_location", 0.3, 0.7),
    ],
)
def test_settings_are_the_recipes_they_are_named_after(name, metric, weight, pruned):
    """The recommended recipe and that of the paper."""
    settings, _ = load_settings(FOLDER / f"{name}.yaml")
    selection = settings.selection
    assert (selection.metric, selection.quality_weight) == (metric, weight)
    assert settings.prune_fraction == pruned
    assert selection.estimator == ("policy_gradient" if name == "paper" else "auto")
