"""Stage `report`: one self-contained HTML page of a run, and its pictures.

It opens with no network and no server: charts are SVG inside it, and a content security policy
forbids everything else. Text from the data is escaped by the template engine and by the renderer of
the charts. The page is a function of the run's files, so equal runs have
equal pages but for seconds and retries.
"""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from datamask import __version__
from datamask.analysis.composition import query
from datamask.analysis.summary import summary
from datamask.config.compute import Compute
from datamask.embedding.embed import encoder_name
from datamask.embedding.pinning import PIN
from datamask.embedding.speed import embedding_speed, speed_of
from datamask.objectives.weighted import formula
from datamask.report import chart_data, redundancy
from datamask.report.charts import Chart, svg
from datamask.report.examples import examples
from datamask.report.markdown import (
    KINDS,
    MOVED,
    SELECTIONS,
    moved_groups,
    number,
    score_coverage,
    share,
)
from datamask.report.pictures import write_pictures
from datamask.report.sample import write_sample
from datamask.report.warnings import warnings
from datamask.runs.files import replace_file
from datamask.runs.receipt import html_receipt
from datamask.runs.records import read_record
from datamask.runs.run import Run
from datamask.runs.stages import SHARD_STAGES, learning_stages

logger = logging.getLogger(__name__)

LISTED_SHARDS = 200
MOVED_GROUPS = 40
FOLDER = Path(__file__).parent / "templates"
SECTIONS = (
    ("terms", "Terms"),
    ("optimisation", "Optimisation"),
    ("map-of", "Map"),
    ("length", "Length"),
    ("composition", "Composition"),
    ("redundancy", "Redundancy"),
    ("scores", "Scores"),
    ("examples", "Examples"),
    ("shards", "Shards"),
    ("settings", "Settings"),
)


def write_report(run: Run, compute: Compute) -> None:
    """Write `report.html`, `pictures/` and the sample they are made from.

    Raises:
        RunError: the composition is missing or stale.
        CorruptFileError: a file of the run does not hold the documents of the composition.
        InputError: a file of the source is gone.
    """
    run.receipt("composition")
    write_sample(run, compute)
    receipt = run.make_receipt("report", 0, run.num_documents)
    charts = _charts(run)
    drawn = [chart for part in charts.values() for chart in part]
    write_pictures(run.storage, "pictures", drawn)
    with replace_file(run.local_path("report"), run.storage) as temporary:
        temporary.write_text(html_receipt(receipt) + _page(run, charts), encoding="utf-8")
    for line in warnings(run):
        logger.warning("%s", line)


def _charts(run: Run) -> dict[str, list[Chart]]:
    sample = chart_data.sampled(run)
    lengths = [chart_data.lengths(run, sample), chart_data.length_bands(run)]
    return {
        "curves": chart_data.curves(run),
        "maps": [chart_data.embedding_map(sample), chart_data.kept_by_quality_and_density(sample)],
        "lengths": [chart for chart in lengths if chart is not None],
        "compositions": chart_data.composition(run),
        "neighbours": [redundancy.neighbours(run)],
    }


def _page(run: Run, charts: dict[str, list[Chart]]) -> str:
    totals = {row["selection"]: row for row in query(run, "SELECT * FROM totals")}
    settings = run.settings.model_dump(mode="json")
    settings["source"]["path"] = Path(settings["source"]["path"]).name
    sample = chart_data.sampled(run)
    diverse = sample["characters"][sample["diverse"].astype(bool)]
    known = [value for value in diverse.tolist() if value is not None]
    shards = query(run, "SELECT * FROM shards ORDER BY objective - objective_random, shard")
    groups = {title: chart_data.changed(run, kind) for kind, title in KINDS.items()}
    gaps = [row["optimality_gap"] for row in shards if row["optimality_gap"] is not None]
    terms = query(run, "SELECT term, random_std FROM terms")
    work = _work(run)
    return render(
        "report.html",
        **charts | {"neighbours": charts["neighbours"][0]},
        thinned=chart_data.DRAWN_SHARDS if run.num_shards > chart_data.DRAWN_SHARDS else 0,
        sections=SECTIONS,
        title=run.root.absolute().name,
        warnings=warnings(run),
        totals=totals,
        names=SELECTIONS,
        terms=summary(run),
        scope=run.settings.selection.scope,
        formula=formula(run.settings.selection),
        deviations={row["term"]: row["random_std"] for row in terms},
        learnt=run.settings.selection.method == "mask",
        rounds=query(run, "SELECT * FROM rounds ORDER BY round"),
        dropped=_dropped(run),
        stopped=_counted(row["stopped_by"] for row in shards),
        estimators=sorted({row["estimator"] for row in shards}),
        # A bound of the whole run needs a bound of every shard.
        optimality_gap=max(gaps) if len(gaps) == len(shards) else None,
        metric_note=f"{run.settings.selection.metric} is not concave"
        if run.settings.selection.method == "mask"
        and run.settings.selection.metric in ("disf", "facility_location")
        else "",
        scores=query(run, "SELECT * FROM score_summary"),
        coverage={row["score"]: row["covered"] for row in score_coverage(run)},
        correlations=query(run, "SELECT * FROM score_correlations"),
        probes=run.receipt("probe").metrics if run.settings.probes else {},
        moved=moved_groups(run, MOVED_GROUPS),
        moved_note=MOVED,
        groups={title: rows for title, rows in groups.items() if rows},
        redundancy=redundancy.redundancy(run),
        near_duplicate_cosine=run.settings.report.near_duplicate_cosine,
        diverse_length=float(np.mean(known)) if known else None,
        diverse_documents=len(known),
        examples=examples(run),
        shards=[row | work[row["shard"]] for row in shards[:LISTED_SHARDS]],
        seconds=sum(row["learning_seconds"] or 0.0 for row in work.values()),
        retries=sum(row["retries"] for row in work.values()),
        speed=embedding_speed(run),
        classifier_speed=embedding_speed(run, stage="classifier_scores"),
        num_shards=run.num_shards,
        encoder=encoder_name(run),
        revision=run.pinned_revisions.get(PIN),
        settings=yaml.safe_dump(settings, sort_keys=False),
    )


def _dropped(run: Run) -> list[tuple[str, int]]:
    """Why documents were dropped, and how many."""
    rows = query(
        run,
        "SELECT dropped AS reason, count(*) AS documents FROM documents "
        "WHERE dropped IS NOT NULL GROUP BY dropped ORDER BY documents DESC, reason",
    )
    return [(row["reason"], row["documents"]) for row in rows]


def _counted(values: Any) -> list[str]:
    counts = Counter(values)
    if len(counts) == 1:
        return list(counts)
    return [f"{name} ({count})" for name, count in sorted(counts.items())]


_BEFORE_LEARNING = ("classifier_scores", "scores", "embeddings")


def _work(run: Run) -> dict[int, dict[str, Any]]:
    """Seconds, retries and logs of every shard, as far as they are on record."""
    found = {}
    learning = [stage for stage in learning_stages(run.settings) if stage in SHARD_STAGES]
    for shard in range(run.num_shards):
        units = [
            (stage, unit)
            for stage in (*_BEFORE_LEARNING, *learning)
            for unit in range(run.num_units(stage))[shard :: run.num_shards]
        ]
        records = [(stage, read_record(run, stage, unit)) for stage, unit in units]
        embedding = records[_BEFORE_LEARNING.index("embeddings")][1]
        learnt = [
            record.seconds or 0.0 for stage, record in records if stage in learning and record
        ]
        found[shard] = {
            "embedding_seconds": embedding.seconds if embedding else None,
            "learning_seconds": sum(learnt) if learnt else None,
            "speed": speed_of([embedding]),
            "retries": sum(record.attempts - 1 for _, record in records if record),
            "logs": [run.folder_of(*unit) for unit in units if run.log_path(*unit).exists()],
        }
    return found


def render(template: str, **values: Any) -> str:
    """A self-contained page.

    Args:
        template: its name in `templates/`.
        **values: what the template names.
    """
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["number"] = number
    environment.filters["share"] = share
    environment.filters["svg"] = lambda chart, width, **how: Markup(svg(chart, width, **how))
    return environment.get_template(template).render(
        css=Markup((FOLDER / "page.css").read_text(encoding="utf-8")),
        js=Markup((FOLDER / "page.js").read_text(encoding="utf-8")),
        version=__version__,
        **values,
    )
