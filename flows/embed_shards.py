"""The flow that turns texts into vectors."""

from prefect import flow

from datamask.config.compute import Compute
from datamask.config.inputs import Embedding
from datamask.storage.location import RootParameter
from flows.orchestration.fan_out import ends_in_one_line, fan_out, with_settings
from flows.orchestration.partitions import Partitions


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
    """Embed every document that survived pruning.

    Args:
        root: the run's folder, or its URL.
        embedding: which model embeds; none means as in run.json.
        compute: how the work is done; never changes the result.
        shards: only these shards; none means all that are left.
        force: redo what is done already.
        partitions: child flow runs the shards are dealt to, on as many workers; 1: none.
    """
    run = with_settings(root, compute, embedding=embedding)
    fan_out(run, "embeddings", compute, shards, force, partitions)
