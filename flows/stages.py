"""The flows of single stages, of some shards of one, and of all stages: each does the rest.

The flows of groups of stages differ in their settings and stages only, so one function makes them.
"""

import inspect
import json
from collections.abc import Callable
from typing import Any

from prefect import Flow, flow
from prefect.runtime import flow_run

from datamask.config.compute import Compute
from datamask.config.evaluation import Evaluation
from datamask.config.group import Group
from datamask.config.inputs import Embedding, Quality
from datamask.config.outputs import Publication, Subset
from datamask.config.selection import Selection
from datamask.config.settings import Settings
from datamask.errors import SettingsError
from datamask.runs.locks import working_on
from datamask.runs.opening import open_run
from datamask.runs.run import Run
from datamask.runs.stages import (
    PARALLEL_STAGES,
    evaluation_stages,
    learning_stages,
    merging_stages,
    stages_of,
)
from datamask.storage.location import RootParameter
from datamask.storage.temporary import remove_orphans
from flows.orchestration.artifacts import show_publication, show_report
from flows.orchestration.fan_out import ends_in_one_line, fan_out, run_units, with_settings
from flows.orchestration.partitions import FLOW, Partitions

PARAMETERS: dict[str, tuple[Any, Any, str]] = {
    "root": (RootParameter, inspect.Parameter.empty, "the run's folder or URL."),
    "compute": (
        Compute | None,  # the page's form would fill in the defaults of a group
        None,
        "how the work is done, which never changes the result; none: the defaults.",
    ),
    "shards": (list[int] | None, None, "only these shards; none means all that are left."),
    "force": (bool, False, "repeat finished work."),
    "partitions": (
        Partitions,
        1,
        "child flow runs, each on a worker, that share the shards, files or models; 1: none.",
    ),
}
"""Type, default and meaning of the parameters of a flow, as Prefect's pages show them."""


def _flow_of(
    name: str,
    work: str,
    kind: type[Group] | None,
    stages: Callable[[Settings], list[str]],
    about: str,
    parameters: tuple[str, ...],
    show: Callable[[Run, set[str]], object] = lambda run, worked: None,
) -> Flow[..., None]:
    """Make the flow of a group of *stages*; *work* names its runs, *show* adds artifacts.

    Its parameters are `root`, `compute`, some others of `PARAMETERS`, and, under its own name, the
    group of settings *kind*, if any. *about* is the description that users read.
    """
    key = kind.__name__.lower() if kind else ""

    def do(root: Any, compute: Compute | None, **given: Any) -> None:
        compute = compute or Compute()
        run = with_settings(root, compute, **({key: given.pop(key, None)} if key else {}))
        show(run, fan_out(run, stages(run.settings), compute, **given))

    known = {"root": PARAMETERS["root"]}
    if kind:
        meaning = f"settings of group `{key}`; what is not given is as in run.json."
        known[key] = (kind | None, None, meaning)
    known |= {name: PARAMETERS[name] for name in ("compute", *parameters)}
    do.__name__ = do.__qualname__ = name.replace("-", "_")
    do.__doc__ = f"{about}\n\nArgs:\n" + "\n".join(f"    {n}: {of[2]}" for n, of in known.items())
    positional, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    do.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name, keyword if name != "root" else positional, annotation=of, default=default
            )
            for name, (of, default, _) in known.items()
        ]
    )
    return flow(name=name, flow_run_name=f"{work} of {{root}}")(ends_in_one_line(do))


def _evaluated(settings: Settings) -> list[str]:
    if not settings.evaluation.arms:
        raise SettingsError(
            "evaluation.arms: none; give --param "
            f"'evaluation={json.dumps({'arms': settings.default_arms})}'"
        )
    return evaluation_stages(settings)


def _published(settings: Settings) -> list[str]:
    if settings.publication is None:
        raise SettingsError(
            'publication: not set; give --param \'publication={"repository": "owner/name", '
            '"license": "..."}\''
        )
    return ["publication"]


SOME_SHARDS = ("shards", "force", "partitions")

import_quality = _flow_of(
    "import-quality",
    "quality",
    Quality,
    lambda settings: stages_of(settings, last="quality"),
    "Import the scores of every shard, screen its text, combine over the corpus, and prune.",
    SOME_SHARDS,
)
embed_shards = _flow_of(
    "embed-shards",
    "embeddings",
    Embedding,
    lambda settings: stages_of(settings, "embeddings", "embeddings"),
    "Embed every document that survived pruning, if anything needs vectors.",
    SOME_SHARDS,
)
learn_masks = _flow_of(
    "learn-masks",
    "masks",
    Selection,
    learning_stages,
    "Learn which documents to keep: shard by shard, or in rounds over all of them.",
    SOME_SHARDS,
)
merge_subset = _flow_of(
    "merge-subset",
    "subset",
    Subset,
    merging_stages,
    "Join the masks to the source's rows, write the subset, and tabulate its composition.",
    SOME_SHARDS[1:],
)
evaluate = _flow_of(
    "evaluate",
    "evaluation",
    Evaluation,
    _evaluated,
    "Train small language models on selections and compare them; `report` shows the result.\n\n"
    "The run's subset must be written. Another `hold_out` makes quality and everything after it "
    "stale: use `rebuild`.",
    SOME_SHARDS[1:],
)
report = _flow_of(
    "report",
    "report",
    None,
    lambda settings: ["report"],
    "Write the run's page and pictures, and show them as artifacts of the flow run.",
    ("force",),
    lambda run, worked: None if flow_run.parent_flow_run_id else show_report(run),
)
publish_subset = _flow_of(
    "publish-subset",
    "publication",
    Publication,
    _published,
    "Publish the subset with its card, verify it, and tag it.\n\n"
    "It uses the worker's HF_TOKEN; a token is never a parameter.",
    ("force",),
    show_publication,
)


@flow(name=FLOW)
@ends_in_one_line
def work_on_shards(
    root: RootParameter,
    stage: str,
    compute: Compute | None = None,
    units: list[int] | None = None,
    force: bool = False,
) -> None:
    """Process some shards of a stage. Usually started by a flow run with `partitions`.

    Args:
        root: the run's folder or URL.
        stage: a stage that works shard by shard.
        compute: how the work is done, which never changes the result; none: the defaults.
        units: only these units; none means all that remain. A unit is a shard; in stage `round`
            it is (round - 1) · number of shards + shard.
        force: repeat finished work.
    """
    if stage not in PARALLEL_STAGES:
        raise SettingsError(f"stage: {stage} has no shards; one of {', '.join(PARALLEL_STAGES)}")
    run = open_run(root)
    with working_on(run):
        if left := run.remaining(stage, units, force=force):
            run_units(run, stage, left, compute or Compute(), force)


def finish(run: Run, compute: Compute, partitions: int = 1) -> None:
    """Do the rest of a run. A failed stage stops the stages after it.

    Raises:
        RunError: another launch has changed the run's settings since it was planned.
        DatamaskError: a stage failed.
    """
    root = run.address
    with working_on(run):
        remove_orphans(run.root)
        for group in (import_quality, embed_shards, learn_masks, merge_subset):
            group(root, compute=compute, partitions=partitions)
        if run.settings.evaluation.arms:
            evaluate(root, compute=compute, partitions=partitions)
        report(root, compute=compute)
        show_report(run)
        if run.settings.publication is not None:
            publish_subset(root, compute=compute)
