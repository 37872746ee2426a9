"""A stage in parts: child flow runs of one deployment, on as many workers as there are.

The parent waits. A part whose process or machine is lost is begun again with what is left of it; a
part that fails stops no other. A parent that is retried or launched anew takes over parts of an
earlier one that are still under way, and starts others for the rest only.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, TypeVar
from uuid import UUID

import httpx
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.context import FlowRunContext
from prefect.deployments import run_deployment
from prefect.events.filters import (
    EventFilter,
    EventNameFilter,
    EventOccurredFilter,
    EventResourceFilter,
)
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import get_current_settings
from prefect.states import Crashed
from pydantic import Field

from datamask.config.compute import Compute
from datamask.errors import SettingsError, TransientError
from datamask.runs.run import Run
from datamask.runs.stages import ON_DEVICE

logger = logging.getLogger("datamask.parts")

Partitions = Annotated[int, Field(ge=1, le=4096)]
"""Child flow runs that a stage is dealt to; 1: the flow run works by itself."""

FLOW = "work-on-shards"
TAG = "datamask-part"
AGAIN = ", attempt "
MOST_ATTEMPTS = 3
POLL_SECONDS = 2.0
SECONDS_BETWEEN_LOOKS = 30.0
"""Between looks at heartbeats, and between lines that tell what is being waited for."""
MISSED_HEARTBEATS = 4
PENDING_PATIENCE_SECONDS = 3600.0
"""Longer than a node of a cluster takes to be started for a job."""
SERVER_PATIENCE_SECONDS = 1800.0
PAGE = 200
ACTIVE = [
    StateType.SCHEDULED,
    StateType.PENDING,
    StateType.RUNNING,
    StateType.PAUSED,
    StateType.CANCELLING,
]

Answer = TypeVar("Answer")


@dataclass(slots=True)
class Part:
    """A child flow run and what it was given.

    Args:
        id: of the flow run.
        name: of the flow run, whatever the attempt.
        shards: which it works on.
        attempt: how many flow runs were begun for these shards, with this one.
        heartbeat: the latest that was heard, with when (by this process's clock).
        pending: since when a worker has it without having begun it (by the same clock).
    """

    id: UUID
    name: str
    shards: list[int]
    attempt: int = 1
    heartbeat: tuple[datetime, float] | None = None
    pending: float | None = None


@dataclass(slots=True)
class Stage:
    """What every part of a stage has in common, and what went wrong so far."""

    run: Run
    name: str
    compute: Compute
    force: bool
    failures: dict[int, str] = field(default_factory=dict)

    @property
    def deployment(self) -> str:
        """The deployment whose flow runs are the parts."""
        return part_deployment(self.name)

    @property
    def shared(self) -> dict[str, Any]:
        """What identifies a part of this stage among all parts a server knows."""
        return {"root": self.run.address, "stage": self.name, "force": self.force}


def part_deployment(stage: str) -> str:
    """The deployment that works on shards of a stage: one for GPU machines, one for the others."""
    return f"{FLOW}/{'gpu' if stage in ON_DEVICE else 'cpu'}"


def check_deployments(stages: list[str]) -> None:
    """Look for the deployments that parts need, before anything is done.

    Raises:
        SettingsError: one is not registered.
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


def run_parts(
    run: Run, stage: str, shards: list[int], compute: Compute, force: bool, partitions: int
) -> dict[int, str]:
    """Have these shards worked on by child flow runs; return what went wrong, by shard.

    Raises:
        SettingsError: the deployment is not registered.
        TransientError: the server did not answer for half an hour.
    """
    check_deployments([stage])
    context = FlowRunContext.get()
    if stage in ON_DEVICE and context and context.flow_run and context.flow_run.work_pool_name:
        logger.warning(
            "%s: this flow run waits on a worker of pool %s; if its parts need workers of the same "
            "pool, they are one short (use the flow's deployment of pool cpu)",
            stage,
            context.flow_run.work_pool_name,
        )
    shared = Stage(run, stage, compute, force)
    parts = _taken_over(shared, set(shards))
    covered = {shard for part in parts for shard in part.shards}
    left = [shard for shard in shards if shard not in covered]
    number = min(max(partitions - len(parts), 1), len(left))
    for part in range(number):
        name = f"{stage} of {run.address}, part {part + 1} of {number}"
        parts.append(_patiently(partial(_start, shared, left[part::number], name)))
    logger.info("%s: %d shards in %d parts (%s)", stage, len(shards), len(parts), shared.deployment)
    _watch(shared, parts, len(shards))
    return shared.failures


def _start(stage: Stage, shards: list[int], name: str, attempt: int = 1) -> Part:
    compute = stage.compute.model_dump(mode="json")
    started = run_deployment(
        stage.deployment,
        parameters={**stage.shared, "shards": shards, "compute": compute},
        flow_run_name=f"{name}{AGAIN}{attempt}" if attempt > 1 else name,
        tags=[TAG],
        timeout=0,
    )
    assert isinstance(started, FlowRun)
    return Part(started.id, name, shards, attempt)


def _taken_over(stage: Stage, wanted: set[int]) -> list[Part]:
    """Parts of an earlier parent that are not finished, and work on nothing else than is asked."""
    states = FlowRunFilterState(type=FlowRunFilterStateType(any_=ACTIVE))
    found = _flow_runs(FlowRunFilter(tags=FlowRunFilterTags(all_=[TAG]), state=states))
    parts: list[Part] = []
    for flow_run in found:
        given = flow_run.parameters
        shards = set(given.get("shards") or ()) & wanted
        if shards and all(given.get(key) == value for key, value in stage.shared.items()):
            logger.info("%s: %s is still under way; waiting for it", stage.name, flow_run.name)
            name = flow_run.name.partition(AGAIN)[0]
            parts.append(Part(flow_run.id, name, sorted(shards)))
            wanted = wanted - shards
    return parts


def _watch(stage: Stage, parts: list[Part], number: int) -> None:
    """Wait for all parts, beginning again those that are lost."""
    progress = create_progress_artifact(0.0, key=f"{stage.name}-progress", description=stage.name)
    active, looked = {part.id: part for part in parts}, time.monotonic()
    while active:
        time.sleep(POLL_SECONDS)
        asked = time.monotonic()
        found = {flow_run.id: flow_run for flow_run in _patiently(lambda: _by_id(list(active)))}
        if time.monotonic() - asked > SECONDS_BETWEEN_LOOKS:
            # The server was away, and nobody could be heard meanwhile.
            for part in active.values():
                part.heartbeat = None
        for part in list(active.values()):
            flow_run = found.get(part.id)
            if flow_run is None or (flow_run.state and flow_run.state.is_final()):
                del active[part.id]
                again = _ended(stage, part, flow_run)
                if again is not None:
                    active[again.id] = again
                left = sum(len(part.shards) for part in active.values())
                update_progress_artifact(progress, 100.0 * (number - left) / number)
        if time.monotonic() - looked >= SECONDS_BETWEEN_LOOKS:
            looked = time.monotonic()
            _tell(stage, [flow_run for flow_run in found.values() if flow_run.id in active])
            _patiently(partial(_look_for_lost, list(active.values()), found))


def _ended(stage: Stage, part: Part, flow_run: FlowRun | None) -> Part | None:
    """Note what a finished part failed at; where it was lost, begin it again."""
    state = flow_run.state if flow_run else None
    if state is not None and state.is_completed():
        # Nothing can be left, unless somebody took files away; by force all were there before.
        left = [] if stage.force else stage.run.remaining(stage.name, part.shards)
        stage.failures.update(dict.fromkeys(left, "its part completed without it"))
        return None
    told = " ".join((state.message or state.name or "").split()) if state else "deleted"
    reason = f"{part.name}: {told}"
    left = stage.run.remaining(stage.name, part.shards, force=stage.force)
    if (state is None or state.is_crashed()) and left and part.attempt < MOST_ATTEMPTS:
        logger.warning("%s; beginning its %d shards again", reason, len(left))
        return _patiently(lambda: _start(stage, left, part.name, part.attempt + 1))
    problems = _patiently(lambda: _noted_failures(stage.name, part))
    if problems and stage.force:
        left = sorted(problems)
    stage.failures.update({shard: problems.get(shard, reason) for shard in left})
    return None


def _noted_failures(stage: str, part: Part) -> dict[int, str]:
    """What a part said of the shards that failed, in its artifact."""
    wanted = ArtifactFilter(
        flow_run_id=ArtifactFilterFlowRunId(any_=[part.id]),
        key=ArtifactFilterKey(any_=[f"{stage}-failed"]),
    )
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=wanted)
    rows = [row for artifact in found for row in json.loads(str(artifact.data))]
    return {int(row["shard"]): str(row["problem"]) for row in rows}


def _tell(stage: Stage, found: list[FlowRun]) -> None:
    """Say for which worker parts wait: none may be running, or the pool may be full."""
    waiting = [f for f in found if f.state and (f.state.is_scheduled() or f.state.is_pending())]
    if waiting:
        pool = waiting[0].work_pool_name or "?"
        logger.info(
            "%s: %d of %d parts wait for a free worker of pool %s",
            stage.name,
            len(waiting),
            len(found),
            pool,
        )


def _look_for_lost(active: list[Part], found: dict[UUID, FlowRun]) -> None:
    """End flow runs of lost machines, as nobody is left there to say so.

    Their heartbeats ceased, or the worker that took them never began them.
    """
    frequency = get_current_settings().flows.heartbeat_frequency or 180
    patience = MISSED_HEARTBEATS * frequency
    by_id, now = {str(part.id): part for part in active}, time.monotonic()
    # Asked for those of no flow run, the server would tell of all.
    for name, occurred in _heartbeats(list(by_id), patience) if by_id else ():
        part = by_id[name]
        if part.heartbeat is None or occurred > part.heartbeat[0]:
            part.heartbeat = (occurred, now)
    for part in active:
        state = found[part.id].state if part.id in found else None
        if state is None or not state.is_pending():
            part.pending = None
        elif part.pending is None:
            part.pending = now
        if part.heartbeat is not None and now - part.heartbeat[1] > patience:
            message = f"no heartbeat for {now - part.heartbeat[1]:.0f} s: its machine is lost"
        elif part.pending is not None and now - part.pending > PENDING_PATIENCE_SECONDS:
            message = f"pending for {now - part.pending:.0f} s: its worker is lost"
        else:
            continue
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(part.id, Crashed(message=message), force=True)


def _heartbeats(ids: list[str], seconds: float) -> list[tuple[str, datetime]]:
    """Flow run and time of every heartbeat that is not older than this."""
    prefix, now = "prefect.flow-run.", datetime.now(UTC)
    wanted = EventFilter(
        # Clocks differ between machines.
        occurred=EventOccurredFilter(
            since=now - timedelta(seconds=seconds), until=now + timedelta(hours=1)
        ),
        event=EventNameFilter(name=[f"{prefix}heartbeat"]),
        resource=EventResourceFilter(id=[f"{prefix}{name}" for name in ids]),
    )
    found = []
    with get_client(sync_client=True) as client:
        page = client.read_events(wanted, limit=50)
        while True:
            for event in page.events:
                found.append((event.resource.id.removeprefix(prefix), event.occurred))
            if page.next_page is None:
                return found
            page = client.read_events_page(str(page.next_page))


def _by_id(ids: list[UUID]) -> list[FlowRun]:
    found = []
    for first in range(0, len(ids), PAGE):
        wanted = FlowRunFilter(id=FlowRunFilterId(any_=ids[first : first + PAGE]))
        with get_client(sync_client=True) as client:
            found += client.read_flow_runs(flow_run_filter=wanted, limit=PAGE)
    return found


def _flow_runs(wanted: FlowRunFilter) -> list[FlowRun]:
    found: list[FlowRun] = []
    with get_client(sync_client=True) as client:
        while page := client.read_flow_runs(flow_run_filter=wanted, limit=PAGE, offset=len(found)):
            found += page
    return found


def _patiently(ask: Callable[[], Answer]) -> Answer:
    """Ask the server, and wait for it while it is away: the parts go on without it.

    Raises:
        TransientError: it was away for too long.
    """
    deadline = time.monotonic() + SERVER_PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except (httpx.TransportError, PrefectHTTPStatusError) as error:
            if isinstance(error, PrefectHTTPStatusError) and error.response.status_code < 500:
                raise
            if time.monotonic() > deadline:
                raise TransientError(
                    f"Prefect's server does not answer ({error}); relaunch when it does, finished "
                    "shards stay"
                ) from None
            logger.warning("Prefect's server does not answer (%s); asking again", error)
            time.sleep(5)
