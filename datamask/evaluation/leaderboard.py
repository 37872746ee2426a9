"""A leaderboard: arms of several evaluations of one source, compared on the same held-out texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from datamask.errors import RunError
from datamask.evaluation.models import budget_tokens, learning_rates
from datamask.evaluation.results import compare_arms, read_results
from datamask.evaluation.units import read_bits, trials_of
from datamask.evaluation.verdict import Bits
from datamask.runs import schemas
from datamask.runs.files import read_columns, replace_file
from datamask.runs.run import Run, digest

_TABLE = pa.schema(
    [
        *schemas.EVALUATION,
        ("run", pa.string()),
        *((name, pa.int64()) for name in ("available", "copies", "better", "worse", "undecided")),
    ]
)


def leaderboard(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Compare the arms of runs whose models saw equally many tokens equally often.

    An arm that several runs have made of the same documents is counted once, with its first run.
    Arms of the same name with other documents are named `RUN:ARM`.

    Args:
        runs: one or more with a finished evaluation.

    Returns:
        The rows of `schemas.EVALUATION` of all arms and all their pairs, with Holm's correction
        over these. The rows of arms have further columns: `run` (its folder's name), `available`
        and `copies` (documents of the arm, and how many were left out of it), and with how many
        others the verdict is `better`, `worse` or `undecided`. Arms of a set are in the order of
        their bits per byte.
    """
    for run in runs:
        _check_comparable(runs[0], run)
    labels = [run.root.absolute().name for run in runs]
    if len(set(labels)) < len(labels):
        labels = [run.address for run in runs]
    arms = _distinct_arms(runs)
    plain = [runs[number].settings.evaluation.arms[arm].name for number, arm in arms]
    names = [
        name if plain.count(name) == 1 else f"{labels[number]}:{name}"
        for (number, _), name in zip(arms, plain, strict=True)
    ]
    held_out = _held_out(runs[0])
    ngram_of = [_ngram_by_set(run) for run in runs]
    ngram = {name: [ngram_of[run][name][arm] for run, arm in arms] for name in ngram_of[0]}
    bits = _stacked_bits(runs, arms)
    rows = compare_arms(names, bits, held_out, ngram, runs[0].settings.evaluation)
    sets = [*dict.fromkeys(row["set"] for row in rows)]
    for row in rows:
        if "other" not in row:
            number, arm = arms[names.index(row["arm"])]
            counts = runs[number].receipt("arms", arm).metrics
            row |= {"run": labels[number]} | {key: counts[key] for key in ("available", "copies")}
            row |= _verdicts_on(row, rows)
    # Sorting is stable: sets stay in order, each with its arms first.
    rows.sort(key=lambda row: np.inf if "other" in row else row["bits_per_byte"])
    return sorted(rows, key=lambda row: sets.index(row["set"]))


def write_table(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the rows of `leaderboard` as Parquet or CSV, by the end of the name."""
    table = pa.Table.from_pylist(rows, schema=_TABLE)
    with replace_file(path) as temporary:
        if path.suffix == ".parquet":
            pq.write_table(table, temporary)
        else:
            pyarrow.csv.write_csv(table, temporary)


def _verdicts_on(arm: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, int]:
    """How often an arm is better, worse and undecided on its set."""
    opposite = {"better": "worse", "worse": "better", "undecided": "undecided"}
    pairs = [row for row in rows if "other" in row and row["set"] == arm["set"]]
    verdicts = [pair["verdict"] for pair in pairs if pair["arm"] == arm["arm"]]
    verdicts += [opposite[pair["verdict"]] for pair in pairs if pair["other"] == arm["arm"]]
    return {verdict: verdicts.count(verdict) for verdict in opposite}


def _check_comparable(first: Run, run: Run) -> None:
    """Refuse runs whose models cannot be compared."""
    if not run.settings.evaluation.arms:
        raise RunError(f"{run.address} has no evaluation; run `datamask evaluate {run.address}`")
    for what, value_of in _COMPARABLE.items():
        if value_of(first) != value_of(run):
            raise RunError(
                f"{run.address} and {first.address} differ in {what}, so their models cannot be "
                "compared; evaluate both with the same"
            )


def _held_out(run: Run) -> pa.Table:
    """The texts that models are scored on, as tokens. Raises RunError before the evaluation."""
    run.receipt("evaluation")
    return read_columns(run.path("held_out"), ["set", "in_all", "tokens", "prefix", "bytes"])


_COMPARABLE: dict[str, Callable[[Run], Any]] = {
    "source": lambda run: {piece.digest for piece in run.pieces},
    "evaluation.model": lambda run: (
        run.settings.evaluation.model,
        run.pinned_revisions.get("training:model"),
    ),
    "evaluation.tokens": lambda run: budget_tokens(run.settings.evaluation),
    "evaluation.epochs": lambda run: run.settings.evaluation.epochs,
    "evaluation.learning_rates": lambda run: learning_rates(run.settings.evaluation),
    "seed": lambda run: run.settings.seed,
    "held-out texts": _held_out,
}
"""What must be the same, so that differences of models come from their documents."""


def _distinct_arms(runs: Sequence[Run]) -> list[tuple[int, int]]:
    """Number of the run and of the arm in it, of every arm that no earlier run has."""
    arms: dict[tuple[str, str], tuple[int, int]] = {}
    for number, run in enumerate(runs):
        for arm, settings in enumerate(run.settings.evaluation.arms):
            run.receipt("arms", arm)
            ids = read_columns(run.path("arms", arm), ["id"])["id"].to_pylist()
            arms.setdefault((settings.name, digest(*ids)), (number, arm))
    return [*arms.values()]


def _stacked_bits(runs: Sequence[Run], arms: Sequence[tuple[int, int]]) -> Bits:
    """Bits by arm, seed, learning rate and document; of the rates that no run left out."""
    read = [read_bits(run, trials_of(run)) for run in runs]
    rates = [f"{rate:g}" for rate in learning_rates(runs[0].settings.evaluation)]
    common = [rate for rate in rates if all(rate not in diverged for _, diverged in read)]
    if not common:
        raise RunError("no learning rate is left at which no model of any run diverged")
    seeds = max(bits.shape[1] for bits, _ in read)
    stacked = np.full((len(arms), seeds, len(common), read[0][0].shape[3]), np.nan)
    for row, (number, arm) in enumerate(arms):
        bits, diverged = read[number]
        left = [rate for rate in rates if rate not in diverged]
        stacked[row, : bits.shape[1]] = bits[arm][:, [left.index(rate) for rate in common]]
    return stacked


def _ngram_by_set(run: Run) -> dict[str, list[float]]:
    """By set, bits per byte of the n-gram model by arm."""
    by_set: dict[str, list[float]] = {}
    for row in read_results(run):
        if row["other"] is None:
            by_set.setdefault(row["set"], []).append(row["ngram"])
    return by_set
