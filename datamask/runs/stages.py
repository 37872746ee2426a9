"""The stages of a run: for each output, the settings that determine it and the outputs it reads.

`runs.run` computes fingerprints from this table, and `execution` finds the work to do in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, Literal

from datamask.config.settings import Settings
from datamask.runs import stage_settings as of


@dataclass(frozen=True, slots=True)
class Stage:
    """A kind of output: the settings that determine it and the outputs that it is made from.

    Args:
        name: also its folder, or the stem of its one file.
        version: raise it when the code makes different bytes from the same input.
        work: `module:function` that makes the output (see `each`).
        each: `shard` and `round`: the work is `function(run, unit, compute)`, once per unit;
            `run`: it is `function(run, compute)`, which makes all units that remain;
            `unit`: `function(run, unit, compute)`, once per unit that `units` lists;
            `file`: the same for a file of the subset, which also makes the rest of its group.
        settings: the part of the settings that determines the output.
        where: returns True for settings under which the stage exists.
        after: stages whose outputs of the same shard it reads.
        after_all: stages whose outputs of every shard it reads.
        more_inputs: returns further stages whose outputs it reads under some settings.
        pinned_with: other stages on whose pinned revisions it depends too.
        reads_source: True if it reads the source's rows and no other stage has checked them first.
        on_device: True if the work uses a GPU where there is one.
        file: the one file it makes, or one file per round; empty for one file per shard.
        suffix: file name suffix of its units.
        beside: files that a unit writes before its own, and without which it is made again:
            names with the unit's number or the name of its file, or globs.
        units: `module:function` that lists the `Unit`s that a run has now.
        before: `module:function` that is called with the run, once before the work on its units.
    """

    name: str
    version: int
    work: str
    each: Literal["shard", "round", "run", "unit", "file"] = "run"
    settings: Callable[[Settings], Any] = lambda settings: None
    where: Callable[[Settings], bool] = lambda settings: True
    after: tuple[str, ...] = ()
    after_all: tuple[str, ...] = ()
    more_inputs: Callable[[Settings], tuple[str, ...]] = lambda settings: ()
    pinned_with: tuple[str, ...] = ()
    reads_source: bool = False
    on_device: bool = False
    file: str = ""
    suffix: str = ".parquet"
    beside: tuple[str, ...] = ()
    units: str = ""
    before: str = ""

    def uses_device(self, settings: Settings) -> bool:
        """Return True if the work uses a GPU under these settings; ranks without vectors do not."""
        return self.on_device and ("embeddings" not in self.after or settings.has_vectors)

    @property
    def in_parallel(self) -> bool:
        """True if several workers can make its units at the same time."""
        return self.each in ("shard", "unit", "file")


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of work that is not a shard.

    Args:
        name: of its file within the run, without the suffix.
        settings: what determines its output besides the settings of the stage.
        after: stages and units whose outputs it reads.
        is_extra: True if the results of other units made it necessary.
    """

    name: str
    settings: Any
    after: tuple[tuple[str, int], ...] = ()
    is_extra: bool = False


# fmt: off
_STAGES = (
    # Scores, and documents dropped by them.
    Stage("classifier_scores", 2, "datamask.quality.classifier:classify_shard", "shard",
          of.classifiers, of.has_scores("classifier_scores"), reads_source=True, on_device=True),
    Stage("classes", 1, "datamask.quality.classes:class_documents", "shard", of.classes,
          lambda s: bool(s.source.classifiers), reads_source=True, on_device=True),
    Stage("file_scores", 1, "datamask.quality.file_scores:join_scores", "run",
          of.file_scores, of.has_scores("file_scores"), reads_source=True),
    Stage("example_models", 7, "datamask.quality.examples:fit_examples", "run",
          of.example_models, of.has_scores("example_models"), reads_source=True,
          more_inputs=of.groups_of_examples, file="example_models.parquet"),
    Stage("scores_in_groups", 1, "datamask.quality.in_groups:judge_in_groups", "run",
          of.groups_of_source, of.has_scores("example_models"),
          after_all=("classes", "example_models"), reads_source=True,
          file="scores_in_groups.parquet"),
    Stage("scores", 9, "datamask.quality.importing:import_scores", "shard",
          of.raw_scores, after=("classifier_scores", "file_scores"),
          after_all=("example_models",), reads_source=True),
    Stage("groups", 1, "datamask.source.groups:name_groups", "shard", of.groups,
          lambda s: bool(s.source.groups), after=("classes",), reads_source=True),
    Stage("benchmark_ngrams", 5, "datamask.hygiene.screening:index_benchmarks", "run",
          of.reads("quality.contamination.ngram", "quality.contamination.sets"),
          lambda s: s.quality.contamination is not None, file="benchmark_ngrams.parquet"),
    Stage("earlier_signatures", 4, "datamask.hygiene.screening:sign_earlier", "run",
          of.reads("source.columns.text", "source.id_column", "quality.near_duplicates.against"),
          lambda s: bool(s.quality.near_duplicates and s.quality.near_duplicates.against),
          file="earlier_signatures.parquet"),
    Stage("screening", 6, "datamask.hygiene.screening:screen_shard", "shard", of.screening,
          lambda s: bool(s.quality.near_duplicates or s.quality.contamination),
          after_all=("benchmark_ngrams",), reads_source=True),
    Stage("combined", 6, "datamask.quality.combining:combine", "run",
          of.combined, lambda s: s.quality.near_duplicates is not None,
          after_all=("scores", "benchmark_ngrams", "screening"),
          more_inputs=of.groups_of_quality),
    Stage("similar_pairs", 3, "datamask.hygiene.similar_pairs:find_similar", "unit",
          of.reads("quality.near_duplicates.similarity"),
          lambda s: s.quality.near_duplicates is not None,
          after_all=("combined", "screening", "earlier_signatures"),
          units="datamask.hygiene.similar_pairs:units"),
    Stage("cluster_ngrams", 1, "datamask.hygiene.overlaps:write_ngrams", "unit",
          of.reads("source.columns.text", "source.id_column", "quality.near_duplicates.against"),
          lambda s: s.quality.near_duplicates is not None, after_all=("similar_pairs",),
          pinned_with=("earlier_signatures",), units="datamask.hygiene.overlaps:units"),
    Stage("quality", 12, "datamask.quality.dropping:drop", "run", of.pruned, after_all=(
          "scores", "benchmark_ngrams", "screening", "earlier_signatures", "similar_pairs",
          "cluster_ngrams"), more_inputs=of.groups_of_quality),
    # Vectors and topics.
    Stage("vector_places", 1, "datamask.embedding.vector_files:locate_vectors", "run",
          of.vector_places, lambda s: bool(s.has_vectors and s.vector_files), reads_source=True),
    Stage("embeddings", 2, "datamask.embedding.embed:embed_shard", "shard",
          of.embedding, lambda s: s.has_vectors, after=("quality", "vector_places"),
          on_device=True),
    Stage("topic_model", 2, "datamask.selection.topics:fit_topics", "run",
          of.reads("topics", "seed", "source.layout", "source.columns.text"),
          lambda s: s.topics is not None and not s.selection.mask_model,
          after_all=("embeddings",), reads_source=True, file="topic_model.parquet"),
    Stage("topics", 1, "datamask.selection.topics:assign_topics", "shard",
          where=lambda s: s.topics is not None, after=("embeddings",), after_all=("topic_model",)),
    # Logits and masks. In scope `corpus` shards learn by exchanging sums: `corpus_statistics` and
    # total 0 cover a sample. Then `round` and `round_total` alternate (`execution.attempts.steps`)
    # until the corpus has settled (`Run.last_round`): a unit of `round` is one shard in one round,
    # and a unit of `round_total` adds up one round over the shards. If more than one round is
    # allowed, outputs do not depend on how many, so raising `selection.rounds` from 2 or more
    # continues from rounds on disk.
    Stage("corpus_statistics", 10, "datamask.selection.totals:shard_statistics", "shard",
          of.statistics, of.exchanges, after=("quality", "embeddings"),
          more_inputs=of.balanced_groups, pinned_with=("embeddings",), on_device=True),
    Stage("round", 19, "datamask.selection.rounds:learn_round", "shard", where=of.exchanges,
          after=("quality", "embeddings", "corpus_statistics", "round"),
          after_all=("round_total",), on_device=True),
    Stage("round_total", 22, "datamask.selection.totals:sum_round", "round",
          of.total, of.exchanges, after_all=("corpus_statistics", "round", "round_total"),
          file="totals/{:02d}.parquet"),
    Stage("learning", 27, "datamask.selection.per_shard:learn_logits", "shard",
          of.learning, lambda s: s.selection.has_cut, after=("quality", "embeddings", "round"),
          after_all=("round_total",), more_inputs=of.balanced_groups, on_device=True),
    Stage("judged", 2, "datamask.selection.judging:judge_shard", "shard",
          of.reads("selection.metric", "selection.more_terms"),
          lambda s: bool(s.selection.mask_model), after=("quality", "embeddings"),
          more_inputs=of.balanced_groups, on_device=True),
    Stage("threshold", 3, "datamask.selection.threshold:cut", "run",
          of.cut, lambda s: s.selection.has_cut, after_all=("quality", "learning"),
          more_inputs=of.limited_groups, file="threshold.parquet"),
    Stage("selection", 30, "datamask.selection.per_shard:make_mask", "shard",
          of.mask, after=("quality", "embeddings", "learning", "judged"),
          after_all=("threshold",), more_inputs=of.balanced_groups, on_device=True),
    Stage("outcome", 12, "datamask.selection.outcome:sum_selected", "shard",
          lambda s: s.seed, lambda s: of.exchanges(s) or of.makes_model(s),
          after=("quality", "embeddings", "selection"), after_all=("threshold",), on_device=True),
    Stage("mask_model", 8, "datamask.selection.mask_model:make_mask_model", "run",
          lambda s: [s.selection.estimator, s.topics is not None], of.makes_model,
          after_all=("quality", "topic_model", "outcome", "round_total", "threshold"),
          file="mask_model/model.json", beside=("mask_model/model.safetensors",)),
    Stage("repeats", 1, "datamask.selection.repeats:find_last_exposure", "run",
          of.repeats, lambda s: s.selection.max_repeat > 1, after_all=("selection",),
          more_inputs=of.repeated_groups, file="repeats.parquet"),
    # The selected documents, and what a trainer reads.
    Stage("documents", 7, "datamask.analysis.documents:tabulate", "shard",
          lambda s: [s.topics is not None, s.has_vectors],
          after=("scores", "groups", "quality", "embeddings", "topics", "selection"),
          after_all=("repeats",), beside=("tallies/{:05d}.parquet",)),
    Stage("subset", 3, "datamask.subset.write:write_subset", "file",
          of.reads_texts("subset.column_prefix"), after_all=("documents",),
          before="datamask.subset.write:remove_other_files"),
    Stage("tokenised", 2, "datamask.tokens.tokenise:tokenise", "unit",
          of.reads("tokens.end_of_document", "source.columns.text", "source.id_column"),
          of.makes_tokens, beside=("tokenised/{:05d}.bin",),
          units="datamask.tokens.tokenise:units"),
    Stage("order", 2, "datamask.tokens.order:put_in_order", "run",
          of.reads("tokens.order", "tokens.phases", "seed", "selection.training_tokens"),
          of.makes_tokens, after_all=("repeats", "documents", "tokenised"),
          file="tokens/order.parquet"),
    Stage("tokens", 3, "datamask.tokens.files:write_tokens", "unit", where=of.makes_tokens,
          after_all=("tokenised", "order"), suffix=".json",
          beside=("tokens/{:05d}.bin", "tokens/{:05d}.idx", "tokens/{:05d}.csv.gz"),
          units="datamask.tokens.files:units"),
    Stage("composition", 11, "datamask.analysis.composition:compose", "run",
          after_all=("documents", "outcome", "round_total"), file="composition.duckdb"),
    # Evaluation: models that are trained on selections.
    Stage("tokenizer", 2, "datamask.evaluation.texts:make_tokenizer", "run",
          of.reads_texts("evaluation.model", "seed"), of.evaluates, after_all=("quality",),
          file="evaluation/tokenizer.parquet"),
    Stage("held_out", 10, "datamask.evaluation.texts:encode_held_out", "run",
          of.held_out, of.evaluates, after_all=("quality", "tokenizer"),
          more_inputs=of.held_out_groups,
          pinned_with=("example_models",), file="evaluation/held_out.parquet"),
    Stage("arms", 5, "datamask.evaluation.arms:make_arm", "unit",
          lambda s: s.evaluation.tokens, of.evaluates,
          after_all=("quality", "tokenizer", "held_out"),
          units="datamask.evaluation.units:arm_units"),
    Stage("training", 5, "datamask.evaluation.training:train", "unit",
          lambda s: s.evaluation.model_dump(mode="json", include={"model", "tokens", "epochs"}),
          of.evaluates, after_all=("tokenizer", "held_out"), on_device=True,
          beside=("evaluation/training/{name}.safetensors",),
          units="datamask.evaluation.units:training_units",
          before="datamask.evaluation.arms:check_tokens"),
    Stage("evaluation", 8, "datamask.evaluation.results:evaluate", "run",
          of.reads("evaluation.arms.name", "evaluation.tokens", "evaluation.epochs",
                   "evaluation.learning_rates", "evaluation.seeds"),
          of.evaluates, after_all=("arms", "training"), file="evaluation.parquet"),
    # The report and the publication.
    Stage("report", 27, "datamask.report.page:write_report", "run",
          of.report,
          after_all=("composition", "evaluation", "order", "scores_in_groups"), file="report.html",
          beside=("report/*.parquet", "report/*.json", "pictures/*.png")),
    Stage("publication", 7, "datamask.publishing.publish:publish", "run",
          of.reads("publication", "subset"), lambda s: s.publication is not None,
          after_all=("subset", "tokens", "mask_model", "report"), file="published.json"),
)
# fmt: on

STAGES = {stage.name: stage for stage in _STAGES}
"""The stages in the order in which they run. `plan` comes first and is not among them."""

SHARD_STAGES = tuple(stage.name for stage in _STAGES if stage.each == "shard")
"""Stages that do their work shard by shard, by as many workers as there are."""

PARALLEL_STAGES = tuple(stage.name for stage in _STAGES if stage.in_parallel)
"""The stages above, and stages with other units that several workers can make."""

_BESIDE = [(re.sub(r"\{.*\}", "*", name), stage) for stage in _STAGES for name in stage.beside]


def stages_of(
    settings: Settings, first: str = "classifier_scores", last: str = "publication"
) -> list[str]:
    """List the stages of a run with these settings, in order, from *first* to *last*."""
    order = list(STAGES)
    chosen = order[order.index(first) : order.index(last) + 1]
    return [stage for stage in chosen if STAGES[stage].where(settings)]


@lru_cache(maxsize=1024)
def owner_of(name: str) -> str:
    """Name the output that a file was written beside and that it is useless without, or nothing."""
    for pattern, stage in _BESIDE:
        if fnmatchcase(name, pattern):
            path = PurePosixPath(name)
            folder = path.parent if stage.units else PurePosixPath(stage.name)
            stem = path.name.removesuffix(pattern.rpartition("*")[2])
            return stage.file or f"{folder / stem}{stage.suffix}"
    return ""


def learning_stages(settings: Settings) -> list[str]:
    """List the stages of a run after embeddings, up to masks and the mask model."""
    return stages_of(settings, "topic_model", "mask_model")


def merging_stages(settings: Settings) -> list[str]:
    """List the stages that turn a run's masks into its subset and its composition."""
    return stages_of(settings, "repeats", "composition")


def evaluation_stages(settings: Settings) -> list[str]:
    """List the evaluation stages of a run; empty if it has no arms."""
    return stages_of(settings, "tokenizer", "evaluation")
