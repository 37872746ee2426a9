"""A stage in parts: child flow runs of one deployment, on as many workers as there are.

A small task starts each part and waits for it. A part whose process or machine is lost ends
Crashed: its worker notices a lost process, the automations in `deployments/automations.yaml` a lost
machine. The task then starts the part again with the same shards, of which the part does only what
is left. Parts of an earlier launch that are still under way need no care: a shard's lock lets only
one process work on it, and the next one finds it done.
"""

from __future__ import annotations

import logging
from typing import Annotated, Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.futures import PrefectFuture, as_completed
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from datamask.config.compute import Compute
from datamask.errors import SettingsError, TerminalError, describe
from datamask.runs.run import Run
from datamask.runs.stages import STAGES
from flows.orchestration.progress import Progress
from tasks.retrying import error_of, server_is_away

logger = logging.getLogger("datamask.parts")

Partitions = Annotated[int, Field(ge=1, le=4096)]
"""Child flow runs that a stage is dealt to; 1: the flow run works by itself."""

FLOW = "work-on-shards"
AUTOMATION = "datamask-silent"
"""Marks flow runs of lost machines Crashed: deployments/automations.yaml."""
MOST_ATTEMPTS = 3
"""Flow runs that are started for a part, if each of them is lost."""
POLL_SECONDS = 2.0
SECONDS_BETWEEN_RETRIES = 30.0
RETRIES = 60
"""Half an hour in which the server may be away; the parts continue meanwhile."""


def part_deployment(stage: str) -> str:
    """The deployment that works on shards of a stage: one for GPU machines, one for the others."""
    return f"{FLOW}/{'gpu' if STAGES[stage].on_device else 'cpu'}"


def check_deployments(stages: tuple[str, ...]) -> None:
    """Look for what parts need of the server, before anything is done.

    Raises:
        SettingsError: a deployment, or the automation that ends lost flow runs, is not registered.
    """
    with get_client(sync_client=True) as client:
        for name in sorted({part_deployment(stage) for stage in stages}):
            try:
                client.read_deployment_by_name(name)
            except ObjectNotFound:
                raise SettingsError(
                    f"partitions: no deployment {name} on this server; register it (`make deploy`, "
                    f"or `prefect deploy -n {name} --prefect-file deployments/prefect.yaml`), or "
                    "leave partitions out"
                ) from None
        if not client.read_automations_by_name(AUTOMATION):
            raise SettingsError(
                f"partitions: no automation {AUTOMATION} on this server, without which a part on a "
                "lost machine would never end; install it (`make deploy`, or `prefect automation "
                "create --from-file deployments/automations.yaml`), or leave partitions out"
            )


def run_parts(
    run: Run, stage: str, units: list[int], compute: Compute, force: bool, partitions: int
) -> dict[int, str]:
    """Deal these units to child flow runs; of parts that did not complete, the reason by unit.

    Raises:
        SettingsError: the deployment or the automation is not registered.
    """
    check_deployments((stage,))
    context = FlowRunContext.get()
    assert context and context.flow_run, "only flows call this"
    if STAGES[stage].on_device and context.flow_run.work_pool_name:
        logger.warning(
            "%s: this flow run waits on a worker of pool %s; if its parts need workers of the same "
            "pool, they are one short (use the flow's deployment of pool cpu)",
            stage,
            context.flow_run.work_pool_name,
        )
    number = min(partitions, len(units))
    shared = {
        "root": run.address,
        "stage": stage,
        "force": force,
        "compute": compute.model_dump(mode="json"),
    }
    reasons: dict[int, str] = {}
    progress = Progress(stage, number)
    # A retried parent starts anew; a task that is tried again finds the flow runs it started.
    launch = f"{context.flow_run.id}/{context.flow_run.run_count}"
    with ThreadPoolTaskRunner[Any](max_workers=number) as runner:
        futures: dict[PrefectFuture[Any], list[int]] = {}
        for part in range(number):
            name = f"{run.folder_of(stage, units[0])} of {run.address}, part {part + 1} of {number}"
            parameters = {**shared, "units": units[part::number]}
            given = {"name": name, "parameters": parameters, "launch": launch}
            named = work_on_part.with_options(task_run_name=name)
            futures[runner.submit(named, given)] = units[part::number]
        for done, future in enumerate(as_completed(list(futures)), 1):
            future.wait()  # only this fetches the final state
            if not future.state.is_completed():
                reason = describe(error_of(future.state))
                reasons |= dict.fromkeys(futures[future], reason)
            progress.show(done)
    return reasons


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

    Args:
        name: of the flow run.
        parameters: of flow `work-on-shards`.
        launch: what distinguishes this launch from an earlier one.

    Raises:
        TerminalError: the part failed, or was lost again and again.
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
        message = " ".join((ended.state.message or ended.state.name or "").split())
        if not ended.state.is_crashed():
            break
        logger.warning("%s: %s", title, message)
    raise TerminalError(f"{name}: {message}")
