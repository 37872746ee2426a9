"""Is a selection by a score that is learned from random selections better than the recipe?

docs/evidence.md has the plan and the results. Corpora, scores, vectors and arms are those of
`benchmarks.recipes`; draws and regression are those of `datamask learn`.

    python -m benchmarks.learned runs/noisy-crawl --model runs/all-MiniLM-L6-v2 --explore --folds 1
    python -m benchmarks.learned runs/noisy-crawl --model runs/all-MiniLM-L6-v2 --arm d
"""

from __future__ import annotations

import argparse
import copy
import json
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.recipes import (
    NAMED,
    Arm,
    Corpus,
    _clusters,
    _tokenizer,
    chosen_by,
    interval,
    read_results,
)
from datamask.config.inputs import Embedding
from datamask.evaluation.effects import (
    Effects,
    cross_validated,
    drawn,
    fit,
    moments_of,
    principal_directions,
    standardised,
)
from datamask.evaluation.verdict import holm
from datamask.quality.fitting import rank_correlation

SETTINGS = ("A", "B")
EXPLORED = (0, 1)
DRAWS, DIRECTIONS, SHARE, RANDOM_DRAWS = 64, 12, 0.1, 3
RANDOM, RECIPE = Arm(*NAMED["random"]), Arm("examples", 0.5, "facility_location", 0.0)
ARMS = {
    "a": Arm("learned", 1.0, "top_quality", 1.0),
    "b": Arm("filtered", 0.5, "top_quality", 1.0),
    "c": Arm("learned", 0.5, "facility_location", 0.0),
    "d": Arm("filtered", 0.5, "facility_location", 0.3),
}
"""Score `filtered`: the learned one, of the better half by `examples`."""


class Halved:
    """A corpus whose held-out texts are halved: losses are fitted to the first half.

    *directions*: of the vectors, D x DIRECTIONS; none: its own.
    """

    def __init__(self, corpus: Corpus, folder: Path, directions: np.ndarray | None) -> None:
        tokenizer, self.corpus = _tokenizer(folder), corpus
        self.budget = int(SHARE * corpus.costs.sum())
        self.halves = [copy.copy(corpus) for _ in range(2)]
        for number, half in enumerate(self.halves):
            half.held_out = corpus.held_out[number::2]
            texts = (tokenizer.decode(ids.tolist()) for ids in half.held_out)
            half.bytes = sum(len(text.encode()) for text in texts)
        own = principal_directions(corpus.vectors, DIRECTIONS)
        self.directions = own if directions is None else directions
        labels = _clusters(corpus.texts)
        columns = [corpus.score("examples"), corpus.score("heuristic"), np.log(corpus.costs)]
        columns.append((np.bincount(labels)[labels] > 1).astype(float))
        raw = np.column_stack([*columns, corpus.vectors @ self.directions])
        self.values = standardised(raw, raw)

    @cached_property
    def draws(self) -> tuple[np.ndarray, np.ndarray]:
        """Moments of the draws, and their losses on both halves."""
        moments, losses = [], []
        for number in range(DRAWS):
            rows = drawn(self.values, self.corpus.costs, self.budget, (self.corpus.seed, number))
            moments.append(moments_of(self.values, self.corpus.costs, rows))
            losses.append([half.bits_per_byte(rows, self.budget, number) for half in self.halves])
        return np.array(moments), np.array(losses)

    def judged(self, arm: Arm, effects: Effects | None = None) -> float:
        """Bits per byte of an arm on the second half."""
        half = copy.copy(self.halves[1])
        if effects:
            learned, examples = effects.scores(self.values), self.corpus.score("examples")
            is_better = np.zeros(len(learned), bool)
            is_better[np.argsort(-examples, kind="stable")[: round(0.5 * len(learned))]] = True
            filtered = np.where(is_better, learned, learned.min() - 1)
            scores = {"learned": learned, "filtered": filtered, "examples": examples}
            half.score = cache(scores.__getitem__)
        seeds = range(RANDOM_DRAWS if arm.method == "random" else 1)
        chosen = [chosen_by(arm, half, self.budget, seed) for seed in seeds]
        bits = [half.bits_per_byte(rows, self.budget, seed) for seed, rows in enumerate(chosen)]
        return float(np.mean(bits))


def pooled(corpora: list[Halved]) -> Effects:
    """The regression on the draws of several corpora, with an intercept for each."""
    apart = [
        (m - m.mean(axis=0), losses[:, 0] - losses[:, 0].mean())
        for m, losses in (corpus.draws for corpus in corpora)
    ]
    return fit(np.concatenate([m for m, _ in apart]), np.concatenate([y for _, y in apart]))


def report(corpus: Halved, name: str, transferred: Effects) -> None:
    """Print how well losses are predicted, and which properties help."""
    moments, losses = corpus.draws
    own, unseen = (
        fit(moments, losses[:, 0]),
        rank_correlation(transferred.predicted(moments), losses[:, 1]),
    )
    print(
        f"{name}: own, cross-validated {cross_validated(moments, *losses.T)}; transferred "
        f"{unseen}; penalty {own.penalty:.2g}; losses {losses[:, 1].mean():.3f} ± "
        f"{losses[:, 1].std():.3f}"
    )
    for label, slope, low, high in zip(
        ["examples", "heuristic", "length", "copies", *range(DIRECTIONS)],
        own.slopes,
        own.low,
        own.high,
        strict=True,
    ):
        print(f"   {label}: {slope:+.3f} ({low:+.3f} to {high:+.3f})")


def main() -> None:
    """Fit, select and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of benchmarks.noisy_crawl")
    parser.add_argument("--model", type=Path, required=True, help="all-MiniLM-L6-v2")
    parser.add_argument("--explore", action="store_true", help="fit fold 0 only")
    parser.add_argument("--arm", choices=[*ARMS], help="the chosen one, to confirm")
    parser.add_argument("--folds", type=int, nargs="+", default=[2, 3, 4, 5], help="judged")
    parser.add_argument("--settings", nargs="+", default=SETTINGS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    embedding = Embedding(
        model=str(arguments.model), prefix="", dimension=384, max_tokens=128, dtype="float32"
    )

    def halved(setting: str, fold: int, directions: np.ndarray | None) -> Halved:
        corpus = Corpus(arguments.folder, setting, fold, embedding)
        return Halved(corpus, arguments.folder, directions)

    fitted_to = (0,) if arguments.explore else EXPLORED
    path = arguments.folder / ("explored.jsonl" if arguments.explore else "learned.jsonl")
    for setting in arguments.settings:
        todo = set(arguments.folds) - {fold for of, fold, *_ in read_results(path) if of == setting}
        if not todo:
            continue
        first = halved(setting, 0, None)
        known = [first, *(halved(setting, fold, first.directions) for fold in fitted_to[1:])]
        transferred = pooled(known)
        for fold in [fold for fold in arguments.folds if fold in todo]:
            corpus = halved(setting, fold, first.directions)
            report(corpus, f"{setting}-{fold}", transferred)
            moments, losses = corpus.draws
            scores = {"transferred": transferred, "own": fit(moments, losses[:, 0])}
            bits = {"random": corpus.judged(RANDOM), "recipe": corpus.judged(RECIPE)}
            for (name, effects), (label, arm) in product(scores.items(), ARMS.items()):
                bits[f"{name} {label}"] = corpus.judged(arm, effects)
            with path.open("a") as file:
                file.write(json.dumps([setting, fold, bits]) + "\n")
    show(read_results(path), arguments.folds, arguments.arm)


def show(results: list[list[Any]], folds: list[int], arm: str | None) -> None:
    """Print differences to random and to the recipe, and the tests of the plan."""
    tests = []
    for other in ("random", "recipe"):
        print(f"\ncompared with {other}\n| arm |", *(f"{setting} |" for setting in SETTINGS))
        for name in results[0][2]:
            by_setting = {}
            for setting in SETTINGS:
                of_folds = [bits for of, fold, bits in results if of == setting and fold in folds]
                apart = [bits[name] - bits[other] for bits in of_folds]
                by_setting[setting] = interval(apart) if apart else (np.nan,) * 3
            print(f"| {name} |", *(f"{v[0]:+.3f} ± {v[1]:.3f} |" for v in by_setting.values()))
            if name == f"transferred {arm}":
                tests += [(setting, other, *value) for setting, value in by_setting.items()]
    for test, p_value in zip(tests, holm(np.array([test[-1] for test in tests])), strict=True):
        print("| {} | {} | {:+.3f} ± {:.3f} |".format(*test), f"{p_value:.4f} |")


if __name__ == "__main__":
    main()
