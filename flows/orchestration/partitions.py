"""A stage in parts: child flow runs of one deployment, on as many workers as there are.

A small task starts each part and waits for it. A part whose process or machine is lost ends
Crashed: its worker notices a lost process, the automations in `deployments/automations.yaml` notice
a lost machine. The task then starts the part again with the same shards, and the part does only
what is left. Parts of an earlier launch may still run: a shard's lock lets only one process work on
it, and the next process finds it done.
"""

from __future__ import annotations

import logging
from typing import Annotated, Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, WorkPoolStatus
from prefect.context import FlowRunContext
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from datamask.config.compute import Compute
from datamask.errors import SettingsError, TerminalError, one_line
from datamask.runs.run import Run
from datamask.runs.stages import PARALLEL_STAGES, STAGES
from flows.orchestration.progress import Progress
from flows.orchestration.task_runners import failures
from tasks.retrying import server_is_away

logger = logging.getLogger("datamask.parts")

Partitions = Annotated[int, Field(ge=1, le=4096)]
"""Child flow runs that share a stage's shards; 1: the flow run does them itself."""

FLOW = "work-on-shards"
AUTOMATION = "datamask-silent"
"""Marks flow runs of lost machines Crashed: deployments/automations.yaml."""
AT_REST: dict[Any, str] = {
    WorkPoolStatus.NOT_READY: "has no worker",
    WorkPoolStatus.PAUSED: "is paused",
}
"""Why the flow runs of a pool wait."""
MOST_ATTEMPTS = 3
"""Maximum number of flow runs per part, if each of them is lost."""
POLL_SECONDS = 2.0
SECONDS_BETWEEN_RETRIES = 30.0
RETRIES = 60
"""Half an hour during which the server may be unavailable; the parts continue meanwhile."""


def part_deployment(stage: str) -> str:
    """The deployment for shards of a stage: one for GPU machines, one for the others."""
    return f"{FLOW}/{'gpu' if STAGES[stage].on_device else 'cpu'}"


def check_deployments(partitions: int, stages: tuple[str, ...] = PARALLEL_STAGES) -> None:
    """Check that the server has what parts need, if there are several; warn of pools at rest.

    Raises:
        SettingsError: a deployment, or the automation that ends lost flow runs, is not registered.
    """
    if partitions == 1:
        return
    pools = set[str]()
    with get_client(sync_client=True) as client:
        for name in sorted({part_deployment(stage) for stage in stages}):
            try:
                pools.add(client.read_deployment_by_name(name).work_pool_name or "")
            except ObjectNotFound:
                raise SettingsError(
                    f"partitions: no deployment {name} on this server; `datamask deploy` registers "
                    "it, or leave partitions out"
                ) from None
        if not client.read_automations_by_name(AUTOMATION):
            raise SettingsError(
                f"partitions: no automation {AUTOMATION} on this server, without which a part on a "
                "lost machine would never end; `datamask deploy` installs it, or leave partitions "
                "out"
            )
        for pool in sorted(filter(None, pools)):
            if reason := AT_REST.get(client.read_work_pool(pool).status):
                logger.warning("partitions: pool %s %s; its parts of stages wait", pool, reason)


def run_parts(
    run: Run, stage: str, units: list[int], compute: Compute, force: bool, partitions: int
) -> dict[int, str]:
    """Process units in child flow runs; the reason of each unit whose part did not complete.

    Raises:
        SettingsError: the deployment or the automation is not registered.
    """
    check_deployments(partitions, (stage,))
    context = FlowRunContext.get()
    assert context and context.flow_run, "only flows call this"
    if STAGES[stage].on_device and context.flow_run.work_pool_name:
        logger.warning(
            "%s: this flow run occupies a worker of pool %s while it waits; if its parts need that "
            "pool, start the flow's deployment of pool cpu instead",
            stage,
            context.flow_run.work_pool_name,
        )
    number = min(partitions, len(units))
    shared = {"root": run.address, "stage": stage, "force": force}
    shared["compute"] = compute.model_dump(mode="json")
    # A retried parent starts new flow runs; a retried task finds those that it started.
    launch = f"{context.flow_run.id}/{context.flow_run.run_count}"
    calls = []
    for part in range(number):
        name = f"{run.folder_of(stage, units[0])} of {run.address}, part {part + 1} of {number}"
        parameters = {**shared, "units": units[part::number]}
        given = {"name": name, "parameters": parameters, "launch": launch}
        calls.append((units[part::number], work_on_part.with_options(task_run_name=name), given))
    with ThreadPoolTaskRunner[Any](max_workers=number) as runner:
        return failures(runner, calls, Progress(stage, len(units)))


@task(
    name="part",
    retries=RETRIES,
    retry_delay_seconds=SECONDS_BETWEEN_RETRIES,
    retry_condition_fn=server_is_away,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def work_on_part(name: str, parameters: dict[str, Any], launch: str) -> None:
    """Start a part and wait for it; start it again if it is lost.

    *name* is that of its flow run, and *parameters* are those of flow `work-on-shards`.

    Raises:
        TerminalError: the part failed, or was lost MOST_ATTEMPTS times.
    """
    for attempt in range(1, MOST_ATTEMPTS + 1):
        title = name if attempt == 1 else f"{name}, attempt {attempt}"
        ended = run_deployment(
            part_deployment(parameters["stage"]),
            parameters=parameters,
            flow_run_name=title,
            # A second call with this key waits for the same flow run.
            idempotency_key=f"{launch}/{title}",
            as_subflow=True,
            poll_interval=POLL_SECONDS,
        )
        assert isinstance(ended, FlowRun)
        assert ended.state is not None, "it has ended"
        if ended.state.is_completed():
            return
        message = one_line(ended.state.message or ended.state.name or "")
        if not ended.state.is_crashed():
            break
        logger.warning("%s: %s", title, message)
    raise TerminalError(f"{name}: {message}")
