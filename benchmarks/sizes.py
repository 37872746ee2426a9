"""Recipes of selection on webs of several sizes, judged on each kind of wanted text.

Webs are those of `benchmarks.kinds` or the corpora of `benchmarks.noisy_crawl`; docs/evidence.md
has the plans and the results. An arm is judged by bits per byte of the trigram model on each kind
of held-out text: on the *mixture* (kinds weighted as in the web), their mean, their median and the
worst. Vectors are kept in the folder, and results are added to `results.jsonl` there; an arm that
has one is not run again. With `--model`, vectors are a model's, and the results have its name.

    python -m benchmarks.sizes runs/webs --settings 4000 16000 40000 --folds 0 1
    python -m benchmarks.sizes runs/crawl --settings A A2 B B0 C --folds 0 1 2 3 4
"""

from __future__ import annotations

import argparse
import heapq
import json
import time
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

import datamask
from benchmarks.corpus import Corpus, interval, read_results
from datamask.config.compute import Compute
from datamask.config.inputs import Embedding
from datamask.config.recipe import following
from datamask.evaluation.verdict import holm
from datamask.hygiene.words import hash_ngrams, split_words
from datamask.selection.per_shard import LEAST_CHANGE

NEIGHBOURS = 128
"""Documents that each document can be covered by, in coverage of what is wanted."""
RANDOM_DRAWS = 3
ATTEMPTS = 2
"""How often a budget of tokens is approached; a run makes up to three attempts."""
BUCKETS = 10_000
"""Of hashed words and pairs, in DSIR."""
FIGURES = ("mixture", "mean", "median", "worst")
TESTED = "rule"


@dataclass(frozen=True)
class Arm:
    """A way to select.

    Args:
        name: in tables.
        method: random, top, importance, dsir, cover, or wanted (coverage of what is wanted).
        most_pruned: min(*most_pruned*, t) of the documents is pruned by the score; 0: nothing.
        power: lambda is t to this power; 0: lambda is 0.
        is_fixed: the pruned share is *most_pruned* whatever t is.
        is_distinct: near-duplicates are dropped first.
        is_rule: the pruned share and lambda are the product's.
    """

    name: str
    method: str
    most_pruned: float = 0.0
    power: float = 0.0
    is_fixed: bool = False
    is_distinct: bool = False
    is_rule: bool = False

    def at(self, auc: float) -> tuple[float, float]:
        """The pruned share and lambda with a score of that AUC."""
        if self.is_rule:
            return following(auc)
        told = max(0.0, 2 * auc - 1)
        pruned = self.most_pruned if self.is_fixed else min(self.most_pruned, told)
        return pruned, told**self.power if self.power else 0.0


ARMS = (
    Arm("random", "random"),
    Arm("half, random", "random", 0.5, is_fixed=True),
    Arm("filter, random", "random", is_rule=True),
    Arm("filter, distinct, random", "random", is_rule=True, is_distinct=True),
    Arm("top quality", "top"),
    Arm("importance sampling", "importance"),
    Arm("DSIR", "dsir"),
    Arm("rule", "cover", is_rule=True),
    Arm("rule, at most half pruned", "cover", 0.5, 2),
    Arm("rule, λ = t", "cover", 0.5, 1),
    Arm("rule, λ = 0", "cover", 0.5),
    Arm("rule, distinct", "cover", 0.5, 2, is_distinct=True),
    Arm("wanted", "wanted"),
    Arm("filter, wanted", "wanted", 0.5),
)


class Web(Corpus):
    """A web: its documents, vectors, scores and held-out texts."""

    def __init__(self, folder: Path, setting: str, fold: int, embedding: Embedding) -> None:
        super().__init__(folder, setting, fold, embedding)
        self.neighbours = cache(self._neighbours)
        wanted = sorted(self.wanted)
        counts = np.array([(self.kinds == kind).sum() for kind in wanted])
        self.shares = dict(zip(wanted, counts / counts.sum(), strict=True))

    def rows(self, pruned: float, is_distinct: bool) -> np.ndarray:
        """The rows that are left, ascending."""
        rows = self.distinct if is_distinct else np.arange(len(self.texts))
        order = np.argsort(-self.quality[rows], kind="stable")
        return np.sort(rows[order][: round((1 - pruned) * len(rows))])

    def learned(self, rows: np.ndarray, number: int, weight: float) -> np.ndarray:
        """*rows* from the best to the worst, by facility location and quality."""
        selected = datamask.select(
            self.vectors[rows],
            self.quality[rows],
            num_selected=number,
            metric="facility_location",
            quality_weight=weight,
            compute=Compute(device="cpu"),
        )
        return rows[np.argsort(-selected.logits, kind="stable")]

    def _neighbours(self, pruned: float) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and places (N x NEIGHBOURS) of the rows nearest to each row that is left."""
        vectors = torch.from_numpy(self.vectors[self.rows(pruned, False)])
        found = [(part @ vectors.T).topk(NEIGHBOURS) for part in torch.split(vectors, 2048)]
        cosines, places = (torch.cat([pair[i] for pair in found]).numpy() for i in (0, 1))
        return cosines, places

    def figures(self, chosen: np.ndarray, budget: int, seed: int) -> dict[str, float]:
        """Bits per byte of each kind, and of the mixture."""
        bits = self.bits(chosen, budget, seed)
        kinds = {}
        for kind in self.shares:
            rows = self.held_out_kinds == kind
            kinds[kind] = float(bits[rows].sum() / self.held_out_bytes[rows].sum())
        return kinds | {"mixture": sum(kinds[kind] * of for kind, of in self.shares.items())}


def cover(
    weights: np.ndarray, cosines: np.ndarray, places: np.ndarray, costs: np.ndarray, budget: int
) -> np.ndarray:
    """Choose places until their *costs* reach *budget*, for the largest Σ weight · nearest cosine.

    Lazy greedy: a gain computed earlier is an upper bound of the gain now.
    """
    order = np.argsort(places.ravel(), kind="stable")
    covered = np.repeat(np.arange(len(places)), places.shape[1])[order]
    values, starts = (
        cosines.ravel()[order],
        np.searchsorted(places.ravel()[order], range(len(places) + 1)),
    )
    nearest = cosines[:, -1].copy()

    def gain(place: int) -> float:
        part = slice(starts[place], starts[place + 1])
        more = np.maximum(values[part] - nearest[covered[part]], 0)
        return float(weights[covered[part]] @ more)

    heap = [(-gain(place), place) for place in range(len(places))]
    heapq.heapify(heap)
    chosen, left = [], budget
    while heap and left > 0:
        _, place = heapq.heappop(heap)
        now = gain(place)
        if heap and now < -heap[0][0]:
            heapq.heappush(heap, (-now, place))
            continue
        part = slice(starts[place], starts[place + 1])
        nearest[covered[part]] = np.maximum(nearest[covered[part]], values[part])
        chosen.append(place)
        left -= costs[place]
    return np.array(chosen)


def dsir_weights(texts: list[str], examples: list[str]) -> np.ndarray:
    """Log importance weights of texts (arXiv 2302.03169) by hashed words and pairs."""
    words = split_words(pa.array([*examples, *texts], pa.large_string()))
    counted = []
    for number in (1, 2):
        hashes, offsets = hash_ngrams(words, number)
        counted.append(((hashes % np.uint64(BUCKETS)).astype(np.int64), offsets))
    first = len(examples)
    wanted, present = np.zeros(BUCKETS), np.zeros(BUCKETS)
    for buckets, offsets in counted:
        wanted += np.bincount(buckets[: offsets[first]], minlength=BUCKETS)
        present += np.bincount(buckets[offsets[first] :], minlength=BUCKETS)
    ratio = np.log(wanted / wanted.sum() + 1e-8) - np.log(present / present.sum() + 1e-8)
    totals = np.zeros(len(texts))
    for buckets, offsets in counted:
        sums = np.append(0, np.cumsum(ratio[buckets]))[offsets[first:]]
        totals += np.diff(sums)
    return totals


def chosen_by(arm: Arm, web: Web, budget: int, seed: int) -> np.ndarray:
    """The rows that an arm selects: at least *budget* tokens, or all that it has."""
    pruned, weight = arm.at(web.auc)
    rows = web.rows(pruned, arm.is_distinct)
    quality, generator = web.quality, np.random.default_rng([web.seed, seed, 3])
    if arm.method == "wanted":
        wanted = 1 / (1 + np.exp(-quality[rows]))
        chosen = cover(wanted, *web.neighbours(pruned), web.costs[rows], budget)
        return np.asarray(rows[chosen])
    if arm.method == "cover":
        number = max(16, round(budget / web.costs[rows].mean()))
        for _ in range(ATTEMPTS):
            number = min(len(rows), number)
            chosen = _within(web.learned(rows, number, weight), web.costs, budget)
            if abs(len(chosen) - number) <= LEAST_CHANGE * number:
                break
            number = len(chosen)
        return chosen
    noise = generator.gumbel(size=len(web.texts))
    keys = {
        "random": noise,
        "top": quality,
        "importance": quality + noise,
        "dsir": dsir_weights(web.texts, web.examples) + noise if arm.method == "dsir" else noise,
    }[arm.method]
    return _within(rows[np.argsort(-keys[rows], kind="stable")], web.costs, budget)


def _within(ranked: np.ndarray, costs: np.ndarray, budget: int) -> np.ndarray:
    """The first of *ranked* that have *budget* tokens together."""
    return ranked[: np.searchsorted(np.cumsum(costs[ranked]), budget) + 1]


def run_arm(arm: Arm, web: Web, share: float) -> dict[str, Any]:
    """Bits per byte of an arm by kind, and what it selects."""
    budget, started = int(share * web.costs.sum()), time.process_time()
    draws = RANDOM_DRAWS if arm.method in ("random", "importance", "dsir") else 1
    selections = [chosen_by(arm, web, budget, seed) for seed in range(draws)]
    every = [web.figures(rows, budget, seed) for seed, rows in enumerate(selections)]
    figures = {kind: float(np.mean([of[kind] for of in every])) for kind in every[0]}
    chosen = np.concatenate(selections)
    seconds = time.process_time() - started
    return figures | {
        "auc": web.auc,
        "good": float(web.is_good[chosen].mean()),
        "copies": float((web.kinds[chosen] == "copy").mean()),
        "tokens": float(web.costs[chosen].mean()),
        "seconds": seconds,
    }


def measure(arguments: argparse.Namespace) -> None:
    """Run the arms that have no result yet."""
    path = arguments.folder / "results.jsonl"
    embedding, by_model = Embedding(method="lexical"), ""
    if arguments.model:
        width = json.loads((arguments.model / "config.json").read_text())["hidden_size"]
        model = {"model": str(arguments.model), "prefix": "", "dimension": width}
        embedding = Embedding(**model, max_tokens=256, dtype="bfloat16")
        by_model = f", {arguments.model.name}"
    done = {tuple(row[:4]) for row in read_results(path)}
    for fold, setting in product(arguments.folds, arguments.settings):
        wanted = [
            (share, arm)
            for share, arm in product(arguments.shares, ARMS)
            if (setting, fold, share, arm.name + by_model) not in done
            and (not arguments.arms or arm.name in arguments.arms)
        ]
        if not wanted or not (arguments.folder / f"{setting}-{fold}.parquet").exists():
            continue
        web = Web(arguments.folder, setting, fold, embedding)
        print(f"{setting}-{fold}: {len(web.texts)} documents, AUC {web.auc:.3f}", flush=True)
        for share, arm in wanted:
            result = run_arm(arm, web, share)
            print(f"  {arm.name}: {result['mixture']:.3f}, {result['seconds']:.0f} s", flush=True)
            with path.open("a") as file:
                file.write(json.dumps([setting, fold, share, arm.name + by_model, result]) + "\n")


def differences(result: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """Bits per byte of one arm minus those of another, by kind, and the figures over kinds."""
    apart = {name: result[name] - other[name] for name in result}
    kinds = [apart[name] for name in list(result)[: list(result).index("mixture")]]
    of_all = {"mean": np.mean(kinds), "median": np.median(kinds), "worst": max(kinds)}
    return apart | {name: float(value) for name, value in of_all.items()}


def show(arguments: argparse.Namespace) -> None:
    """Print a table for each setting and budget, each arm minus *--against*, and the rule's tests.

    The tests are of all settings, budgets and both main figures; if the held-out texts are of one
    kind, these are one.
    """
    found = {tuple(row[:4]): row[4] for row in read_results(arguments.folder / "results.jsonl")}
    names = list(dict.fromkeys(key[3] for key in found))
    tests: dict[tuple[str, float, str], tuple[float, float, float]] = {}
    for setting, share in product(arguments.settings, arguments.shares):
        print(f"\n{setting}, {share:.0%} of the tokens, minus {arguments.against}\n")
        print("| arm |", *(f"{figure} |" for figure in FIGURES), "mixture, mean | copies |")
        for name in names:
            keys = [(setting, fold, share) for fold in arguments.folds]
            pairs = [
                (found[*key, name], found[*key, arguments.against])
                for key in keys
                if (*key, name) in found and (*key, arguments.against) in found
            ]
            if pairs:
                apart = [differences(*pair) for pair in pairs]
                of = {figure: interval([one[figure] for one in apart]) for figure in FIGURES}
                shown = (f"{mean:+.3f} ± {half:.3f} |" for mean, half, _ in of.values())
                folds = "; ".join(f"{one['mixture']:+.3f} {one['mean']:+.3f}" for one in apart)
                copies = np.mean([pair[0]["copies"] for pair in pairs])
                print(f"| {name} |", *shown, folds, f"| {copies:.2f} |")
                if name == TESTED != arguments.against:
                    has_kinds = list(pairs[0][0]).index("mixture") > 1
                    figures = FIGURES[:2] if has_kinds else FIGURES[:1]
                    tests |= {(setting, share, figure): of[figure] for figure in figures}
    adjusted = holm(np.array([p for _, _, p in tests.values()]))
    print(f"\n{TESTED} minus {arguments.against}, p by Holm over these {len(tests)} tests")
    for (test, (mean, half, _)), p in zip(tests.items(), adjusted, strict=True):
        print("|", *test, f"| {mean:+.3f} ± {half:.3f} | {p:.4f} |")


def main() -> None:
    """Run arms, then print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of benchmarks.kinds or benchmarks.noisy_crawl")
    parser.add_argument("--settings", nargs="+", default=["4000", "16000", "40000"])
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1])
    parser.add_argument("--arms", nargs="+", help="names of arms; without, all")
    parser.add_argument("--against", default="random")
    parser.add_argument("--model", type=Path, help="folder of a model; without, lexical vectors")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measure(arguments)
    show(arguments)


if __name__ == "__main__":
    main()
