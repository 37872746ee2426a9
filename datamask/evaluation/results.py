"""Stage `evaluation`: the results of the trained models, for every set of held-out texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.evaluation import Evaluation
from datamask.evaluation import verdict
from datamask.evaluation.arms import arm_stream, piece_of
from datamask.evaluation.by_group import counts_of, groups_of, over_groups
from datamask.evaluation.models import budget_tokens
from datamask.evaluation.ngram import MOST_TOKENS, Trigrams, bits_by_text
from datamask.evaluation.questions import accuracies, is_scored
from datamask.evaluation.units import read_bits, sets_of
from datamask.runs import schemas
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run


def evaluate(run: Run, compute: Compute) -> Receipt:
    """Write `evaluation.parquet` (`schemas.EVALUATION`).

    The receipt's metrics: `main` (the set that the verdict rests on), `tokens`, `parameters`,
    `diverged` (the reason by learning rate that is left out), `documents` and `copies` by arm, and
    `proxy`: on how many pairs with a verdict the n-gram model agrees (`agreed` of `decided`).
    """
    evaluation = run.settings.evaluation
    by_rate, diverged = read_bits(run)
    bits = np.stack([*by_rate.values()], axis=2)
    names = [arm.name for arm in evaluation.arms]
    columns = ["set", "id", "in_all", "group", "tokens", "prefix", "bytes", "right"]
    held_out = run.read_output("held_out", columns=columns)
    accuracy = accuracies(names, bits, held_out)
    scored = is_scored(held_out)
    held_out, bits = held_out.filter(scored), bits[..., scored]
    proxy = _ngram_bits(run, held_out)
    sizes = held_out["bytes"].to_numpy()
    ngram = {
        name: (proxy[:, is_member].sum(axis=1) / sizes[is_member].sum()).tolist()
        for name, is_member in sets_of(held_out, evaluation)
    }
    rows = [
        row | accuracy.get((row["set"], row["arm"], row["other"]), {})
        for row in compare_arms(names, bits, held_out, ngram, evaluation)
    ]
    main, (_, pairs) = next(iter(by_set(rows).items()))
    decided = [row for row in pairs if row["verdict"] in ("better", "worse")]
    agreed = sum((row["ngram"] < 0) == (row["bits_per_byte"] < 0) for row in decided)
    arms = [run.receipt("arms", unit).metrics for unit in range(len(names))]
    metrics = {
        "main": main,
        "tokens": budget_tokens(evaluation) * evaluation.epochs,
        "parameters": run.receipt("training", 0).metrics["parameters"],
        "diverged": diverged,
        **{key: [arm[key] for arm in arms] for key in ("available", "documents", "copies")},
        "proxy": {"agreed": agreed, "decided": len(decided)},
    }
    table = pa.Table.from_pylist(rows, schema=schemas.EVALUATION)
    return write_output(run, "evaluation", 0, schemas.EVALUATION, [table], metrics)


def compare_arms(
    names: Sequence[str],
    bits: verdict.Bits,
    held_out: pa.Table,
    ngram: Mapping[str, Sequence[float]],
    evaluation: Evaluation,
) -> list[dict[str, Any]]:
    """Return the rows of `schemas.EVALUATION`: for every set its arms, then pairs; main set first.

    Args:
        names: of the arms.
        bits: by arm, seed, learning rate and held-out document.
        held_out: columns `set`, `in_all`, `group` and `bytes`.
        ngram: by set, bits per byte of the n-gram model by arm.
        evaluation: its sets.
    """
    rows: list[dict[str, Any]] = []
    every_size = held_out["bytes"].to_numpy()
    for name, is_member in sets_of(held_out, evaluation):
        sizes = every_size[is_member]
        of_set = bits[..., is_member]
        means = verdict.bits_per_byte(of_set, sizes).mean(axis=(1, 2))
        common = {"set": name, "documents": len(sizes)}
        groups = groups_of(held_out, name, [own_set.name for own_set in evaluation.sets])
        by_group = over_groups(bits, every_size, groups) if groups else repeat({})
        for arm, mean in enumerate(means):
            measured = {"bits_per_byte": mean, "ngram": ngram[name][arm], "seeds": bits.shape[1]}
            if groups:
                of_groups = [
                    verdict.bits_per_byte(bits[arm : arm + 1, ..., rows], every_size[rows]).mean()
                    for rows in groups.values()
                ]
                measured |= {**counts_of(groups), "mean": float(np.mean(of_groups))}
            rows.append({**common, "arm": names[arm], "other": None, **measured})
        for compared, of_pair in zip(verdict.compare(of_set, sizes), by_group, strict=False):
            pair = asdict(compared)
            pair |= {"arm": names[compared.arm], "other": names[compared.other]}
            ngrams = ngram[name][compared.arm] - ngram[name][compared.other]
            pair |= {"bits_per_byte": compared.difference, "ngram": ngrams}
            rows.append({**common, **pair, **of_pair})
    return rows


def _ngram_bits(run: Run, held_out: pa.Table) -> npt.NDArray[np.float64]:
    """Return bits by arm and document: the mean over n-gram models of each seed's text."""
    separator = run.receipt("tokenizer").metrics["vocabulary"]
    texts = [np.asarray(tokens, np.int64) for tokens in held_out["tokens"].to_pylist()]
    prefixes = held_out["prefix"].to_pylist()
    seeds = run.settings.evaluation.seeds
    bits_of = np.zeros((len(run.settings.evaluation.arms), len(texts)))
    wanted = budget_tokens(run.settings.evaluation)
    for arm in range(len(bits_of)):
        stream = arm_stream(run, arm, separator)
        for seed in range(seeds):
            tokens = piece_of(stream, seed * wanted, min(wanted, MOST_TOKENS // seeds))
            model = Trigrams(np.append(separator, tokens), separator + 1)
            bits_of[arm] += bits_by_text(model, texts, prefixes) / seeds
    return bits_of


def read_results(run: Run) -> list[dict[str, Any]]:
    """Read the rows of `evaluation.parquet`.

    Raises:
        RunError: it is missing or stale.
    """
    run.receipt("evaluation")
    rows: list[dict[str, Any]] = run.read_output("evaluation").to_pylist()
    return rows


def by_set(rows: list[dict[str, Any]]) -> dict[str, tuple[list[dict[str, Any]], ...]]:
    """Return, by set of held-out texts, the rows of arms and the rows of pairs; main set first."""
    names = dict.fromkeys(row["set"] for row in rows)
    return {
        name: (
            [row for row in rows if row["set"] == name and row["other"] is None],
            [row for row in rows if row["set"] == name and row["other"] is not None],
        )
        for name in names
    }
