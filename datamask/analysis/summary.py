"""Results of a run for report, card and terminal: gains, repeats, screening, drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datamask.analysis import learning_tables
from datamask.analysis.composition import query
from datamask.runs.run import Run


def terms_of(run: Run, shards: Sequence[int] | None = None) -> dict[str, dict[str, Any]]:
    """Return rows of table `terms` by term; for *shards* only, from their masks' receipts.

    Raises:
        RunError: the composition is missing; or, with *shards*, a mask is.
    """
    if shards is None:
        rows = query(run, "SELECT * FROM terms")
    else:
        receipts = [run.receipt("selection", shard) for shard in shards]
        rows = learning_tables.terms_of_shards([receipt.metrics for receipt in receipts])
    return {row["term"]: row for row in rows}


def units_of(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Return, by term, the mean of random selections and the gain of the best selection.

    *rows* come from `terms_of`. The best selection is by this term alone; its gain is below 0 for
    terms to minimise. Terms whose best selection is unknown are left out.
    """
    return {
        name: (row["random"], row["best"] - row["random"])
        for name, row in rows.items()
        if name != "objective" and row["best"] is not None and row["best"] != row["random"]
    }


def gains(
    run: Run, reference: Run | None = None, shards: Sequence[int] | None = None
) -> dict[str, dict[str, float]]:
    """Return the gain of `selected` and `top_quality` over random, as a fraction of the best gain.

    By term: 0 is random, 1 the best selection by this term alone, also for terms to minimise.
    `error` is the standard error of the fraction, above 0 where the value is measured on a sample.
    Runs are compared over the random and best selections of one *reference*, because other settings
    change those. Errors are as in `terms_of`.
    """
    rows = terms_of(run, shards)
    units = units_of(terms_of(reference, shards) if reference else rows)
    return {
        name: {
            selection: (row[selection] - units[name][0]) / units[name][1]
            for selection in ("selected", "top_quality")
            if row[selection] is not None
        }
        | {"error": (row["error"] or 0.0) / abs(units[name][1])}
        for name, row in rows.items()
        if name in units
    }


@dataclass(frozen=True, slots=True)
class Repeats:
    """Repeats of the selected documents in training.

    Args:
        unit: `tokens`, or `documents` if the source has no tokens.
        seen: the total that training sees, in this unit, with repeats.
        epochs: mean number of exposures per unit.
        repeated: fraction of `seen` that is not new.
        rows: repeat, documents, tokens and fraction of `seen`, by repeat.
    """

    unit: str
    seen: int
    epochs: float
    repeated: float
    rows: list[dict[str, Any]]


def repeats_of(run: Run) -> Repeats | None:
    """Return the distribution of column `repeat`; None without repeats.

    Raises:
        RunError: the composition is missing.
    """
    if run.settings.selection.max_repeat == 1:
        return None
    rows = query(
        run,
        "SELECT repeat, count(*) AS documents, sum(tokens)::BIGINT AS tokens FROM selection "
        "GROUP BY repeat ORDER BY repeat",
    )
    unit = "documents" if None in (row["tokens"] for row in rows) else "tokens"
    seen = sum(row["repeat"] * row[unit] for row in rows)
    epoch = sum(row[unit] for row in rows)
    for row in rows:
        row["share"] = row["repeat"] * row[unit] / max(seen, 1)
    return Repeats(unit, seen, seen / max(epoch, 1), 1 - epoch / max(seen, 1), rows)


def funnel_of(run: Run) -> list[dict[str, Any]]:
    """Return rows of table `funnel`, in order: how many documents remain after each step."""
    return query(run, "SELECT * FROM funnel WHERE kind = 'all' ORDER BY number")


def tokens_of(run: Run) -> str:
    """Describe in sentences the tokens of training and of budgets; empty without tokens."""
    tokens = run.settings.tokens
    if tokens is None:
        return ""
    made, name = run.receipt("order").metrics, tokens.tokenizer.rpartition("/")[2]
    phases = ", ".join(f"{phase['tokens']:,d}" for phase in made["phases"])
    told = (
        f"Training sees {made['tokens']:,d} tokens of {name}, with one for the end of each of "
        f"{made['documents']:,d} documents"
    )
    told += f", in phases of {phases}." if len(made["phases"]) > 1 else "."
    if run.settings.counts_for_trainer:
        told += " All numbers of tokens, and the budget, are counted so."
    return told


def totals_of(run: Run) -> dict[str, dict[str, Any]]:
    """Return rows of table `totals` by selection."""
    return {row["selection"]: row for row in query(run, "SELECT * FROM totals")}


def near_duplicates(run: Run) -> dict[str, int]:
    """Count near-duplicates `dropped`, and among them those that repeat an `earlier` dataset."""
    [summary] = query(
        run,
        "SELECT count(*) AS dropped, count(*) FILTER (near_duplicate_of LIKE 'earlier:%') "
        "AS earlier FROM documents WHERE dropped = 'near_duplicate'",
    )
    return summary


def benchmarks(run: Run) -> list[dict[str, Any]]:
    """Return the results of each benchmark, in the order of the settings.

    Keys: `name`; its number of `texts` (items), of items too `short` to be detected, of `ngrams`,
    and of `common` n-grams that do not count; the number of `documents` that cover or quote an
    item, of those `covering` one, of those `dropped` for it, of those `selected`, and of those both
    covering and selected (`leaks`); and an `example` of a shared n-gram, or None.
    """
    known = run.settings.quality.contamination
    if known is None:
        return []
    rows = query(
        run,
        "SELECT contaminated_by AS name, count(*) AS documents, "
        f"count(*) FILTER (contaminated_share >= {known.covered}) AS covering, "
        f"count(*) FILTER (contaminated_share >= {known.covered} AND selected) AS leaks, "
        "count(*) FILTER (dropped = 'contaminated') AS dropped, "
        "count(*) FILTER (selected) AS selected, "
        "min_by(contaminated_ngram, (shard, row)) AS example FROM documents "
        "WHERE contaminated_by IS NOT NULL GROUP BY contaminated_by",
    )
    by_name = {row["name"]: row for row in rows}
    numbers = ("documents", "covering", "dropped", "selected", "leaks")
    nothing = {**dict.fromkeys(numbers, 0), "example": None}
    sets = run.receipt("benchmark_ngrams").metrics
    common = run.receipt("quality", 0).metrics["common_ngrams"]
    return [
        {"name": name, **sets[name], "common": common[name], **by_name.get(name, nothing)}
        for name in (known_set.name for known_set in known.sets)
    ]


MOST_CHANGE = 0.2
"""Relative change of the fraction kept, against the model's run, above which there is a warning."""


def drift(run: Run) -> list[dict[str, Any]]:
    """Measure how the documents differ from those that the run's mask model was learned on.

    The contribution of a term to a document's logit is linear in the document's moments. So its
    mean over a corpus is the corpus's mean moments seen along the gradient of the term: the
    direction in which a difference changes the selection.

    Returns rows of table `drift`: `share kept` of the source, then each term; empty without a
    model. Keys: `term`; `then` and `now`, the fraction kept or the mean gain over documents in
    units of the logit, when the model was learned and in this run; `deviation_then` and
    `deviation_now` of the gain; `shift`, the relative change of the fraction, or the change of the
    mean in deviations.
    """
    return query(run, "SELECT * FROM drift") if run.settings.selection.mask_model else []
