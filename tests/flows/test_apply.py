"""The flow that judges new documents by a finished run, on a throw-away Prefect server."""

from __future__ import annotations

from pathlib import Path

import pytest

from datamask.config.inputs import Source
from datamask.execution.pipeline import rebuild
from datamask.planning.applying import settings_to_apply
from datamask.runs.opening import open_run
from tests.finished import finish
from tests.flows.test_fan_out import planned

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.mark.usefixtures("prefect")
def test_new_documents_are_judged_as_the_command_does(tmp_path: Path, corpus: Path) -> None:
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
    source = Source(path=str(corpus))
    assert apply(tmp_path / "flow", learnt.root, source, return_state=True).is_completed()
    assert apply(tmp_path / "flow", learnt.root, return_state=True).is_completed()
    found, other = (
        open_run(tmp_path / "flow"),
        rebuild(tmp_path / "command", settings_to_apply(learnt, Source(path=str(corpus)))),
    )
    assert found.settings == other.settings and found.settings.source.layout == "features"
    for shard in range(3):
        path = found.path("selection", shard)
        assert path.read_bytes() == other.path("selection", shard).read_bytes()
    assert found.state("report") == "done"
