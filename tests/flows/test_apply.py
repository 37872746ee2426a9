"""The flows that go on from a run with new documents, on a throw-away Prefect server."""

import pyarrow.parquet as pq
import pytest

from datamask.config.inputs import Source
from datamask.execution.pipeline import rebuild
from datamask.planning.applying import settings_to_apply
from datamask.runs.opening import open_run
from tests.finished import finish
from tests.flows.test_fan_out import planned

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
def test_new_documents_are_judged_as_the_command_does(tmp_path, corpus):
    """Also again with the run's own settings; columns are those of the finished run."""
    from flows.rebuild import apply
    from flows.stages import learn_masks

    learnt = planned(tmp_path, corpus)
    finish(learnt.root, learnt.settings, "embeddings")
    assert learn_masks(learnt.root, shards=[1], return_state=True).is_completed()
    assert learnt.remaining("selection") == [0, 2] and learnt.remaining("mask_model")
    assert learn_masks(learnt.root, return_state=True).is_completed()
    refused = apply(tmp_path / "flow", learnt.root, return_state=True)
    assert "source.path: name the new documents" in refused.message
    refused = apply(learnt.root, learnt.root, return_state=True)
    assert "the run selects by itself" in refused.message
    source = Source(path=str(corpus))
    first = apply(tmp_path / "flow", learnt.root, source=source, return_state=True)
    assert first.is_completed()
    assert apply(tmp_path / "flow", learnt.root, return_state=True).is_completed()
    found, other = (
        open_run(tmp_path / "flow"),
        rebuild(tmp_path / "command", settings_to_apply(learnt, Source(path=str(corpus)))),
    )
    assert found.settings.source == other.settings.source
    for shard in range(3):
        paths = (found.path("selection", shard), other.path("selection", shard))
        assert pq.read_table(paths[0]).equals(pq.read_table(paths[1]))
    assert found.state("report") == "done"


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
def test_a_run_is_extended_as_the_command_does(tmp_path, corpus):
    """Files that were added become further shards, whose documents are selected from too."""
    from flows.rebuild import extend

    table = pq.read_table(corpus / "part.parquet")
    source = tmp_path / "source"
    source.mkdir()
    pq.write_table(table[:20], source / "old.parquet")
    run = planned(tmp_path, source)
    finish(run.root, run.settings, "embeddings")
    pq.write_table(table[20:], source / "added.parquet", row_group_size=20)
    assert extend(run.root, return_state=True).is_completed()
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    pq.write_table(table, fresh / "all.parquet", row_group_size=20)
    settings = run.settings.model_copy(
        update={"source": Source(path=str(fresh), layout="features")}
    )
    found, other = open_run(run.root), rebuild(tmp_path / "command", settings)
    for shard in range(3):
        masks = [pq.read_table(one.path("selection", shard)) for one in (found, other)]
        assert masks[0].num_rows == 20 and masks[0].equals(masks[1])
    assert found.state("report") == "done"
