"""The stages of a run: which settings determine each output, and from which outputs it is made.

`runs.run` computes fingerprints from this table, and `execution` finds the work to do in it.
"""

from __future__ import annotations

from datamask.config.selection import TRAINING
from datamask.config.settings import Settings
from datamask.runs import stage_settings as of
from datamask.runs.stage import Stage
from datamask.runs.stages_of_evaluation import EVALUATION
from datamask.runs.stages_of_tokens import TOKENS

STAGES = {
    stage.name: stage
    for stage in (
        Stage(
            "classifier_scores",
            2,
            "datamask.quality.classifier:classify_shard",
            "shard",
            settings=of.classifiers,
            on_device=True,
            where=lambda s: any(score.kind == "classifier" for score in s.scores),
            reads_source=True,
        ),
        Stage(
            "file_scores",
            1,
            "datamask.quality.file_scores:join_scores",
            settings=of.file_scores,
            where=lambda s: any(score.kind == "file" for score in s.scores),
            reads_source=True,
        ),
        Stage(
            "example_models",
            4,
            "datamask.quality.examples:fit_examples",
            settings=of.example_models,
            file="example_models.parquet",
            where=lambda s: any(score.kind == "examples" for score in s.scores),
            reads_source=True,
        ),
        Stage(
            "scores",
            8,
            "datamask.quality.importing:import_scores",
            "shard",
            settings=of.raw_scores,
            after=("classifier_scores", "file_scores"),
            after_all=("example_models",),
            reads_source=True,
        ),
        Stage(
            "benchmark_ngrams",
            4,
            "datamask.hygiene.screening:index_benchmarks",
            settings=of.reads("quality.contamination.ngram", "quality.contamination.sets"),
            file="benchmark_ngrams.parquet",
            where=lambda s: s.quality.contamination is not None,
        ),
        Stage(
            "earlier_signatures",
            4,
            "datamask.hygiene.screening:sign_earlier",
            settings=of.reads(
                "source.columns.text", "source.id_column", "quality.near_duplicates.against"
            ),
            file="earlier_signatures.parquet",
            where=lambda s: bool(s.quality.near_duplicates and s.quality.near_duplicates.against),
        ),
        Stage(
            "screening",
            5,
            "datamask.hygiene.screening:screen_shard",
            "shard",
            settings=of.screening,
            after_all=("benchmark_ngrams",),
            where=lambda s: bool(s.quality.near_duplicates or s.quality.contamination),
            reads_source=True,
        ),
        Stage(
            "combined",
            6,
            "datamask.quality.combining:combine",
            settings=of.combined,
            after_all=("scores", "benchmark_ngrams", "screening"),
            where=lambda s: s.quality.near_duplicates is not None,
        ),
        Stage(
            "similar_pairs",
            2,
            "datamask.hygiene.similar_pairs:find_similar",
            "unit",
            settings=of.reads("quality.near_duplicates.similarity"),
            after_all=("combined", "screening", "earlier_signatures"),
            where=lambda s: s.quality.near_duplicates is not None,
            units="datamask.hygiene.similar_pairs:units",
        ),
        Stage(
            "quality",
            11,
            "datamask.quality.dropping:drop",
            settings=of.pruned,
            after_all=(
                *("scores", "benchmark_ngrams", "screening"),
                *("earlier_signatures", "similar_pairs"),
            ),
        ),
        Stage(
            "embeddings",
            2,
            "datamask.embedding.embed:embed_shard",
            "shard",
            settings=of.embedding,
            on_device=True,
            after=("quality",),
            where=lambda s: s.has_vectors,
        ),
        Stage(
            "topic_model",
            1,
            "datamask.selection.topics:fit_topics",
            settings=of.reads("topics", "seed", "source.layout", "source.columns.text"),
            after_all=("embeddings",),
            file="topic_model.parquet",
            where=lambda s: s.topics is not None and not s.selection.mask_model,
            reads_source=True,
        ),
        Stage(
            "topics",
            1,
            "datamask.selection.topics:assign_topics",
            "shard",
            after=("embeddings",),
            after_all=("topic_model",),
            where=lambda s: s.topics is not None,
        ),
        Stage(
            "corpus_statistics",
            10,
            "datamask.selection.totals:shard_statistics",
            "shard",
            settings=of.statistics,
            on_device=True,
            after=("quality", "embeddings"),
            where=of.exchanges,
            more_inputs=of.balanced_topics,
            pinned_with=("embeddings",),
        ),
        Stage(
            "round",
            18,
            "datamask.selection.rounds:learn_round",
            "shard",
            on_device=True,
            after=("quality", "embeddings", "corpus_statistics", "round"),
            after_all=("round_total",),
            where=of.exchanges,
        ),
        Stage(
            "round_total",
            17,
            "datamask.selection.totals:sum_round",
            "round",
            settings=of.total,
            after_all=("corpus_statistics", "round", "round_total"),
            file="totals/{:02d}.parquet",
            where=of.exchanges,
        ),
        Stage(
            "learning",
            20,
            "datamask.selection.per_shard:learn_logits",
            "shard",
            settings=of.learning,
            on_device=True,
            after=("quality", "embeddings", "round"),
            after_all=("round_total",),
            where=lambda s: s.selection.has_cut,
            more_inputs=of.balanced_topics,
        ),
        Stage(
            "judged",
            1,
            "datamask.selection.judging:judge_shard",
            "shard",
            settings=of.reads("selection.metric", "selection.more_terms"),
            on_device=True,
            after=("quality", "embeddings"),
            where=lambda s: bool(s.selection.mask_model),
            more_inputs=of.balanced_topics,
        ),
        Stage(
            "threshold",
            3,
            "datamask.selection.threshold:cut",
            settings=of.cut,
            after_all=("quality", "learning"),
            file="threshold.parquet",
            where=lambda s: s.selection.has_cut,
            more_inputs=of.limited_topics,
        ),
        Stage(
            "selection",
            24,
            "datamask.selection.per_shard:make_mask",
            "shard",
            settings=of.mask,
            on_device=True,
            after=("quality", "embeddings", "learning", "judged"),
            after_all=("threshold",),
            more_inputs=of.balanced_topics,
        ),
        Stage(
            "outcome",
            9,
            "datamask.selection.outcome:sum_selected",
            "shard",
            settings=lambda s: s.seed,
            on_device=True,
            after=("quality", "embeddings", "selection"),
            after_all=("threshold",),
            where=lambda s: of.exchanges(s) or of.makes_model(s),
        ),
        Stage(
            "mask_model",
            8,
            "datamask.selection.mask_model:make_mask_model",
            settings=lambda s: [s.selection.estimator, s.topics is not None],
            after_all=("quality", "topic_model", "outcome", "round_total", "threshold"),
            file="mask_model/model.json",
            where=of.makes_model,
        ),
        Stage(
            "repeats",
            1,
            "datamask.selection.repeats:find_last_exposure",
            settings=of.reads(*(f"selection.{name}" for name in TRAINING)),
            after_all=("selection",),
            file="repeats.parquet",
            where=lambda s: s.selection.max_repeat > 1,
        ),
        Stage(
            "documents",
            7,
            "datamask.analysis.documents:tabulate",
            "shard",
            settings=lambda s: [s.topics is not None, s.has_vectors],
            after=("scores", "quality", "embeddings", "topics", "selection"),
            after_all=("repeats",),
        ),
        Stage(
            "subset",
            3,
            "datamask.subset.write:write_subset",
            "file",
            settings=of.reads_texts("subset.column_prefix"),
            after_all=("documents",),
            before="datamask.subset.write:remove_other_files",
        ),
        *TOKENS,
        Stage(
            "composition",
            11,
            "datamask.analysis.composition:compose",
            after_all=("documents", "outcome", "round_total"),
            file="composition.duckdb",
        ),
        *EVALUATION,
        Stage(
            "report",
            20,
            "datamask.report.page:write_report",
            settings=lambda s: s.model_dump(mode="json", exclude={"subset", "publication"}),
            after_all=("composition", "evaluation", "order"),
            file="report.html",
        ),
        Stage(
            "publication",
            7,
            "datamask.publishing.publish:publish",
            settings=of.reads("publication", "subset"),
            after_all=("subset", "tokens", "mask_model", "report"),
            file="published.json",
            where=lambda s: s.publication is not None,
        ),
    )
}
"""The stages in the order in which they run. `plan` comes first and is not among them.

In scope `corpus` shards learn by exchanging sums. `corpus_statistics` and total 0 are of a sample.
Then `round` and `round_total` alternate (`execution.attempts.steps`): a unit of `round`
is one shard in one round, and a unit of `round_total` adds up one round over the shards. The rounds
end when the corpus has settled (`Run.last_round`). If more than one is allowed, outputs do not
depend on how many, so raising `selection.rounds` from 2 or more continues from rounds on disk.
"""

SHARD_STAGES = tuple(stage.name for stage in STAGES.values() if stage.each == "shard")
"""Stages whose work is done shard by shard, by as many workers as there are."""

PARALLEL_STAGES = tuple(stage.name for stage in STAGES.values() if stage.in_parallel)
"""These, and stages of other units that several workers can make."""


def stages_of(
    settings: Settings, first: str = "classifier_scores", last: str = "publication"
) -> list[str]:
    """The stages a run goes through, in order; of these, from *first* to *last*."""
    order = list(STAGES)
    part = order[order.index(first) : order.index(last) + 1]
    return [stage for stage in part if STAGES[stage].where(settings)]


def companions(stage: str, unit: int) -> list[str]:
    """Files that are written with a unit's own, before it; the unit is made again without them."""
    names = {
        "documents": [f"tallies/{unit:05d}.parquet"],
        "tokenised": [f"tokenised/{unit:05d}.bin"],
        "tokens": [f"tokens/{unit:05d}.bin", f"tokens/{unit:05d}.idx"],
        "mask_model": ["mask_model/model.safetensors"],
    }
    return names.get(stage, [])


def owner_of(name: str) -> str:
    """The output that is useless without a file that was written with it; empty without one."""
    folder, _, file = name.rpartition("/")
    if folder in ("report", "pictures"):
        return "report.html"
    if folder == "mask_model":
        return "mask_model/model.json"
    if file.endswith((".bin", ".idx")):
        stem = name.rpartition(".")[0]
        return f"{stem}.json" if folder == "tokens" else f"{stem}.parquet"
    return f"documents/{file}" if folder == "tallies" else ""


def merging_stages(settings: Settings) -> list[str]:
    """Of these, the stages from masks to the subset and its composition."""
    return stages_of(settings, "repeats", "composition")


def evaluation_stages(settings: Settings) -> list[str]:
    """Of these, the stages of evaluation; none without arms."""
    return stages_of(settings, "tokenizer", "evaluation")


def learning_stages(settings: Settings) -> list[str]:
    """Of these, the stages after embeddings, up to masks and the mask model."""
    return stages_of(settings, "topic_model", "mask_model")
