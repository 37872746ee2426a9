"""The stages of a run: which settings determine each output, and from which outputs it is made.

`runs.run` computes fingerprints from this table, and `execution` finds the work to do in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from datamask.config.selection import TRAINING
from datamask.config.settings import Settings


@dataclass(frozen=True, slots=True)
class Stage:
    """A kind of output: which settings determine it and which outputs it is made from.

    Args:
        name: also its folder, or the stem of its one file.
        version: raise it when the code makes different bytes from the same input.
        settings: the part of the settings that determines the output.
        work: `module:function` that makes the output (see `each`).
        each: `shard` and `round`: the work is `function(run, unit, compute)`, once per unit;
            `run`: it is `function(run, compute)`, which makes all units that are left.
        on_device: whether the work uses a GPU where there is one.
        after: stages whose outputs of the same shard it reads.
        after_all: stages whose outputs of every shard it reads.
        file: the one file it makes, or one file per round; empty for one file per shard.
        where: the settings under which there is such a stage.
        reads_source: whether it reads the source's rows without another stage's word for them.
    """

    name: str
    version: int
    settings: Callable[[Settings], Any]
    work: str
    each: Literal["shard", "round", "run"] = "run"
    on_device: bool = False
    after: tuple[str, ...] = ()
    after_all: tuple[str, ...] = ()
    file: str = ""
    where: Callable[[Settings], bool] = lambda settings: True
    reads_source: bool = False


_COMBINING = {"weight", "normalisation", "normalise_within", "missing", "fill_value"}
"""Settings of a score that its raw values do not depend on."""


def _raw_scores(settings: Settings) -> Any:
    ignored = {*_COMBINING, "model", "revision"}
    scores = [score.model_dump(mode="json", exclude=ignored) for score in settings.scores]
    return [settings.source.layout, settings.source.columns, settings.source.tokenizer, scores]


def _screening(settings: Settings) -> Any:
    near, known = settings.quality.near_duplicates, settings.quality.contamination
    columns = [settings.source.columns.text, settings.source.id_column]
    return [*columns, near and near.ngram, known and known.ngram]


def _quality(settings: Settings) -> Any:
    quality = settings.quality
    near, known = quality.near_duplicates, quality.contamination
    hygiene = [quality.duplicates, near and near.similarity, known and known.action]
    return [settings.scores, settings.prune_fraction, *hygiene]


def _has_earlier(settings: Settings) -> bool:
    near = settings.quality.near_duplicates
    return near is not None and bool(near.against)


def _classifiers(settings: Settings) -> Any:
    ignored = {*_COMBINING, "model", "revision", "column", "path", "id_column", "label"}
    scores = [score for score in settings.scores if score.kind == "classifier"]
    chosen = [score.model_dump(mode="json", exclude=ignored) for score in scores]
    return [settings.source.id_column, settings.source.columns.text, chosen]


def _embedding(settings: Settings) -> Any:
    if settings.source.layout == "features":
        return settings.embedding.dimension
    if not settings.embedding.has_model:
        return [settings.embedding.method, settings.embedding.dimension]
    return settings.embedding.model_dump(mode="json", exclude={"model", "revision"})


def _learnt(settings: Settings) -> Any:
    """Without `rounds`, see below; limits matter when all shards are cut together."""
    every = settings.selection.of_mask()
    return [{key: every[key] for key in every if key not in ("rounds", "limits")}, settings.seed]


def _has_probes(settings: Settings) -> bool:
    return bool(settings.probes)


def _exchanges(settings: Settings) -> bool:
    return settings.selection.scope == "corpus"


STAGES = {
    stage.name: stage
    for stage in (
        Stage(
            "classifier_scores",
            1,
            _classifiers,
            "datamask.quality.classifier:classify_shard",
            "shard",
            on_device=True,
            where=lambda s: any(score.kind == "classifier" for score in s.scores),
            reads_source=True,
        ),
        Stage(
            "scores",
            3,
            _raw_scores,
            "datamask.quality.importing:import_scores",
            "shard",
            after=("classifier_scores",),
            reads_source=True,
        ),
        Stage(
            "benchmark_ngrams",
            1,
            lambda s: (
                s.quality.contamination and s.quality.contamination.model_dump(exclude={"action"})
            ),
            "datamask.hygiene.screening:index_benchmarks",
            file="benchmark_ngrams.parquet",
            where=lambda s: s.quality.contamination is not None,
        ),
        Stage(
            "earlier_signatures",
            1,
            lambda s: _screening(s)[:3],
            "datamask.hygiene.screening:sign_earlier",
            file="earlier_signatures.parquet",
            where=_has_earlier,
        ),
        Stage(
            "screening",
            1,
            _screening,
            "datamask.hygiene.screening:screen_shard",
            "shard",
            after_all=("benchmark_ngrams",),
            where=lambda s: bool(s.quality.near_duplicates or s.quality.contamination),
            reads_source=True,
        ),
        Stage(
            "quality",
            3,
            _quality,
            "datamask.quality.combining:combine_scores",
            after_all=("scores", "screening", "earlier_signatures"),
        ),
        Stage(
            "embeddings",
            1,
            _embedding,
            "datamask.embedding.embed:embed_shard",
            "shard",
            on_device=True,
            after=("quality",),
        ),
        Stage(
            "probe",
            1,
            lambda s: [[p.name, p.column, p.id_column, p.least_correlation] for p in s.probes],
            "datamask.quality.probe:fit_probes",
            after_all=("embeddings",),
            file="probe.parquet",
            where=_has_probes,
        ),
        Stage(
            "probe_scores",
            1,
            lambda s: None,
            "datamask.quality.probe:apply_probes",
            "shard",
            after=("embeddings",),
            after_all=("probe",),
            where=_has_probes,
        ),
        Stage(
            "probed_quality",
            1,
            lambda s: [[p.name, p.weight, p.normalisation] for p in s.probes],
            "datamask.quality.probe:add_probes",
            "shard",
            after=("quality",),
            after_all=("probe_scores",),
            where=_has_probes,
        ),
        Stage(
            "corpus_statistics",
            1,
            _learnt,
            "datamask.selection.across_shards:shard_statistics",
            "shard",
            on_device=True,
            after=("quality", "probed_quality", "embeddings"),
            where=_exchanges,
        ),
        Stage(
            "round",
            2,
            _learnt,
            "datamask.selection.across_shards:learn_round",
            "shard",
            on_device=True,
            after=("quality", "probed_quality", "embeddings", "corpus_statistics", "round"),
            after_all=("round_total",),
            where=_exchanges,
        ),
        Stage(
            "round_total",
            3,
            _learnt,
            "datamask.selection.across_shards:sum_round",
            "round",
            after_all=("corpus_statistics", "round", "round_total"),
            file="totals/{:02d}.parquet",
            where=_exchanges,
        ),
        Stage(
            "learning",
            2,
            _learnt,
            "datamask.selection.per_shard:learn_logits",
            "shard",
            on_device=True,
            after=("quality", "probed_quality", "embeddings", "round"),
            after_all=("round_total",),
            where=lambda s: s.selection.has_cut,
        ),
        Stage(
            "threshold",
            2,
            lambda s: s.selection.of_mask(),
            "datamask.selection.threshold:cut",
            after_all=("quality", "probed_quality", "learning"),
            file="threshold.parquet",
            where=lambda s: s.selection.has_cut,
        ),
        Stage(
            "outcome",
            1,
            lambda s: [s.selection.of_mask(), s.seed],
            "datamask.selection.outcome:sum_selected",
            "shard",
            on_device=True,
            after=("quality", "probed_quality", "embeddings", "learning"),
            after_all=("threshold",),
            where=_exchanges,
        ),
        Stage(
            "selection",
            5,
            lambda s: [s.selection.of_mask(), s.seed],
            "datamask.selection.per_shard:make_mask",
            "shard",
            on_device=True,
            after=("quality", "probed_quality", "embeddings", "learning"),
            after_all=("threshold",),
        ),
        Stage(
            "repeats",
            1,
            lambda s: [getattr(s.selection, name) for name in TRAINING],
            "datamask.selection.repeats:find_last_exposure",
            after_all=("selection",),
            file="repeats.parquet",
            where=lambda s: s.selection.max_repeat > 1,
        ),
        Stage(
            "subset",
            2,
            lambda s: s.subset,
            "datamask.subset.write:merge_subset",
            after_all=("selection", "repeats"),
        ),
        Stage(
            "composition",
            5,
            lambda s: None,
            "datamask.analysis.composition:compose",
            after_all=("selection", "repeats", "outcome", "round_total"),
            file="composition.duckdb",
        ),
        Stage(
            "report",
            5,
            lambda s: s.report,
            "datamask.report.page:write_report",
            after_all=("composition",),
            file="report.html",
        ),
        Stage(
            "publication",
            3,
            lambda s: s.publication,
            "datamask.publishing.publish:publish",
            after_all=("subset", "report"),
            file="published.json",
            where=lambda s: s.publication is not None,
        ),
    )
}
"""The stages in the order in which they run. `plan` comes first and is not among them.

In scope `corpus` shards learn by exchanging sums. `corpus_statistics` and total 0 are of all
documents. Then `round` and `round_total` alternate (`execution.attempts.steps`): a unit of `round`
is one shard in one round, and a unit of `round_total` adds up one round over the shards. The rounds
end when the corpus has settled (`Run.last_round`). Their outputs do not depend on how many rounds
are allowed, so raising `selection.rounds` continues from the rounds on disk.
"""

SHARD_STAGES = tuple(stage.name for stage in STAGES.values() if stage.each == "shard")
"""Stages whose work is done shard by shard, by as many workers as there are."""


def stages_of(settings: Settings) -> list[str]:
    """The stages a run goes through, in order."""
    return [stage.name for stage in STAGES.values() if stage.where(settings)]


def learning_stages(settings: Settings) -> list[str]:
    """Of these, the stages from embeddings to masks: one, or rounds over all shards and a cut."""
    stages = stages_of(settings)
    return stages[stages.index("embeddings") + 1 : stages.index("selection") + 1]
