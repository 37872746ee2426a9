"""Stage `report`: a self-contained HTML page of a run, and its pictures.

Equal runs have equal pages except for seconds and retries. A run with an evaluation gets a page on
it too, `evaluation.html`.
"""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from datamask.analysis import summary
from datamask.analysis.composition import KINDS, open_composition, query
from datamask.config.compute import Compute
from datamask.embedding.embed import encoder_name
from datamask.embedding.pinning import PIN
from datamask.embedding.speed import embedding_speed, speed_of
from datamask.objectives.weighted import WITHOUT_OBJECTIVE, formula
from datamask.quality.examples import example_figures
from datamask.report import chart_data, redundancy
from datamask.report.charts import Chart
from datamask.report.evaluation import findings, write_evaluation_page
from datamask.report.markdown import SELECTIONS, moved_groups, score_coverage
from datamask.report.pictures import write_captions, write_pictures
from datamask.report.rendering import render
from datamask.report.sample import write_sample
from datamask.report.verdict import verdict, verdict_text
from datamask.report.warnings import learned_from, warnings
from datamask.runs.files import replace_file
from datamask.runs.receipt import html_receipt
from datamask.runs.records import read_record
from datamask.runs.run import Run
from datamask.runs.stage_settings import swaps_together
from datamask.runs.stages import SHARD_STAGES, learning_stages
from datamask.source.texts import with_beginnings

logger = logging.getLogger(__name__)

LISTED_SHARDS = 200
MOVED_GROUPS = 40


def write_report(run: Run, compute: Compute) -> None:
    """Write `report.html`, `pictures/` and the sample that they show.

    Raises:
        RunError: the composition is missing or stale.
        CorruptFileError: a file of the run does not hold the documents of the composition.
        InputError: a file of the source is missing.
    """
    run.receipt("composition")
    # DuckDB opens the file once, and further connections share it: 40 openings cost a second.
    with open_composition(run):
        write_sample(run, compute)
        receipt = run.make_receipt("report", 0, run.num_documents)
        sample = chart_data.sampled(run)
        charts = _charts(run, sample) | {"trained": write_evaluation_page(run)}
        drawn = [chart for part in charts.values() for chart in part]
        write_pictures(run.storage, "pictures", drawn)
        write_captions(run, drawn)
        page = _page(run, charts, sample)
        with replace_file(run.local_path("report"), run.storage) as temporary:
            temporary.write_text(html_receipt(receipt) + page, encoding="utf-8")
        for line in warnings(run):
            logger.warning("%s", line)


def _charts(run: Run, sample: chart_data.Sample) -> dict[str, list[Chart]]:
    return {
        "curves": chart_data.curves(run),
        "maps": [
            chart_data.embedding_map(run, sample),
            chart_data.kept_by_quality_and_density(sample),
        ],
        "lengths": chart_data.lengths(run, sample),
        "compositions": chart_data.composition(run),
        "neighbours": [redundancy.neighbours(run)],
    }


def _page(run: Run, charts: dict[str, Any], sample: chart_data.Sample) -> str:
    settings = run.settings.model_dump(mode="json", exclude={"subset", "publication"})
    settings["source"]["path"] = Path(settings["source"]["path"]).name
    selection = run.settings.selection
    diverse = chart_data.diverse_lengths(sample)
    shards = query(run, "SELECT * FROM shards ORDER BY objective - objective_random, shard")
    groups = {title: chart_data.changed(run, kind) for kind, title in KINDS.items()}
    gaps = [row["optimality_gap"] for row in shards]
    deviations = query(run, "SELECT term, random_std FROM terms")
    stopped = Counter(row["stopped_by"] for row in shards)
    work = _work(run)
    found, figures = findings(run), verdict(run)
    return render(
        "report.html",
        **charts,
        thinned=chart_data.DRAWN_SHARDS if run.num_shards > chart_data.DRAWN_SHARDS else 0,
        repeats=summary.repeats_of(run),
        found=found,
        near=summary.near_duplicates(run),
        benchmarks=summary.benchmarks(run),
        run=run,
        selection=selection,
        title=run.root.absolute().name,
        warnings=warnings(run),
        totals=summary.totals_of(run),
        verdict=figures,
        verdict_words=verdict_text(figures),
        source=settings["source"]["path"],
        has_objective=selection.method not in WITHOUT_OBJECTIVE,
        names=SELECTIONS,
        terms=summary.summary(run),
        formula=formula(selection),
        deviations={row["term"]: row["random_std"] for row in deviations},
        rounds=query(run, "SELECT * FROM rounds ORDER BY round"),
        learned_from=learned_from(run) if selection.num_rounds else "",
        swaps=run.receipt("swaps_total").metrics if swaps_together(run.settings) else None,
        drawn=selection.num_rounds and run.receipt("learning", 0).metrics["drawn"],
        dropped=query(
            run,
            "SELECT dropped AS reason, count(*) AS documents FROM documents "
            "WHERE dropped IS NOT NULL GROUP BY dropped ORDER BY documents DESC, reason",
        ),
        stopped=dict(sorted(stopped.items())),
        estimators=sorted({row["estimator"] for row in shards}),
        # The run has a bound only if every shard has one.
        optimality_gap=None if None in gaps else max(gaps),
        scores=query(run, "SELECT * FROM score_summary"),
        coverage=score_coverage(run),
        correlations=query(run, "SELECT * FROM score_correlations"),
        from_examples=example_figures(run),
        probes=run.receipt("probe").metrics if run.settings.probes else {},
        drift=summary.drift(run),
        moved=moved_groups(run, MOVED_GROUPS),
        groups={title: rows for title, rows in groups.items() if rows},
        redundancy=redundancy.redundancy(run),
        near_duplicate_cosine=redundancy.NEAR_DUPLICATE_COSINE,
        diverse_length=float(np.mean(diverse)) if diverse else None,
        diverse_documents=len(diverse),
        examples=examples(run),
        shards=[row | work[row["shard"]] for row in shards[:LISTED_SHARDS]],
        seconds=sum(row["learning_seconds"] or 0.0 for row in work.values()),
        retries=sum(row["retries"] for row in work.values()),
        speed=embedding_speed(run),
        classifier_speed=embedding_speed(run, stage="classifier_scores"),
        encoder=encoder_name(run),
        revision=run.pinned_revisions.get(PIN),
        settings=yaml.safe_dump(settings, sort_keys=False),
    )


_BEFORE_LEARNING = ("classifier_scores", "scores", "embeddings")


def _work(run: Run) -> dict[int, dict[str, Any]]:
    """Seconds, retries and logs of every shard, as far as they are recorded."""
    found = {}
    stages = [stage for stage in learning_stages(run.settings) if stage in SHARD_STAGES]
    learning = [stage for stage in stages if stage != "outcome"]
    for shard in range(run.num_shards):
        units = [
            (stage, unit)
            for stage in (*_BEFORE_LEARNING, *learning)
            for unit in range(run.num_units(stage))[shard :: run.num_shards]
        ]
        records = [(stage, read_record(run, stage, unit)) for stage, unit in units]
        embedding = dict(records)["embeddings"]
        learnt = [one.seconds or 0.0 for stage, one in records if stage in learning and one]
        found[shard] = {
            "embedding_seconds": embedding.seconds if embedding else None,
            "learning_seconds": sum(learnt) if learnt else None,
            "speed": speed_of([embedding]),
            "retries": sum(record.attempts - 1 for _, record in records if record),
            "logs": [run.folder_of(*unit) for unit in units if run.log_path(*unit).exists()],
        }
    return found


_EXAMPLES = {
    "Kept, near the threshold": "selected ORDER BY logit, id",
    "Dropped, near the threshold": "NOT selected ORDER BY logit DESC, id",
    "Highest logit": "selected ORDER BY logit DESC, id",
    "Dropped despite high quality": "NOT selected ORDER BY quality DESC, id",
}


def examples(run: Run) -> dict[str, list[dict[str, Any]]]:
    """`report.examples` documents of each kind.

    Returns:
        By kind: shard, row, id, quality, logit, characters, and `beginning` of the text
        (None if it was not read).

    Raises:
        RunError: the composition is missing.
    """
    found = {
        kind: query(
            run,
            "SELECT shard, row, id, quality, logit, characters FROM documents "
            f"WHERE dropped IS NULL AND {condition} LIMIT {run.settings.report.examples}",
        )
        for kind, condition in _EXAMPLES.items()
    }
    # One call, because the bytes of text of all kinds together are limited.
    rows = iter(with_beginnings(run, [row for part in found.values() for row in part]))
    return {kind: [next(rows) for _ in part] for kind, part in found.items()}
