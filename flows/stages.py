"""The flows of single stages, of some shards of one, and of all stages: each does what is left."""

from prefect import flow

from datamask.config.compute import Compute
from datamask.config.evaluation import Evaluation
from datamask.config.inputs import Embedding, Quality
from datamask.config.outputs import Publication, Report, Subset
from datamask.config.selection import Selection
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
from flows.orchestration.artifacts import show_publication, show_report, show_verdict
from flows.orchestration.fan_out import ends_in_one_line, fan_out, run_units, with_settings
from flows.orchestration.partitions import FLOW, Partitions


@flow(name="import-quality", flow_run_name="quality of {root}")
@ends_in_one_line
def import_quality(
    root: RootParameter,
    quality: Quality | None = None,
    compute: Compute = Compute(),  # noqa: B008 - immutable
    shards: list[int] | None = None,
    force: bool = False,
    partitions: Partitions = 1,
) -> None:
    """Import the scores of every shard, screen its text, combine over the corpus, and prune.

    Args:
        root: the run's folder or URL.
        quality: which scores count and how much is pruned; none means as in run.json.
        compute: how the work is done; never changes the result.
        shards: only the scores and texts of these shards; none means all that are left.
        force: repeat finished work.
        partitions: child flow runs, each on a worker, that share the shards; 1: none.
    """
    run = with_settings(root, compute, quality=quality)
    stages = stages_of(run.settings, last="quality")
    fan_out(run, stages, compute, shards, force, partitions)


@flow(name="embed-shards", flow_run_name="embeddings of {root}")
@ends_in_one_line
def embed_shards(
    root: RootParameter,
    embedding: Embedding | None = None,
    compute: Compute = Compute(),  # noqa: B008 - immutable
    shards: list[int] | None = None,
    force: bool = False,
    partitions: Partitions = 1,
) -> None:
    """Embed every document that survived pruning; does nothing if `embedding.keep` is false.

    Args:
        root: the run's folder or URL.
        embedding: the embedding model; none means as in run.json.
        compute: how the work is done; never changes the result.
        shards: only these shards; none means all that are left.
        force: repeat finished work.
        partitions: child flow runs, each on a worker, that share the shards; 1: none.
    """
    run = with_settings(root, compute, embedding=embedding)
    stages = stages_of(run.settings, "embeddings", "embeddings")
    fan_out(run, stages, compute, shards, force, partitions)


@flow(name="learn-masks", flow_run_name="masks of {root}")
@ends_in_one_line
def learn_masks(
    root: RootParameter,
    selection: Selection | None = None,
    compute: Compute = Compute(),  # noqa: B008 - immutable
    shards: list[int] | None = None,
    force: bool = False,
    partitions: Partitions = 1,
) -> None:
    """Learn which documents to keep: shard by shard, or in rounds over all of them.

    Args:
        root: the run's folder or URL.
        selection: budget, objective and method; none means as in run.json.
        compute: how the work is done; never changes the result.
        shards: only these shards; none means all that are left.
        force: repeat finished work.
        partitions: child flow runs, each on a worker, that share the shards; 1: none.
    """
    run = with_settings(root, compute, selection=selection)
    fan_out(run, learning_stages(run.settings), compute, shards, force, partitions)


@flow(name="merge-subset", flow_run_name="subset of {root}")
@ends_in_one_line
def merge_subset(
    root: RootParameter,
    subset: Subset | None = None,
    compute: Compute = Compute(),  # noqa: B008 - immutable
    force: bool = False,
    partitions: Partitions = 1,
) -> None:
    """Join the masks to the source's rows, write the subset, and tabulate its composition.

    Args:
        root: the run's folder or URL.
        subset: how the files are written; none means as in run.json.
        compute: how the work is done; never changes the result.
        force: repeat finished work.
        partitions: child flow runs, each on a worker, that share the files and shards; 1: none.
    """
    run = with_settings(root, compute, subset=subset)
    fan_out(run, merging_stages(run.settings), compute, force=force, partitions=partitions)


@flow(name="evaluate", flow_run_name="evaluation of {root}")
@ends_in_one_line
def evaluate(
    root: RootParameter,
    evaluation: Evaluation | None = None,
    compute: Compute = Compute(),  # noqa: B008 - immutable
    force: bool = False,
    partitions: Partitions = 1,
) -> None:
    """Train small language models on selections and compare them; `report` shows the result.

    Args:
        root: the folder or URL of a run whose subset is written.
        evaluation: arms, model and budget; none means as in run.json. Another `hold_out` makes
            quality and everything after it stale: use `rebuild`.
        compute: how the work is done; never changes the result.
        force: repeat finished work.
        partitions: child flow runs, each on a worker, that share the models; 1: none.
    """
    run = with_settings(root, compute, evaluation=evaluation)
    if not run.settings.evaluation.arms:
        raise SettingsError(
            f'{root}: evaluation.arms: none; give --param \'evaluation={{"arms": ["ours", '
            '"random", "top_quality"]}\''
        )
    fan_out(run, evaluation_stages(run.settings), compute, force=force, partitions=partitions)


@flow(name="report", flow_run_name="report of {root}")
@ends_in_one_line
def write_report(
    root: RootParameter,
    report: Report | None = None,
    compute: Compute = Compute(),  # noqa: B008 - immutable
    force: bool = False,
) -> None:
    """Write the run's page and pictures, and show them as artifacts of the flow run.

    Args:
        root: the run's folder or URL.
        report: sizes of samples and examples; none means as in run.json.
        compute: how the work is done; never changes the result.
        force: repeat finished work.
    """
    run = with_settings(root, compute, report=report)
    fan_out(run, ["report"], compute, force=force)
    show_report(run)


@flow(name="publish-subset", flow_run_name="publication of {root}")
@ends_in_one_line
def publish_subset(
    root: RootParameter,
    publication: Publication | None = None,
    compute: Compute = Compute(),  # noqa: B008 - immutable
    force: bool = False,
) -> None:
    """Publish the subset with its card, verify it, and tag it.

    It uses the worker's HF_TOKEN; a token is never a parameter.

    Args:
        root: the run's folder or URL.
        publication: repository, license and card; none means as in run.json.
        compute: how the work is done; never changes the result.
        force: repeat finished work.
    """
    run = with_settings(root, compute, publication=publication)
    if run.settings.publication is None:
        raise SettingsError(
            f'{root}: publication: not set; give --param \'publication={{"repository": '
            '"owner/name", "license": "..."}\''
        )
    fan_out(run, ["publication"], compute, force=force)
    show_publication(run)


@flow(name=FLOW)
@ends_in_one_line
def work_on_shards(
    root: RootParameter,
    stage: str,
    compute: Compute = Compute(),  # noqa: B008 - immutable
    units: list[int] | None = None,
    force: bool = False,
) -> None:
    """Process some shards of a stage. Usually started by a flow run with `partitions`.

    Args:
        root: the run's folder or URL.
        stage: one that is done shard by shard.
        compute: how the work is done; never changes the result.
        units: only these units; none means all that are left. A unit is a shard; in stage `round`
            it is (round - 1) · number of shards + shard.
        force: repeat finished work.
    """
    if stage not in PARALLEL_STAGES:
        raise SettingsError(f"stage: {stage} has no shards; one of {', '.join(PARALLEL_STAGES)}")
    run = open_run(root)
    with working_on(run):
        if left := run.remaining(stage, units, force=force):
            run_units(run, stage, left, compute, force)


def finish(run: Run, compute: Compute, partitions: int = 1) -> None:
    """Do everything that is left of a run. A failed stage stops the stages after it.

    Raises:
        RunError: another launch has changed the run's settings since it was planned.
        DatamaskError: a stage failed.
    """
    root = run.address
    with working_on(run):
        remove_orphans(run.root)
        import_quality(root, compute=compute, partitions=partitions)
        embed_shards(root, compute=compute, partitions=partitions)
        learn_masks(root, compute=compute, partitions=partitions)
        merge_subset(root, compute=compute, partitions=partitions)
        if run.settings.evaluation.arms:
            evaluate(root, compute=compute, partitions=partitions)
        write_report(root, compute=compute)
        show_verdict(run)
        if run.settings.publication is not None:
            publish_subset(root, compute=compute)
