"""The flow that does everything: text in, published subset out."""

from prefect import flow

from datamask.config.compute import Compute
from datamask.config.inputs import Embedding, Plan, Quality, Source
from datamask.config.outputs import Publication, Report, Subset
from datamask.config.selection import Selection
from datamask.runs.stages import SHARD_STAGES
from datamask.storage.location import RootParameter
from flows.every_stage import finish
from flows.orchestration.fan_out import ends_in_one_line
from flows.orchestration.partitions import Partitions, check_deployments
from tasks.planning import plan_shards


@flow(name="rebuild", flow_run_name="rebuild {root}")
@ends_in_one_line
def rebuild(
    root: RootParameter,
    source: Source | None = None,
    plan: Plan | None = None,
    quality: Quality | None = None,
    embedding: Embedding | None = None,
    selection: Selection | None = None,
    subset: Subset | None = None,
    report: Report | None = None,
    seed: int | None = None,
    publication: Publication | None = None,
    compute: Compute = Compute(),  # noqa: B008 - immutable
    partitions: Partitions = 1,
) -> None:
    """Run every stage from text to published subset; what is done already is left alone.

    A group that is not given is as in run.json where the run exists, else the default.

    Args:
        root: the run's folder, or its URL.
        source: where the documents are.
        plan: how they are cut into shards.
        quality: what a good document is.
        embedding: how text becomes vectors.
        selection: how many documents are kept, and by which objective.
        subset: how the subset's files are written.
        report: how closely the report looks.
        seed: every random choice follows from it.
        publication: where the subset goes; none: as in run.json, or nowhere.
        compute: how the work is done; never changes the result.
        partitions: child flow runs that shards are dealt to, on as many workers; 1: none.
    """
    if partitions > 1:
        check_deployments(SHARD_STAGES)
    groups = {
        "source": source,
        "plan": plan,
        "quality": quality,
        "embedding": embedding,
        "selection": selection,
        "subset": subset,
        "report": report,
        "seed": seed,
        "publication": publication,
    }
    finish(plan_shards(root, groups, compute), compute, partitions)
