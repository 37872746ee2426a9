"""The stages of a run: which settings determine each output, and from which outputs it is made.

`runs.run` computes fingerprints from this table; the functions that do the work are named here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from datamask.config.selection import MOST_ROUNDS
from datamask.config.settings import Settings


@dataclass(frozen=True, slots=True)
class Stage:
    """A kind of output: which settings determine it and which outputs it is made from.

    Args:
        name: also its folder, or the stem of its one file.
        version: raise it when the code makes different bytes from the same input.
        settings: the part of the settings that determines the output.
        after: stages whose outputs of the same shard it reads.
        after_all: stages whose outputs of every shard it reads.
        file: the one file it makes; empty for one file per shard.
        where: the settings under which there is such a stage.
        round: the number of the exchange between shards that it is part of.
    """

    name: str
    version: int
    settings: Callable[[Settings], Any]
    after: tuple[str, ...] = ()
    after_all: tuple[str, ...] = ()
    file: str = ""
    where: Callable[[Settings], bool] = lambda settings: True
    round: int | None = None


def _raw_scores(settings: Settings) -> Any:
    ignored = {"weight", "normalisation", "missing", "fill"}
    scores = [score.model_dump(mode="json", exclude=ignored) for score in settings.scores]
    return [settings.source.layout, settings.source.columns, settings.source.tokenizer, scores]


def _embedding(settings: Settings) -> Any:
    if settings.source.layout == "features":
        return settings.embedding.dimension
    if not settings.embedding.has_model:
        return [settings.embedding.method, settings.embedding.dimension]
    return settings.embedding.model_dump(mode="json", exclude={"model", "revision"})


def _learnt(settings: Settings) -> Any:
    """More rounds go on from those that there are; limits matter when shards are cut together."""
    return [settings.selection.model_dump(mode="json", exclude={"rounds", "limits"}), settings.seed]


def _rounds() -> Iterator[Stage]:
    """Learning in scope `corpus`: every shard hands over sums, they are added up, again and again.

    `survey` and `total-0` are of all documents, and there whatever the method, since results are
    compared with random subsets; `round-N` and `total-N` are of those selected so far. The rounds
    end when the corpus has settled (`Run.last_round`).
    """

    def where(settings: Settings) -> bool:
        return settings.selection.scope == "corpus"

    yield Stage("survey", 1, _learnt, after=("quality", "embeddings"), where=where)
    yield Stage("total-0", 2, _learnt, (), ("survey",), "totals/0.parquet", where, 0)
    for n in range(1, MOST_ROUNDS + 1):
        before, total = "survey" if n == 1 else f"round-{n - 1}", f"total-{n - 1}"

        def has_round(settings: Settings, n: int = n) -> bool:
            return settings.selection.num_rounds >= n

        inputs = ("quality", "embeddings", before)
        yield Stage(f"round-{n}", 1, _learnt, inputs, (total,), "", has_round, n)
        file = f"totals/{n}.parquet"
        yield Stage(f"total-{n}", 2, _learnt, (), (total, f"round-{n}"), file, has_round, n)


STAGES = {
    stage.name: stage
    for stage in (
        Stage("scores", 3, _raw_scores),
        Stage(
            "quality",
            2,
            lambda s: [s.scores, s.prune, s.quality.duplicates],
            after_all=("scores",),
        ),
        Stage("embeddings", 1, _embedding, after=("quality",)),
        *_rounds(),
        Stage(
            "logits",
            2,
            _learnt,
            after=("quality", "embeddings", *(f"round-{n}" for n in range(1, MOST_ROUNDS + 1))),
            after_all=tuple(f"total-{n}" for n in range(1, MOST_ROUNDS + 1)),
            where=lambda s: s.selection.has_cut,
        ),
        Stage(
            "cut",
            2,
            lambda s: s.selection,
            after_all=("quality", "logits"),
            file="cut.parquet",
            where=lambda s: s.selection.has_cut,
        ),
        Stage(
            "outcome",
            1,
            lambda s: [s.selection, s.seed],
            after=("quality", "embeddings", "logits"),
            after_all=("cut",),
            where=lambda s: s.selection.scope == "corpus",
        ),
        Stage(
            "masks",
            4,
            lambda s: [s.selection, s.seed],
            after=("quality", "embeddings", "logits"),
            after_all=("cut",),
        ),
        Stage("subset", 2, lambda s: s.subset, after_all=("masks",)),
        Stage(
            "composition",
            4,
            lambda s: None,
            after_all=("masks", "outcome", "total-0"),
            file="composition.duckdb",
        ),
        Stage("report", 4, lambda s: s.report, after_all=("composition",), file="report.html"),
        Stage(
            "publication",
            2,
            lambda s: s.publication,
            after_all=("subset", "report"),
            file="published.json",
            where=lambda s: s.publication is not None,
        ),
    )
}
"""The stages in the order in which they run. `plan` comes first and is not among them."""


if TYPE_CHECKING:
    pass

SHARD_WORK = {
    "scores": "datamask.quality.importing:import_scores",
    "embeddings": "datamask.embedding.embed:embed_shard",
    "survey": "datamask.selection.across_shards:survey_shard",
    **{
        f"round-{n}": "datamask.selection.across_shards:learn_round"
        for n in range(1, MOST_ROUNDS + 1)
    },
    "logits": "datamask.selection.per_shard:learn_logits",
    "outcome": "datamask.selection.outcome:sum_selected",
    "masks": "datamask.selection.per_shard:make_mask",
}
"""Stages worked on shard by shard: `function(run, shard, compute)`."""

ON_DEVICE = tuple(stage for stage in SHARD_WORK if stage != "scores")
"""Stages that compute on a GPU where there is one."""

RUN_WORK = {
    "quality": "datamask.quality.combining:combine_scores",
    "total-0": "datamask.selection.across_shards:sum_survey",
    **{
        f"total-{n}": "datamask.selection.across_shards:sum_round"
        for n in range(1, MOST_ROUNDS + 1)
    },
    "cut": "datamask.selection.threshold:cut",
    "subset": "datamask.subset.write:merge_subset",
    "composition": "datamask.analysis.composition:compose",
    "report": "datamask.report.page:write_report",
    "publication": "datamask.publishing.publish:publish",
}
"""Stages that look at all shards at once: `function(run, compute)` makes whatever is left.

Those of a round, here and above, are told its number as well: `function(..., number)`."""


def stages_of(settings: Settings) -> list[str]:
    """The stages a run goes through, in order."""
    return [stage.name for stage in STAGES.values() if stage.where(settings)]


def learning_stages(settings: Settings) -> list[str]:
    """Of these, the stages from embeddings to masks: one, or rounds over all shards and a cut."""
    stages = stages_of(settings)
    return stages[stages.index("embeddings") + 1 : stages.index("masks") + 1]
