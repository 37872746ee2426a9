"""Register everything that runs need on a Prefect server: pools, limits, deployments, automations.

`deploy` registers the deployments listed in `deployments/prefect.yaml` and the automations listed
in the other files of that folder. Prefect's commands `prefect deploy` and `prefect automation
create` can register the same entries, but each entry takes a new process. `deploy` can be run
again: pools, limits, schedules and the switches of automations stay as the operator left them. New
schedules are switched off.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectException
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.utilities.callables import parameter_schema
from prefect.workers.process import ProcessWorker

from datamask import __version__
from datamask.errors import SettingsError, StorageError, one_line
from tasks.stages import HUB

ROOT = Path(__file__).resolve().parents[2]
"""The checkout, or the installed package."""
DEPLOYMENTS = ROOT / "deployments"
IN_CHECKOUT = __name__.startswith("flows.")
SETTINGS = {"PREFECT_LOGGING_EXTRA_LOGGERS": "datamask", "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "60"}
"""Settings that flow runs of a checkout find in pyproject.toml, for flow runs of a package."""

MOST_UPLOADS = 2
"""Number of publications at once on all workers; the operator may change the limit on the
server."""


def deploy(
    pool: str | None = None,
    server: str | None = None,
    image: str | None = None,
    folder: Path = DEPLOYMENTS,
) -> Iterator[str]:
    """Register all deployments of a folder, and yield a line about each thing that is done.

    Workers run the flows in the current folder of this call.

    Args:
        pool: the pool of all deployments; None: the pools in prefect.yaml. Absent ones are created.
        server: its URL; None: as in Prefect's settings.
        image: of the jobs in containers; its tag is the version. None: the pool's image.
        folder: has prefect.yaml, automations.yaml and on-events.yaml.

    Raises:
        SettingsError: no server is named, or it refuses something.
        StorageError: the server does not answer.
    """
    address = (server or PREFECT_API_URL.value() or "").rstrip("/")
    if not address:
        raise SettingsError("no Prefect server is named; give --server, or set PREFECT_API_URL")
    if "/api" not in address:
        address += "/api"
    deployments = _of_yaml(folder / "prefect.yaml", "deployments")
    if not IN_CHECKOUT:
        # A script of the checkout makes its corpus.
        deployments = [item for item in deployments if item["name"] != "demo"]
    if pool:
        deployments = [{**item, "work_pool": {"name": pool}} for item in deployments]
    try:
        with temporary_settings({PREFECT_API_URL: address}), get_client(sync_client=True) as client:
            if error := client.api_healthcheck():
                raise error
            yield from _pools(client, {item["work_pool"]["name"] for item in deployments})
            yield f"limit       {_limit(client)}"
            version = image.rpartition(":")[2] if image else _version()
            for item in deployments:
                yield f"deployment  {_deployment(client, item, version, image)}"
            for file in ("automations.yaml", "on-events.yaml"):
                for item in _of_yaml(folder / file, "automations"):
                    yield f"automation  {_automation(client, item)}"
    except httpx.TransportError as error:
        reason = one_line(error) or type(error).__name__
        raise StorageError(f"no Prefect server answers at {address} ({reason})") from None
    except (PrefectException, httpx.HTTPStatusError) as error:
        answer = getattr(error, "response", None)
        reason = one_line(error if answer is None else answer.text)
        raise SettingsError(f"{address}: {reason[:300]}") from None


def _of_yaml(path: Path, key: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))[key]
    return items


def _pools(client: SyncPrefectClient, names: set[str]) -> Iterator[str]:
    template = ProcessWorker.get_default_base_job_template()
    for name in sorted(names):
        new = WorkPoolCreate(name=name, type="process", base_job_template=template)
        try:
            client.create_work_pool(new)
            yield f"pool        {name} (process)"
        except ObjectAlreadyExists:
            yield f"pool        {name} (as it was)"


def _limit(client: SyncPrefectClient) -> str:
    try:
        limit = client.read_concurrency_limit_by_tag(HUB).concurrency_limit
    except ObjectNotFound:
        client.create_concurrency_limit(HUB, limit := MOST_UPLOADS)
    return f"{limit} tasks at once with tag {HUB}"


def _deployment(
    client: SyncPrefectClient, item: dict[str, Any], version: str, image: str | None
) -> str:
    """Register a deployment; return its name."""
    module, _, function = item["entrypoint"].rpartition(".")
    flow: Flow[..., Any] = getattr(importlib.import_module(module), function)
    about = (flow.description or "").partition("\n\nArgs:")[0]
    name = f"{flow.name}/{item['name']}"
    try:
        known = client.read_deployment_by_name(name)
        fields = {"schedule", "active", "parameters", "slug"}
        schedules = [schedule.model_dump(include=fields) for schedule in known.schedules]
        of_known = known.global_concurrency_limit
        limit = of_known.limit if of_known else None
        options, tags = known.concurrency_options, known.tags
    except ObjectNotFound:
        tags = []
        schedules = [
            {"schedule": {"cron": new["cron"], "timezone": new["timezone"]}, "active": False}
            for new in item.get("schedules", [])
        ]
        limit, options = item.get("concurrency_limit"), None
    job = {"image": image, "env": {} if IN_CHECKOUT else SETTINGS}
    step = {"prefect.deployments.steps.set_working_directory": {"directory": os.getcwd()}}
    client.create_deployment(
        client.create_flow_from_name(flow.name),
        item["name"],
        entrypoint=item["entrypoint"],
        work_pool_name=item["work_pool"]["name"],
        job_variables={name: value for name, value in job.items() if value},
        pull_steps=[step],
        parameters=item.get("parameters"),
        parameter_openapi_schema=parameter_schema(flow).model_dump(exclude_unset=True),
        enforce_parameter_schema=True,
        schedules=list(map(DeploymentScheduleCreate.model_validate, schedules)),
        concurrency_limit=limit,
        concurrency_options=options,
        description="\n\n".join(filter(None, (item.get("description"), about))),
        tags=[*dict.fromkeys(["datamask", *item.get("tags", []), *tags])],
        version=version,
    )
    return name


def _automation(client: SyncPrefectClient, item: dict[str, Any]) -> str:
    """Create or update an automation, which stays on or off as it is; return its name and state.

    Its actions name a `deployment` or notification `block`, in place of the ids of this server.
    """
    actions: list[dict[str, Any]] = []
    for given in item["actions"]:
        action = dict(given)
        if name := action.pop("deployment", None):
            action["deployment_id"] = client.read_deployment_by_name(name).id
        if name := action.pop("block", None):
            blocks = client.read_block_documents(include_secrets=False)
            ids = [block.id for block in blocks if block.name == name]
            if not ids:
                return f"{item['name']} (left out: there is no block {name})"
            action["block_document_id"] = ids[0]
        actions.append(action)
    automation = AutomationCore.model_validate({**item, "actions": actions})
    known = client.read_automations_by_name(automation.name)
    if known:
        automation = automation.model_copy(update={"enabled": known[0].enabled})
        client.update_automation(known[0].id, automation)
    else:
        client.create_automation(automation)
    return automation.name if automation.enabled else f"{automation.name} (off)"


def _version() -> str:
    """Return the version of the package, with the commit of a checkout."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    if not IN_CHECKOUT or not shutil.which("git"):
        return __version__
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return f"{__version__}+{commit}" if commit else __version__
