"""Multiple choice: read questions, and count how often models choose the right answer.

A model chooses the answer that needs the fewest bits per byte: the length-normalised log-likelihood
of the field. The model's bits per byte for the right answer move before its accuracy does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datamask.config.evaluation import Evaluation, HeldOutSet
from datamask.errors import InputError, shortened
from datamask.evaluation import verdict
from datamask.hygiene.references import first_rows

MOST_DOCUMENTS = 2000
"""Maximum number of texts or questions of a set that score models."""


def check_questions(evaluation: Evaluation, key: str) -> None:
    """Read the questions of the set that *key* of `references` names, if it has any.

    Raises:
        InputError: as in `answers_of`; or texts are lists, and no column says which is right.
    """
    for own_set in evaluation.sets:
        if key != f"held_out:{own_set.name}":
            continue
        most = MOST_DOCUMENTS if own_set.gold else 1
        for number, row in enumerate(first_rows(own_set.path, own_set.columns, most)):
            if own_set.gold:
                [*answers_of(own_set, number, row)]
            elif isinstance(row.get(own_set.column), list):
                problem = "a list; name the column of the right answer's number in `gold`"
                raise InputError(problem, path=own_set.path, column=own_set.column)


def answers_of(own_set: HeldOutSet, number: int, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield text and `right` of each answer to the question in a row of a set.

    An answer gets a space before it, unless its prompt ends or it begins with white space.

    Raises:
        InputError: the row has fewer than two answers, an answer is no text, or none is right.
    """
    answers, gold = row[own_set.column], row[own_set.gold]
    if isinstance(gold, str) and gold.strip().isdecimal():
        gold = int(gold)
    refuse: dict[str, Any] = {"path": own_set.path, "row": number}
    texts = answers if isinstance(answers, list) else []
    if len(texts) < 2 or not all(isinstance(text, str) and text.strip() for text in texts):
        problem = f"{shortened(answers)}, needed a list of two answers or more, each a text"
        raise InputError(f"{problem}; correct it", column=own_set.column, **refuse)
    if not isinstance(gold, int) or isinstance(gold, bool) or not 0 <= gold < len(texts):
        problem = f"{shortened(gold)}, needed the number of the right answer, from 0 to"
        raise InputError(f"{problem} {len(texts) - 1}; correct it", column=own_set.gold, **refuse)
    prompt = str(row.get(own_set.prompt or "") or "")
    for choice, text in enumerate(texts):
        is_apart = not prompt or prompt[-1].isspace() or text[0].isspace()
        yield {"text": text if is_apart else f" {text}", "right": choice == gold}


def is_scored(held_out: pa.Table) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that bits per byte are about: not of wrong answers."""
    return np.array([right is not False for right in held_out["right"].to_pylist()], bool)


def accuracies(
    names: list[str], bits: verdict.Bits, held_out: pa.Table
) -> dict[tuple[str, str, str | None], dict[str, Any]]:
    """Compute how often the models of each arm choose the right answer, and compare arms.

    Returns the columns `schemas.ACCURACY` by set, arm and other arm, for sets with questions.

    Args:
        names: of the arms.
        bits: by arm, seed, learning rate and row of *held_out*.
        held_out: columns `set`, `id`, `right` and `bytes` of `schemas.HELD_OUT`, in its order.
    """
    sets = np.asarray(held_out["set"].to_pylist(), object)
    right = np.asarray(held_out["right"].to_pylist(), object)
    sizes, ids = held_out["bytes"].to_numpy(), np.asarray(held_out["id"].to_pylist(), object)
    columns: dict[tuple[str, str, str | None], dict[str, Any]] = {}
    for name in dict.fromkeys(sets[right != None]):  # noqa: E711 - element by element
        rows = np.flatnonzero(sets == name)
        starts = np.flatnonzero(np.append(True, ids[rows][1:] != ids[rows][:-1]))
        is_right = right[rows].astype(bool)
        per_byte = bits[..., rows] / sizes[rows]
        wrong = np.minimum.reduceat(np.where(is_right, np.inf, per_byte), starts, axis=-1)
        missed = (per_byte[..., is_right] >= wrong).astype(float)
        chance = float(np.mean(1 / np.diff(np.append(starts, len(rows)))))
        for arm, of_arm in zip(names, missed, strict=True):
            mean, width = _interval(1 - of_arm.mean(axis=1))
            shown = _accuracy(mean, mean - width, mean + width)
            columns[name, arm, None] = shown | {"chance": chance}
        for pair in verdict.compare(missed, np.ones(len(starts), np.int64)):
            apart = _accuracy(-pair.difference, -pair.high, -pair.low)
            apart |= {"chance": chance, "accuracy_verdict": pair.verdict}
            columns[name, names[pair.arm], names[pair.other]] = apart
    return columns


def _accuracy(value: float, low: float, high: float) -> dict[str, Any]:
    return {"accuracy": value, "accuracy_low": low, "accuracy_high": high}


def _interval(hits: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean of values by seed and question, and half the width of its 95 % interval."""
    parts = [(math.inf, 1)] * 2
    if min(hits.shape) > 1:
        means = (hits.mean(axis=1), hits.mean(axis=0))
        parts = [(float(mean.var(ddof=1)) / len(mean), len(mean) - 1) for mean in means]
    return float(hits.mean()), verdict.half_width(0.05, parts)
