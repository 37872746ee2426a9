"""Emit events about runs, for automations of the server (deployments/automations.yaml).

The resource of each is `datamask.run.DIGEST`, and its label `datamask.root` is the run's address.
`datamask.evaluation` says what an evaluation would find: `arms`, `texts` without arms, or `none`.
`datamask.shard.failed` also has `stage`, `shard` and `problem`, `datamask.stage.completed` the
`stage`. A server that is away delays nothing: events are sent in the background.
"""

from __future__ import annotations

from typing import Any

from prefect.events import emit_event

from datamask.analysis.summary import query, totals_of
from datamask.runs.run import Run, digest

MOST_SHARDS = 100
"""Maximum number of failed shards of a stage that have an event each."""


def tell(run: Run, event: str, **payload: Any) -> None:
    """Emit `datamask.EVENT` about a run, with the figures that are known.

    `documents` and `tokens` count the selection, `objective` is its value; before the composition
    is up to date, `documents` counts the source, and the others are null.
    """
    figures: dict[str, Any] = {"documents": run.num_documents, "tokens": None, "objective": None}
    if run.state("composition") == "done":
        totals = totals_of(run)["selected"]
        values = query(run, "SELECT selected FROM terms WHERE term = 'objective'")
        figures |= {name: totals[name] for name in ("documents", "tokens")}
        figures["objective"] = values[0]["selected"] if values else None
    evaluation = run.settings.evaluation
    kind = "arms" if evaluation.arms else "texts" if evaluation.has_texts else "none"
    resource = {
        "prefect.resource.id": f"datamask.run.{digest(run.address)[:16]}",
        "prefect.resource.name": run.address,
        "datamask.root": run.address,
        "datamask.evaluation": kind,
    }
    emit_event(event=f"datamask.{event}", resource=resource, payload={**figures, **payload})
