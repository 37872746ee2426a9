"""A leaderboard: arms of several evaluations of one source, compared on the same held-out texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from datamask.errors import RunError
from datamask.evaluation.models import budget_tokens, learning_rates
from datamask.evaluation.results import by_set, compare_arms, read_results
from datamask.evaluation.units import read_bits
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
    known = [by_set(read_results(run)) for run in runs]
    ngram = {
        name: [known[number][name][0][arm]["ngram"] for number, arm in arms] for name in known[0]
    }
    bits = _stacked_bits(runs, arms)
    compared = compare_arms(names, bits, held_out, ngram, runs[0].settings.evaluation)
    rows: list[dict[str, Any]] = []
    for of_arms, pairs in by_set(compared).values():
        for row in of_arms:
            number, arm = arms[names.index(row["arm"])]
            counts = runs[number].receipt("arms", arm).metrics
            row |= {"run": labels[number]} | {key: counts[key] for key in ("available", "copies")}
            row |= _verdicts_on(row["arm"], pairs)
        rows += [*sorted(of_arms, key=itemgetter("bits_per_byte")), *pairs]
    return rows


def write_table(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the rows of `leaderboard` as Parquet or CSV, by the end of the name."""
    table = pa.Table.from_pylist(rows, schema=_TABLE)
    with replace_file(path) as temporary:
        if path.suffix == ".parquet":
            pq.write_table(table, temporary)
        else:
            pyarrow.csv.write_csv(table, temporary)


def _verdicts_on(arm: str, pairs: list[dict[str, Any]]) -> dict[str, int]:
    """In how many pairs of a set an arm is better, worse and undecided."""
    opposite = {"better": "worse", "worse": "better", "undecided": "undecided"}
    verdicts = [pair["verdict"] for pair in pairs if pair["arm"] == arm]
    verdicts += [opposite[pair["verdict"]] for pair in pairs if pair["other"] == arm]
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
    read = [read_bits(run)[0] for run in runs]
    common = [rate for rate in read[0] if all(rate in by_rate for by_rate in read)]
    if not common:
        raise RunError("no learning rate is left at which no model of any run diverged")
    _, _, documents = read[0][common[0]].shape
    seeds = max(run.settings.evaluation.seeds for run in runs)
    stacked = np.full((len(arms), seeds, len(common), documents), np.nan)
    for bits, (number, arm) in zip(stacked, arms, strict=True):
        for place, rate in enumerate(common):
            own = read[number][rate][arm]
            bits[: len(own), place] = own
    return stacked
