"""Divide a stage into parts: child flow runs of one deployment, on as many workers as there are.

A small task starts each part and waits for it. A part whose process or machine is lost ends
Crashed: its worker notices a lost process, the automations in `deployments/automations.yaml` notice
a lost machine. The task then starts the part again with the same shards, and the part does only the
rest. Parts of an earlier launch may still run: a shard's lock lets only one process work on it, and
the next process finds it done.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any
from uuid import UUID

import httpx
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId
from prefect.client.schemas.objects import FlowRun, WorkPoolStatus
from prefect.context import FlowRunContext
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from datamask.config.compute import Compute
from datamask.errors import SettingsError, TerminalError, one_line
from datamask.execution.progress import every
from datamask.runs.run import Run
from datamask.runs.stages import PARALLEL_STAGES, STAGES
from flows.orchestration.progress import Progress, first_log
from flows.orchestration.task_runners import failures
from tasks.forwarding import first_flow_run
from tasks.retrying import server_is_away

logger = logging.getLogger("datamask.parts")

Partitions = Annotated[int, Field(ge=1, le=4096)]
"""Child flow runs that share a stage's shards; 1: the flow run does them itself."""

FLOW = "work-on-shards"
AUTOMATION = "datamask-silent"
"""Name of the automation that marks flow runs of lost machines Crashed:
deployments/automations.yaml."""
REMEDIES: dict[Any, str] = {
    WorkPoolStatus.NOT_READY: "prefect worker start --pool {}",
    WorkPoolStatus.PAUSED: "prefect work-pool resume {}",
}
"""Commands that let waiting flow runs of a pool begin, by the reason of the wait."""
MOST_ATTEMPTS = 3
"""Maximum number of flow runs per part, if each of them is lost."""
POLL_SECONDS = 2.0
SECONDS_BETWEEN_LINES = 60.0
SECONDS_BETWEEN_RETRIES = 30.0
RETRIES = 60
"""Half an hour during which the server may be unavailable; the parts continue meanwhile."""


def own_pool(client: SyncPrefectClient) -> str:
    """Return the pool whose worker runs this process; empty for a process that no worker runs."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return ""
    return client.read_flow_run(first_flow_run(context.flow_run.id)).work_pool_name or ""


def choose_deployment(client: SyncPrefectClient, stage: str) -> tuple[str, str]:
    """Choose the deployment for shards of a stage, and its pool (empty if it has none).

    Stages that use a GPU prefer pool gpu, others pool cpu; if only the other pool has a worker,
    parts go there.

    Raises:
        SettingsError: a deployment is not registered, or no pool has a worker.
    """
    at_rest: dict[str, str] = {}
    kinds = ("gpu", "cpu") if STAGES[stage].on_device else ("cpu", "gpu")
    for number, kind in enumerate(kinds):
        name = f"{FLOW}/{kind}"
        try:
            pool = client.read_deployment_by_name(name).work_pool_name or ""
        except ObjectNotFound:
            if number == 0:
                raise SettingsError(
                    f"partitions: no deployment {name} on this server; `datamask deploy` registers "
                    "it, or leave partitions out"
                ) from None
            continue
        status = client.read_work_pool(pool).status if pool else WorkPoolStatus.READY
        if status not in REMEDIES:
            return name, pool
        at_rest[pool] = "`" + REMEDIES[status].format(pool) + "`"
    raise SettingsError(
        f"partitions: no worker takes parts of stage {stage} from pool {' or '.join(at_rest)}; "
        f"run {' or '.join(at_rest.values())}, or leave partitions out"
    )


def check_deployments(partitions: int, stages: tuple[str, ...] = PARALLEL_STAGES) -> None:
    """Check that the server has what parts need, if there are several.

    Raises:
        SettingsError: no deployment, worker, room beside this flow run, or automation that ends
            lost flow runs.
    """
    if partitions == 1:
        return
    with get_client(sync_client=True) as client:
        own = own_pool(client)
        for stage in {STAGES[name].on_device: name for name in stages}.values():
            name, pool = choose_deployment(client, stage)
            if STAGES[stage].on_device and name == f"{FLOW}/cpu":
                logger.warning(
                    "partitions: pool gpu has no worker, so pool %s does stages such as %s",
                    *(pool, stage),
                )
            if pool and pool == own and client.read_work_pool(pool).concurrency_limit == 1:
                raise SettingsError(
                    f"partitions: pool {pool} has one slot, which this flow run occupies while it "
                    f"waits for parts; run `prefect work-pool set-concurrency-limit {pool} 2`, or "
                    "leave partitions out"
                )
        if not client.read_automations_by_name(AUTOMATION):
            raise SettingsError(
                f"partitions: no automation {AUTOMATION} on this server, without which a part on a "
                "lost machine would never end; `datamask deploy` installs it, or leave partitions "
                "out"
            )


@contextlib.contextmanager
def waits_told(stage: str, flow_run: UUID, pool: str) -> Iterator[None]:
    """Log each minute, to the first flow run, which parts are waited for, and what they need."""
    log = first_log()
    with get_client(sync_client=True) as client:
        is_own = bool(pool) and own_pool(client) == pool
    children = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[flow_run]))

    def tell() -> None:
        with contextlib.suppress(PrefectException, httpx.HTTPError):
            with get_client(sync_client=True) as client:
                flow_runs = client.read_flow_runs(flow_run_filter=children)
                status = client.read_work_pool(pool).status if pool else None
            unfinished = [run.state for run in flow_runs if run.state and not run.state.is_final()]
            counts = Counter(state.name for state in unfinished).items()
            waiting = ", ".join(f"{count} {name}" for name, count in counts)
            rest = f"; run `{REMEDIES[status].format(pool)}`" if status in REMEDIES else ""
            is_stuck = unfinished and not any(state.is_running() for state in unfinished)
            if is_own and is_stuck and not rest:
                second = REMEDIES[WorkPoolStatus.NOT_READY].format(pool)
                rest = "; if the pool's only worker has `--limit 1`, this flow run occupies it"
                rest += f": run `{second}` for a second one"
            log(f"{stage}: waiting for parts in pool {pool}: {waiting or 'none'}{rest}")

    with every(SECONDS_BETWEEN_LINES, tell):
        yield


def run_parts(
    run: Run, stage: str, units: list[int], compute: Compute, force: bool, partitions: int
) -> dict[int, str]:
    """Process units in child flow runs; return why a part did not complete, by unit.

    Raises:
        SettingsError: as in `check_deployments`.
    """
    check_deployments(partitions, (stage,))
    with get_client(sync_client=True) as client:
        deployment, pool = choose_deployment(client, stage)
    context = FlowRunContext.get()
    assert context and context.flow_run, "only flows call this"
    number = min(partitions, len(units))
    shared = {"root": run.address, "stage": stage, "force": force}
    shared["compute"] = compute.model_dump(mode="json")
    # A retried parent starts new flow runs; a retried task finds those that it started.
    launch = f"{context.flow_run.id}/{context.flow_run.run_count}"
    calls = []
    for part in range(number):
        name = f"{run.folder_of(stage, units[0])} of {run.address}, part {part + 1} of {number}"
        parameters = {**shared, "units": units[part::number]}
        given: dict[str, Any] = {"deployment": deployment, "name": name}
        given |= {"parameters": parameters, "launch": launch}
        calls.append((units[part::number], work_on_part.with_options(task_run_name=name), given))
    with (
        waits_told(stage, context.flow_run.id, pool),
        ThreadPoolTaskRunner[Any](max_workers=number) as runner,
    ):
        return failures(runner, calls, Progress(run, stage, len(units)))


@task(
    name="part",
    retries=RETRIES,
    retry_delay_seconds=SECONDS_BETWEEN_RETRIES,
    retry_condition_fn=server_is_away,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def work_on_part(deployment: str, name: str, parameters: dict[str, Any], launch: str) -> None:
    """Start a part and wait for it; start it again if it is lost.

    Its flow run belongs to *deployment* and has this *name*; *parameters* go to flow
    `work-on-shards`.

    Raises:
        TerminalError: the part failed, or was lost MOST_ATTEMPTS times.
    """
    for attempt in range(1, MOST_ATTEMPTS + 1):
        title = name if attempt == 1 else f"{name}, attempt {attempt}"
        ended = run_deployment(
            deployment,
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
