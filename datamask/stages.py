"""The stages of a run: which settings determine each output, and from which outputs it is made.

`datamask.store` computes fingerprints from this table, `datamask.pipeline` says what does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from datamask.config import MOST_ROUNDS, Settings


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
    if settings.embedding.method == "lexical":
        return ["lexical", settings.embedding.dimension]
    return settings.embedding.model_dump(mode="json", exclude={"model", "revision"})


def _learnt(settings: Settings) -> Any:
    """More rounds go on from those that there are; limits matter when shards are cut together."""
    return [settings.selection.model_dump(mode="json", exclude={"rounds", "limits"}), settings.seed]


def _rounds() -> Iterator[Stage]:
    """Learning in scope `corpus`: every shard hands over sums, they are added up, again and again.

    `survey` and `total-0` are of all documents; `round-N` and `total-N` of those selected so far.
    The rounds end when the corpus has settled (`Run.last_round`).
    """

    def where(settings: Settings) -> bool:
        return settings.selection.num_rounds > 0

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
            "masks",
            4,
            lambda s: [s.selection, s.seed],
            after=("quality", "embeddings", "logits"),
            after_all=("cut",),
        ),
        Stage("subset", 2, lambda s: s.subset, after_all=("masks",)),
        Stage("composition", 4, lambda s: None, after_all=("masks",), file="composition.duckdb"),
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
