"""Stage `report`: a self-contained HTML page of a run, and its pictures.

The page says what was selected, whether to trust it and what to do next; then people can look at
the trade-off, at the groups and at the documents. Equal runs have equal pages except for seconds,
retries and the date. A run with an evaluation gets a page on it too, `evaluation.html`.
"""

from __future__ import annotations

import logging
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from datamask.analysis import summary
from datamask.analysis.summary import open_composition, query
from datamask.config.compute import Compute
from datamask.embedding.embed import encoder_name
from datamask.embedding.pinning import PIN
from datamask.embedding.speed import embedding_speed
from datamask.objectives.formula import formula
from datamask.quality.examples import example_figures
from datamask.quality.in_groups import rows_in_groups
from datamask.report import chart_data, page_data
from datamask.report.answer import Answer, answer
from datamask.report.charts import Chart, write_captions, write_pictures
from datamask.report.evaluation import Findings, findings, write_evaluation_page
from datamask.report.findings import learned_from
from datamask.report.redundancy import (
    NEAR_DUPLICATE_COSINE,
    compared_copies,
    neighbours_path,
    sample_path,
)
from datamask.report.rendering import STEPS, render
from datamask.report.sample import write_sample
from datamask.runs.files import write_text_file
from datamask.runs.receipt import html_receipt
from datamask.runs.records import read_record
from datamask.runs.run import Run
from datamask.runs.stages import SHARD_STAGES, learning_stages

logger = logging.getLogger(__name__)

LISTED_SHARDS = 200
MOVED_GROUPS = 40


def write_report(run: Run, compute: Compute) -> None:
    """Write `report.html`, `pictures/` and, unless it is done, the sample that they show.

    Only the sample needs the source, which may be gone when a report is written again.

    Raises:
        RunError: the composition is missing or stale.
        CorruptFileError: a file of the run does not hold the documents of the composition.
        InputError: a file of the source is missing.
    """
    run.receipt("composition")
    # DuckDB opens the file once, and further connections share it: 40 openings cost a second.
    with open_composition(run, "totals"):
        due, files = run.fingerprint("report"), (sample_path(run), neighbours_path(run))
        if any(run.state_of(path, due) != "done" for path in files):
            write_sample(run)
        receipt = run.make_receipt("report", 0, run.num_documents)
        charts = chart_data.training_windows(run)
        if run.settings.has_vectors:
            charts = [chart_data.tradeoff(run), chart_data.embedding_map(run), *charts]
        curves = chart_data.curve_charts({"": run})
        evaluated = findings(run)
        trained = write_evaluation_page(run, evaluated) if evaluated else []
        write_pictures(run.storage, [*charts, *trained, *curves])
        write_captions(run, [*charts, *trained, *curves])
        answered = answer(run)
        page = _page(run, answered, evaluated, charts, trained, curves)
        write_text_file(run.local_path("report"), html_receipt(receipt) + page, run.storage)
        for line in answered.warnings:
            logger.warning("%s", line)


def _page(
    run: Run,
    answered: Answer,
    evaluated: Findings | None,
    charts: list[Chart],
    trained: list[Chart],
    curves: list[Chart],
) -> str:
    settings = run.in_force.model_dump(mode="json", exclude={"subset", "publication"})
    settings["source"]["path"] = Path(settings["source"]["path"]).name
    selection = run.in_force.selection
    shards = query(run, "SELECT * FROM shards ORDER BY objective - objective_random, shard")
    funnel, tabs = summary.funnel_of(run), summary.tabs_of(run.settings)
    groups, documents = page_data.groups(run), page_data.documents(run)
    kinds = {row[0] for row in groups}
    return render(
        "report.html",
        title=run.root.absolute().name,
        today=date.today().isoformat(),
        run=run,
        source=settings["source"]["path"],
        settings=yaml.safe_dump(settings, sort_keys=False),
        selection=selection,
        pruned=run.in_force.prune_fraction,
        formula=formula(selection),
        names=chart_data.NAMES,
        charts=charts,
        trained=trained,
        curves=curves,
        answer=answered,
        evaluated=evaluated,
        # From `composition.duckdb`.
        funnel=funnel,
        kinds={kind: name for kind, name in tabs.items() if kind in kinds},
        repeats=summary.repeats_of(run),
        tokens=summary.tokens_of(run),
        benchmarks=summary.benchmarks(run),
        drift=summary.drift(run),
        scores=query(run, "SELECT * FROM score_summary"),
        correlations=query(run, "SELECT * FROM score_correlations"),
        explained=query(run, "SELECT * FROM score_explained"),
        moved=summary.moved_groups(run, MOVED_GROUPS),
        rounds=query(run, "SELECT * FROM rounds ORDER BY round"),
        # The rows of the tables that the page's script searches.
        documents=len(documents),
        first_documents=page_data.first_documents(documents),
        states=page_data.choices(documents),
        data=page_data.packed(
            {
                "steps": [STEPS[row["step"]] for row in funnel],
                "groups": groups,
                "documents": documents,
                "near": NEAR_DUPLICATE_COSINE if run.settings.has_vectors else None,
            }
        ),
        # From receipts and records of stages.
        copies=compared_copies(run),
        fitted=example_figures(run),
        in_groups=rows_in_groups(run),
        shards=[row | _work(run, row["shard"]) for row in shards[:LISTED_SHARDS]],
        learned_from=learned_from(run) if selection.num_rounds else "",
        drawn=selection.num_rounds and run.receipt("learning", 0).metrics["drawn"],
        speed=embedding_speed(run),
        encoder=encoder_name(run) if run.settings.has_vectors else None,
        revision=run.pinned_revisions.get(PIN),
    )


def _work(run: Run, shard: int) -> dict[str, Any]:
    """Return seconds of work on a shard and failed attempts, as far as they are recorded."""
    stages = [stage for stage in learning_stages(run.settings) if stage in SHARD_STAGES]
    units = [
        (stage, unit)
        for stage in ("classifier_scores", "classes", "scores", "embeddings", *stages)
        for unit in range(run.num_units(stage))[shard :: run.num_shards]
    ]
    records = [record for unit in units if (record := read_record(run, *unit))]
    seconds = sum(record.seconds or 0.0 for record in records)
    return {"seconds": seconds, "retries": sum(record.attempts - 1 for record in records)}
