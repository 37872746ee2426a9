"""Choose where the tasks of a stage run: threads, or a Ray cluster (`compute.engine`).

Tasks receive a folder and shard numbers, and return nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from prefect import Task
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.futures import as_completed
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

import datamask
from datamask.config.compute import Compute
from datamask.errors import SettingsError, describe, one_line
from datamask.runs.stages import STAGES
from datamask.storage.location import Root
from flows.orchestration.progress import Progress
from tasks.retrying import error_of
from tasks.stages import HUB

logger = logging.getLogger("datamask.engines")

PACKAGES = Path(datamask.__file__).resolve().parents[1]
"""The checkout, or the folder of installed packages: has the library and the flows."""
MOST_RETRIES = 3
"""Number of times that Ray restarts a task whose process or node was lost."""
CONNECT_SECONDS = 10


def tell_of_wait(stage: str) -> None:
    """Warn if the task of a stage will wait, because as many others run as the server allows."""
    if stage != "publication":
        return
    with contextlib.suppress(ObjectNotFound), get_client(sync_client=True) as client:
        limit = client.read_concurrency_limit_by_tag(HUB)
        if len(limit.active_slots) >= limit.concurrency_limit:
            logger.warning(
                "%s: waits until one of %d tasks with tag %s ends; `prefect concurrency-limit "
                "inspect %s` lists them",
                *(stage, len(limit.active_slots), HUB, HUB),
            )


@contextlib.contextmanager
def task_runner(stage: str, root: Root, compute: Compute) -> Iterator[tuple[TaskRunner[Any], int]]:
    """Yield the started task runner of `compute.engine`, and how many of its tasks run at once.

    Raises:
        SettingsError: Ray is not installed, cannot be reached, or can never run such a task.
    """
    if compute.engine == "ray":
        with _ray(stage, root, compute) as (runner, slots):
            yield runner, slots
    else:
        with ThreadPoolTaskRunner[Any](max_workers=compute.workers) as runner:
            yield runner, compute.workers


def failures(
    runner: TaskRunner[Any],
    calls: Iterable[tuple[Sequence[int], Task[..., Any], dict[str, Any]]],
    progress: Progress,
) -> dict[int, str]:
    """Make all calls, given by units, task and parameters, and show how many units are done.

    Returns the reason of each unit whose task did not complete.
    """
    pending = {runner.submit(task, parameters): units for units, task, parameters in calls}
    reasons, done = dict[int, str](), 0
    for future in as_completed(list(pending)):
        future.wait()  # Only this fetches the final state.
        units = pending[future]
        if not future.state.is_completed():
            reasons |= dict.fromkeys(units, describe(error_of(future.state)))
            continue
        done += len(units)
        progress.show(done)
    progress.show(done, is_last=True)
    return reasons


@contextlib.contextmanager
def _ray(stage: str, root: Root, compute: Compute) -> Iterator[tuple[TaskRunner[Any], int]]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        from prefect_ray.context import remote_options
        from prefect_ray.task_runners import RayTaskRunner
    except ModuleNotFoundError as error:
        raise SettingsError(
            'compute.engine: ray needs `pip install "datamask-pipeline[ray]"` where the flow runs '
            f"and on every node ({error})"
        ) from None
    address = os.environ.get("RAY_ADDRESS", "")
    if address and "://" not in str(root) and not Path(root).is_absolute():
        raise SettingsError(f"root: {root} is relative, and nodes differ; give an absolute path")
    _check_address(address)
    options: dict[str, Any] = {
        "address": address or "local",
        "log_to_driver": False,
        # Worker processes import flows and tasks from the same place as this process.
        "runtime_env": {"env_vars": {"PYTHONPATH": str(PACKAGES)}},
    }
    if not address:
        options["include_dashboard"] = False
    runner: TaskRunner[Any] = RayTaskRunner(init_kwargs=options)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(runner)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise SettingsError(
                f"RAY_ADDRESS: {address or 'none'}: no Ray there ({one_line(error)[:200]})"
            ) from None
        known: Any = ray
        nodes = [node["Resources"] for node in known.nodes() if node["Alive"]]
        request = ray_request(stage, compute, nodes)
        slots = sum(slots_of(node, request) for node in nodes)
        if not slots:
            problem = f"{stage}: no node of the Ray cluster has what a task requests: {request}"
            if not address:
                raise SettingsError(f"{problem}; lower compute.task_cpus or set RAY_ADDRESS")
            logger.warning("%s; waiting until the cluster grows", problem)
        logger.info("%s: %d nodes of Ray, %d tasks at once", stage, len(nodes), slots)
        stack.enter_context(remote_options(**request, max_retries=MOST_RETRIES))
        yield runner, max(slots, 1)


def _check_address(address: str) -> None:
    """Check that something listens at an address; Ray itself would try for many minutes."""
    host, separator, port = address.rpartition("://")[2].rpartition(":")
    if not separator:
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise SettingsError(f"RAY_ADDRESS: {address}: no Ray there ({error})") from None


def ray_request(
    stage: str, compute: Compute, nodes: list[dict[str, float]]
) -> dict[str, int | float]:
    """Return the resources that a task of a stage requests from Ray's scheduler.

    It gets a GPU if the stage uses a device and, with `device: auto`, if a living node has one.
    *nodes* are the nodes' resources.
    """
    there = any(node.get("GPU", 0) >= 1 for node in nodes)
    wanted = compute.device_kind == "cuda" or (compute.device == "auto" and there)
    return {"num_cpus": compute.task_cpus, "num_gpus": int(wanted and STAGES[stage].on_device)}


def slots_of(node: dict[str, float], request: dict[str, int | float]) -> int:
    """Return how many such tasks a node runs at once."""
    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    fits = [int(node.get(names[key], 0) // asked) for key, asked in request.items() if asked]
    return min(fits) if fits else 1
