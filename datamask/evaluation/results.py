"""Stage `evaluation`: what the trained models show, for every set of held-out texts."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.errors import RunError
from datamask.evaluation import verdict
from datamask.evaluation.models import budget_tokens, learning_rates
from datamask.evaluation.ngram import MOST_TOKENS, Trigrams
from datamask.evaluation.texts import SOURCE_SET
from datamask.evaluation.training import drawn_tokens
from datamask.evaluation.trials import Trial, training_unit, trials
from datamask.runs import schemas
from datamask.runs.files import read_columns
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt, read_receipt
from datamask.runs.run import Run


def evaluate(run: Run, compute: Compute) -> Receipt:
    """Write `evaluation.parquet` (`schemas.EVALUATION`).

    The receipt's metrics: `main` (the set on which the verdict rests), `tokens`, `parameters`,
    `diverged` (the reason by learning rate that is left out), `documents` and `copies` by arm, and
    `proxy`: on how many pairs with a verdict the n-gram model agrees (`agreed` of `decided`).

    Raises:
        RunError: a model is missing; models diverged at every learning rate.
    """
    evaluation = run.settings.evaluation
    wanted = trials(run)
    receipts = [run.receipt("training", unit) for unit in range(len(wanted))]
    bits, diverged = _bits(run, wanted)
    held_out = read_columns(run.path("held_out"), ["set", "in_all", "tokens", "prefix", "bytes"])
    proxy = _ngram_bits(run, held_out)
    rows: list[dict[str, Any]] = []
    names = [arm.name for arm in evaluation.arms]
    for name, is_member in _sets(held_out):
        sizes = held_out["bytes"].to_numpy()[is_member]
        some = bits[..., is_member]
        means = np.nanmean(verdict.bits_per_byte(some, sizes), axis=(1, 2))
        seeds = np.isfinite(some).all(axis=(2, 3)).sum(axis=1)
        ngram = proxy[:, is_member].sum(axis=1) / sizes.sum()
        common = {"set": name, "documents": len(sizes)}
        for arm, mean in enumerate(means):
            measured = {"bits_per_byte": mean, "ngram": ngram[arm], "seeds": seeds[arm]}
            rows.append({**common, "arm": names[arm], **measured})
        for one in verdict.compare(some, sizes, evaluation.level):
            pair = {"arm": names[one.arm], "other": names[one.other], "seeds": one.seeds}
            numbers = {"bits_per_byte": one.difference, "low": one.low, "high": one.high}
            numbers |= {"p_value": one.p_value, "detectable": one.detectable}
            ngrams = ngram[one.arm] - ngram[one.other]
            rows.append({**common, **pair, **numbers, "ngram": ngrams, "verdict": one.verdict})
    main = rows[0]["set"]
    decided = [row for row in rows if row["set"] == main and row.get("verdict", "un")[0] != "u"]
    agreed = sum((row["ngram"] < 0) == (row["bits_per_byte"] < 0) for row in decided)
    arms = [run.receipt("arms", unit).metrics for unit in range(len(names))]
    metrics = {
        "main": main,
        "tokens": budget_tokens(evaluation) * evaluation.epochs,
        "parameters": receipts[0].metrics["parameters"],
        "diverged": diverged,
        **{key: [one[key] for one in arms] for key in ("available", "documents", "copies")},
        "proxy": {"agreed": agreed, "decided": len(decided)},
    }
    table = pa.Table.from_pylist(rows, schema=schemas.EVALUATION)
    return write_output(run, "evaluation", 0, schemas.EVALUATION, [table], metrics)


def arms_to_continue(run: Run, found: list[Trial], seed: int) -> list[int]:
    """The arms that are trained with another seed, given finished trials (`verdict.race`)."""
    evaluation = run.settings.evaluation
    bits, _ = _bits(run, found)
    held_out = read_columns(run.path("held_out"), ["set", "in_all", "bytes"])
    _, is_member = next(_sets(held_out))
    sizes = held_out["bytes"].to_numpy()[is_member]
    looks = evaluation.last_seed - evaluation.seeds
    some = bits[..., is_member]
    return verdict.race(some, sizes, evaluation.level, looks, evaluation.resolution)


def _bits(run: Run, wanted: list[Trial]) -> tuple[verdict.Bits, dict[str, str]]:
    """Bits by arm, seed, learning rate and document, without rates at which a model diverged.

    Raises:
        RunError: no rate is left.
    """
    rates = learning_rates(run.settings.evaluation)
    names = [training_unit(run, trial).name for trial in wanted]
    paths = [run.storage.fetch(f"evaluation/training/{name}.parquet") for name in names]
    read = [_trial_bits(str(path), read_receipt(path).fingerprint) for path in paths]
    diverged = {
        f"{rates[trial.rate]:g}": f"{name}: {reason}"
        for trial, name, (reason, _) in zip(wanted, names, read, strict=True)
        if reason
    }
    left = [place for place, rate in enumerate(rates) if f"{rate:g}" not in diverged]
    if not left:
        raise RunError(
            f"{run.address}: evaluation: models diverged at every learning rate "
            f"({next(iter(diverged.values()))}); set lower evaluation.learning_rates"
        )
    seeds = max(trial.seed for trial in wanted) + 1
    documents = max(len(bits) for _, bits in read)
    shape = (len(run.settings.evaluation.arms), seeds, len(left), documents)
    found = np.full(shape, np.nan)
    for trial, (_, bits) in zip(wanted, read, strict=True):
        if trial.rate in left:
            found[trial.arm, trial.seed, left.index(trial.rate)] = bits
    return found, diverged


@functools.lru_cache(maxsize=4096)
def _trial_bits(path: str, fingerprint: str) -> tuple[str | None, npt.NDArray[np.float64]]:
    """Why a trial diverged, and its bits; the fingerprint is part of the key of the cache."""
    bits = read_columns(Path(path), ["bits"])["bits"].to_numpy()
    return read_receipt(Path(path)).metrics["diverged"], bits


def _sets(held_out: pa.Table) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Every set and which rows are in it; first the sample of all, if the source holds out any."""
    in_all = held_out["in_all"].to_numpy()
    names = np.asarray(held_out["set"].to_pylist(), object)
    if in_all.any():
        yield SOURCE_SET, in_all
    for name in dict.fromkeys(names):
        if name != SOURCE_SET:
            yield str(name), names == name


def _ngram_bits(run: Run, held_out: pa.Table) -> npt.NDArray[np.float64]:
    """Bits by arm and document under an n-gram model of the text that the first seed draws."""
    separator = run.receipt("tokenizer").metrics["vocabulary"]
    texts = [np.asarray(tokens, np.int64) for tokens in held_out["tokens"].to_pylist()]
    prefixes = held_out["prefix"].to_pylist()
    found = np.zeros((len(run.settings.evaluation.arms), len(texts)))
    for arm in range(len(found)):
        tokens = drawn_tokens(run, arm, 0, separator)[:MOST_TOKENS]
        model = Trigrams(np.append(separator, tokens), separator + 1)
        for place, text in enumerate(texts):
            bits = model.bits(text, (separator, separator))
            found[arm, place] = bits[prefixes[place] :].sum()
    return found


def read_results(run: Run) -> list[dict[str, Any]]:
    """The rows of `evaluation.parquet`. Raises RunError if it is missing or stale."""
    run.receipt("evaluation")
    rows: list[dict[str, Any]] = read_columns(run.path("evaluation")).to_pylist()
    return rows
