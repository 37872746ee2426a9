"""All stages of a planned run, in order. A stage after a failed one is not begun."""

from datamask.config.compute import Compute
from datamask.runs.locks import working_on
from datamask.runs.orphans import remove_orphans
from datamask.runs.run import Run
from flows.embed_shards import embed_shards
from flows.import_quality import import_quality
from flows.learn_masks import learn_masks
from flows.merge_subset import merge_subset
from flows.publish_subset import publish_subset
from flows.write_report import report


def finish(run: Run, compute: Compute, partitions: int = 1) -> None:
    """Do everything that is left of a run, the stages of shards dealt to so many child flow runs.

    Raises:
        RunError: another launch has changed its settings since it was planned.
        DatamaskError: a stage failed; later ones were not begun.
    """
    root = run.address
    with working_on(run):
        remove_orphans(run.root)
        import_quality(root, compute=compute, partitions=partitions)
        embed_shards(root, compute=compute, partitions=partitions)
        learn_masks(root, compute=compute, partitions=partitions)
        merge_subset(root, compute=compute)
        report(root, compute=compute)
        if run.settings.publication is not None:
            publish_subset(root, compute=compute)
