"""The flows of a whole run: `rebuild`; `apply`, `extend` and `rerun-failed` go on from a run."""

from typing import Any

from prefect import flow

from datamask.config.compute import Compute
from datamask.config.evaluation import Evaluation
from datamask.config.inputs import Embedding, Plan, Quality, Source
from datamask.config.outputs import Publication, Subset, Tokens
from datamask.config.selection import Selection, Topics
from datamask.planning.applying import check_applied, settings_to_apply
from datamask.runs.opening import open_run, run_exists
from datamask.storage.location import RootParameter
from flows.orchestration.fan_out import ends_in_one_line
from flows.orchestration.partitions import Partitions, check_deployments
from flows.stages import finish
from tasks.planning import plan_shards


@flow(name="rebuild", flow_run_name="rebuild {root}")
@ends_in_one_line
def rebuild(
    root: RootParameter,
    source: Source | None = None,
    plan: Plan | None = None,
    quality: Quality | None = None,
    embedding: Embedding | None = None,
    topics: Topics | None = None,
    selection: Selection | None = None,
    subset: Subset | None = None,
    tokens: Tokens | None = None,
    evaluation: Evaluation | None = None,
    seed: int | None = None,
    publication: Publication | None = None,
    compute: Compute | None = None,
    partitions: Partitions = 1,
) -> None:
    """Run every stage that is not done, from text to published subset.

    What is not given, of a group too, is as in run.json if the run exists, else the default.

    Args:
        root: the run's folder or URL.
        source: where the documents are.
        plan: how they are cut into shards.
        quality: which scores count and how much is pruned.
        embedding: the embedding model.
        topics: what documents are about; none: as in run.json, or no topics.
        selection: budget, objective and method.
        subset: how the subset's files are written.
        tokens: what trainers read; none: as in run.json, or no tokens.
        evaluation: training on selections, to compare them.
        seed: every random choice follows from it.
        publication: where the subset goes; none: as in run.json, or nowhere.
        compute: how the work is done, which never changes the result; none: the defaults.
        partitions: child flow runs, each on a worker, that share the shards; 1: none.
    """
    check_deployments(partitions)
    compute = compute or Compute()
    groups = {
        "source": source,
        "plan": plan,
        "quality": quality,
        "embedding": embedding,
        "topics": topics,
        "selection": selection,
        "subset": subset,
        "tokens": tokens,
        "evaluation": evaluation,
        "seed": seed,
        "publication": publication,
    }
    finish(plan_shards(root, groups, compute), compute, partitions)


@flow(name="apply", flow_run_name="apply {learnt} to {root}")
@ends_in_one_line
def apply(
    root: RootParameter,
    learnt: RootParameter,
    source: Source | None = None,
    compute: Compute | None = None,
    partitions: Partitions = 1,
) -> None:
    """Judge new documents by the mask model of a finished run, without learning.

    Args:
        root: the folder or URL of the new documents' run.
        learnt: the finished run.
        source: where the new documents are; what is not given is as in the finished run. None: as
            in run.json of the new run.
        compute: how the work is done, which never changes the result; none: the defaults.
        partitions: child flow runs, each on a worker, that share the shards; 1: none.
    """
    check_deployments(partitions)
    compute = compute or Compute()
    groups: dict[str, Any] = {"source": source}
    judge = open_run(learnt)
    if run_exists(root):
        check_applied(open_run(root).settings, judge)
    else:
        groups = dict(check_applied(settings_to_apply(judge, source), judge))
    finish(plan_shards(root, groups, compute), compute, partitions)


@flow(name="extend", flow_run_name="extend {root}")
@ends_in_one_line
def extend(
    root: RootParameter,
    source: Source | None = None,
    compute: Compute | None = None,
    partitions: Partitions = 1,
) -> None:
    """Select again, from all documents, after files were added to the source of a run.

    Args:
        root: the run's folder or URL.
        source: where the documents are, the planned ones too; None: as in run.json.
        compute: how the work is done, which never changes the result; none: the defaults.
        partitions: child flow runs, each on a worker, that share the shards; 1: none.
    """
    check_deployments(partitions)
    compute = compute or Compute()
    finish(plan_shards(root, {"source": source}, compute, extend=True), compute, partitions)


@flow(name="rerun-failed", flow_run_name="finish {root}")
@ends_in_one_line
def rerun_failed(
    root: RootParameter,
    compute: Compute | None = None,
    partitions: Partitions = 1,
) -> None:
    """Finish a run with its own settings: the rest of its stages, report and publication.

    Args:
        root: the run's folder or URL.
        compute: how the work is done, which never changes the result; none: the defaults.
        partitions: child flow runs, each on a worker, that share the shards; 1: none.
    """
    check_deployments(partitions)
    compute = compute or Compute()
    open_run(root)
    finish(plan_shards(root, {}, compute), compute, partitions)
