"""Flows on a run in an object store: each on a machine of its own."""

import pytest

from datamask.config.compute import Compute
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.runs.opening import open_run
from tests.finished import up_to
from tests.flows.test_fan_out import planned
from tests.storage.conftest import machine, s3  # noqa: F401 - fixtures


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
def test_flows_share_a_run_with_no_disk_in_common(s3, machine, corpus, tmp_path):  # noqa: F811
    """Three flows, three machines: the masks of a local run; what fails names the URL."""
    from flows.stages import embed_shards, import_quality, learn_masks

    local = planned(tmp_path, corpus)
    url = "s3://runs/flows/mine"
    plan_run(url, local.settings)
    assert import_quality(url, return_state=True).is_completed()
    machine("second")
    s3.write(url, "embeddings/00001.parquet", b"not ours")
    assert embed_shards(url, compute=Compute(workers=2), return_state=True).is_completed()
    machine("third")
    damaged = s3.read(url, "embeddings/00002.parquet")
    s3.write(url, "embeddings/00002.parquet", damaged[:40] + b"?" + damaged[41:])
    state = learn_masks(url, return_state=True)
    assert state.is_failed()
    assert f"{url}/embeddings/00002.parquet: SHA-256" in state.message
    assert f"rerun-failed/local --param root={url}`" in state.message
    s3.write(url, "embeddings/00002.parquet", damaged)
    assert learn_masks(url, return_state=True).is_completed()
    for stage in up_to(local, "selection"):
        run_stage(local, stage, Compute())
    for shard in range(3):
        name = f"selection/{shard:05d}.parquet"
        assert s3.read(url, name) == (local.root / name).read_bytes()
    assert open_run(url).remaining("selection") == []
    assert not [name for name in s3.names(url) if name.startswith("locks/")]
