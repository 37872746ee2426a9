"""The sweep and the report as flows on a real (throw-away) Prefect server: names and artifacts."""

import re
from typing import Any

import pytest

from datamask.config.compute import Compute
from datamask.execution.pipeline import run_stage
from tests.finished import up_to
from tests.flows.test_fan_out import planned


def artifacts(name: str) -> dict[str, Any]:
    """Artifacts of the flow run of this name, by key."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

    with get_client(sync_client=True) as client:
        (run,) = [run for run in client.read_flow_runs() if run.name == name]
        wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run.id]))
        found = client.read_artifacts(artifact_filter=wanted)
    return {re.sub("^run-[0-9a-f]{6}-", "", artifact.key): artifact for artifact in found}


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
def test_sweep_and_report_show_themselves_on_the_flow_run(tmp_path, corpus):
    """A run without masks is swept, then learned and reported: artifacts of every kind."""
    from flows.stages import report
    from flows.sweep import sweep

    run = planned(tmp_path, corpus)
    for stage in up_to(run, "embeddings"):
        run_stage(run, stage, Compute())
    tried = {"selection.quality_weight": [0.2, 0.8]}
    assert sweep(run.root, over=tried, return_state=True).is_completed()
    found = artifacts(f"sweep of {run.root}")
    assert {artifact.type for artifact in found.values()} == {"markdown", "image"}
    names = [f"quality_weight-{weight}" for weight in (0.2, 0.8)]
    rows = [line for line in found["sweep"].data.splitlines() if line.startswith("| quality\\_")]
    assert len(rows) == len(names)
    swept = run.root.parent / f"{run.root.name}-sweep"
    assert all((swept / name / "report.html").exists() for name in names)
    assert found["picture-tradeoff"].data.startswith("data:image/png;base64,")

    for stage in ("selection", "documents", "composition"):
        run_stage(run, stage, Compute())
    assert report(run.root, return_state=True).is_completed()
    found = artifacts(f"report of {run.root}")
    assert {"report", "picture-map", "picture-tradeoff"} <= set(found)
    assert "(http://127.0.0.1:8000/report.html)" in found["report"].data
    assert not any("file://" in str(artifact.data) for artifact in found.values())
