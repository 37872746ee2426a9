"""Recipes of selection compared at equal tokens, by the trigram model of `datamask evaluate`.

Corpora are those of `benchmarks.noisy_crawl`; docs/evidence.md has the plan and the results. Every
arm is made by the product: scores `examples`, `datamask.select`, its comparators, its MinHash
clusters, its trigrams. Vectors are computed once and kept in the corpora's folder; results are
added to `results.jsonl` there, and an arm that has one is not run again.

    python -m benchmarks.recipes runs/noisy-crawl --model runs/all-MiniLM-L6-v2 --folds 0 1
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from scipy import stats

import datamask
from datamask.config.compute import Compute
from datamask.config.inputs import Embedding
from datamask.config.recipe import following
from datamask.config.selection import METRICS
from datamask.embedding.loose_texts import embed_texts
from datamask.evaluation.ngram import Trigrams, bits_by_text
from datamask.evaluation.texts import NGRAM, SCORED_TOKENS, SIMILARITY, train_tokenizer
from datamask.evaluation.verdict import holm
from datamask.hygiene.minhash import cluster, sign
from datamask.hygiene.words import hash_ngrams, split_words
from datamask.quality.example_texts import RANDOM_DOCUMENTS
from datamask.quality.heuristic import heuristic_scores
from datamask.quality.word_model import example_scores, features_of, fit_words
from datamask.selection.per_shard import LEAST_CHANGE
from datamask.source.token_counts import encode

WINDOWS = 1
"""Windows of a text: the figures are of texts that are judged by their beginning."""

VOCABULARY = 2048
RANDOM_DRAWS, LABELS = 3, 500
ATTEMPTS = 2
"""How often a budget of tokens is approached; a run makes up to three attempts."""

RECIPE = "examples, best 50 %, facility_location 0"
"""The recipe named before any result."""
NAMED = {
    "random": ("", 1.0, "random", 0.0),
    "top": ("examples", 1.0, "top_quality", 1.0),
    "half, random": ("examples", 0.5, "random", 0.0),
    "before": ("heuristic", 0.6, "disf", 0.5),
}
COMPARED = ("random", "top", "half, random", "before")
KEYS = ("good", "copies", "tokens", "seconds")
"""What is printed of selected documents, besides bits per byte."""
CLEAN = "C"
"""The setting whose held-out texts are like the source. Means are over the other settings."""
FAMILY = [*product(("A", "A2", "B", "B0"), COMPARED[:3]), (CLEAN, "random")]
"""The confirmatory tests of the plans."""
WEIGHTS = (0.0, 0.1, 0.3, 0.5)
"""The lambdas of the second plan."""
VENDI = "benchmarks.spectrum:Vendi"
FILTERS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15)
"""Shares kept by the filters of `--study grid`."""


@dataclass(frozen=True)
class Arm:
    """A way to select.

    Args:
        score: examples, labels, heuristic, or empty.
        kept: share of the documents left after pruning by the score.
        method: a diversity metric, or a method of selection.
        weight: of quality (lambda).
        is_distinct: near-duplicates are dropped first.
        follows: what is kept and the weight follow from the score's AUC, as in the product.
    """

    score: str
    kept: float
    method: str
    weight: float
    is_distinct: bool = False
    follows: bool = False

    @property
    def name(self) -> str:
        """The settings in words, with defaults left out."""
        if self.follows:
            return f"{self.score}, {self.method} by AUC"
        words = [self.score, f"best {self.kept * 100:.0f} %" if self.kept < 1 else ""]
        weight = f" {self.weight:g}" if self.method in (*METRICS, VENDI) else ""
        words += ["distinct" if self.is_distinct else "", self.method + weight]
        return ", ".join(word for word in words if word)

    def at(self, auc: float) -> Arm:
        """This arm with a score of that AUC."""
        pruned, weight = following(auc)
        return replace(self, kept=1 - pruned, weight=weight, follows=False)


def arms_of(setting: str, study: str) -> dict[str, Arm]:
    """The arms of a study, by name."""
    score, covering = "examples", "facility_location"
    if study == "grid":
        arms = [Arm(*NAMED[name]) for name in COMPARED[:2]]
        arms += [Arm(score, *at) for at in product(FILTERS, (covering,), (*WEIGHTS, 0.7))]
        return {arm.name: arm for arm in arms}
    if study in ("weights", "follows"):
        arms = [Arm(*NAMED[name]) for name in COMPARED[:3]]
        arms += [Arm(score, 0.5, covering, weight) for weight in WEIGHTS]
        if study == "follows":
            arms += [Arm(score, 0.5, method, 0.0, follows=True) for method in (covering, "random")]
        return {arm.name: arm for arm in arms}
    arms = [Arm(*NAMED[name]) for name in COMPARED]
    arms += [Arm(score, 0.5, covering, weight) for weight in (0.0, 0.3)]
    arms += [Arm(score, 1.0, covering, 0.5), Arm(score, 0.5, "disf", 0.5)]
    arms += [Arm(score, 1.0, covering, 0.0), Arm("heuristic", 0.6, covering, 0.0)]
    if study == "all":
        arms += [Arm(score, kept, covering, 0.0) for kept in (0.7, 0.3)]
        arms += [Arm(score, 0.5, covering, 0.1), Arm(score, 1.0, covering, 0.3)]
        arms += [Arm(score, 1.0, "disf", weight) for weight in (0.1, 0.3, 0.5)]
        arms += [Arm(score, 0.5, "disf", weight) for weight in (0.0, 0.1, 0.3)]
        arms += [Arm(score, 0.5, metric, 0.1) for metric in ("pairwise", VENDI)]
        arms += [Arm(score, 0.5, "semdedup", 0.0)]
        arms += [Arm(score, 0.5, method, 0.0, True) for method in ("random", covering)]
        arms += [Arm("heuristic", 0.6, "random", 0.0)]
        if setting != CLEAN:  # nothing to label: all are like the held-out texts
            arms += [Arm("labels", 0.5, covering, 0.0)]
    return {arm.name: arm for arm in arms}


class Corpus:
    """A corpus without near-copies of held-out texts, its vectors and its scores."""

    tokenizer_of = "B-0.parquet"
    """The file whose texts the byte pairs are learned from."""

    def __init__(self, folder: Path, setting: str, fold: int, embedding: Embedding) -> None:
        names = ("", "-held-out", "-examples")
        tables = [pq.read_table(folder / f"{setting}-{fold}{name}.parquet") for name in names]
        candidates, held_out, examples = tables
        texts = pa.concat_tables([held_out, candidates])["text"].to_pylist()
        labels, first = _clusters(texts), held_out.num_rows
        is_kept = ~np.isin(labels[first:], labels[:first])
        _, firsts = np.unique(candidates["id"].to_pylist(), return_index=True)  # exact copies
        is_kept &= np.isin(np.arange(len(is_kept)), firsts)
        self.documents = candidates.filter(pa.array(is_kept))
        self.texts: list[str] = self.documents["text"].to_pylist()
        self.kinds = np.array(self.documents["domain"].to_pylist())
        self.examples: list[str] = examples["text"].to_pylist()
        self.seed = fold
        self.wanted = set(held_out["domain"].to_pylist())
        tokenizer = _tokenizer(folder, self.tokenizer_of)
        self.tokens = [np.array(ids, np.int64) for ids in encode(tokenizer, self.texts)]
        self.costs = np.array([len(ids) + 1 for ids in self.tokens])
        scored = encode(tokenizer, held_out["text"].to_pylist())
        self.held_out = [np.array(ids[:SCORED_TOKENS], np.int64) for ids in scored]
        self.held_out_bytes = np.array(
            [len(tokenizer.decode(ids.tolist()).encode()) for ids in self.held_out]
        )
        self.bytes = int(self.held_out_bytes.sum())
        self.held_out_kinds = np.array(held_out["domain"].to_pylist())
        self.vectors = _vectors(folder, fold, self.documents, embedding)
        self.score = cache(self._score)
        self.auc: dict[str, float] = {}

    def _score(self, name: str) -> np.ndarray:
        """A score of each document, as the product computes it."""
        if name in ("", "heuristic"):
            scores, _ = heuristic_scores(self.texts, WINDOWS)
            return scores if name else np.zeros(len(self.texts))
        drawn = np.random.default_rng([self.seed, 1]).permutation(len(self.texts))
        if name == "labels":
            rows = drawn[:LABELS]
            fitted_to = [self.texts[row] for row in rows]
            targets = self.is_good[rows].astype(float)
        else:
            rows = drawn[:RANDOM_DOCUMENTS]
            fitted_to = [*self.examples, *(self.texts[row] for row in rows)]
            targets = np.repeat([1.0, 0.0], [len(self.examples), len(rows)])
        features, _ = features_of(fitted_to, WINDOWS)
        model, figures, _ = fit_words(features, targets)
        print(f"  score {name}: {figures}", flush=True)
        self.auc[name] = figures["auc"]
        return example_scores(self.texts, model, WINDOWS)[0]

    @cached_property
    def is_good(self) -> np.ndarray:
        """Whether a document is of a kind that is held out; near-copies are."""
        return np.isin(self.kinds, [*self.wanted, "copy"])

    @cached_property
    def distinct(self) -> np.ndarray:
        """The rows of the best document of each cluster of near-duplicates."""
        order = np.argsort(-self.score("examples"), kind="stable")
        labels = _clusters([self.texts[row] for row in order])
        return np.sort(order[labels == np.arange(len(labels))])

    def bits_per_byte(self, chosen: np.ndarray, budget: int, seed: int) -> float:
        """Of the held-out texts, by trigrams of *budget* tokens of chosen documents."""
        return float(self.bits(chosen, budget, seed).sum()) / self.bytes

    def bits(self, chosen: np.ndarray, budget: int, seed: int) -> np.ndarray:
        """Of each held-out text, by trigrams of *budget* tokens of chosen documents."""
        order = np.random.default_rng([self.seed, seed, 2]).permutation(chosen)
        texts = [np.append(self.tokens[row], VOCABULARY) for row in order]
        stream = np.concatenate([[VOCABULARY], *texts])[: budget + 1]
        model = Trigrams(stream, VOCABULARY + 1)
        return bits_by_text(model, self.held_out, [0] * len(self.held_out))


def _clusters(texts: Sequence[str]) -> np.ndarray:
    words = split_words(pa.array(texts, pa.large_string()))
    return cluster(sign(hash_ngrams(words, NGRAM)), SIMILARITY)


def _tokenizer(folder: Path, learned_from: str) -> Any:
    """Byte pairs, learned once from the texts of a file and kept in another."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if path.exists():
        return Tokenizer.from_file(str(path))
    texts = pq.read_table(folder / learned_from)["text"].to_pylist()
    tokenizer = train_tokenizer(texts, VOCABULARY)
    tokenizer.save(str(path))
    return tokenizer


def _vectors(folder: Path, fold: int, documents: pa.Table, embedding: Embedding) -> np.ndarray:
    """The vectors of documents; those of a fold and of a model are kept in a file."""
    of_model = f"-{Path(embedding.model).name}" if embedding.model != Embedding().model else ""
    path = folder / f"vectors{of_model}-{fold}.npz"
    known: dict[str, np.ndarray] = {}
    if path.exists():
        with np.load(path) as stored:
            known = dict(zip(stored["ids"].tolist(), stored["vectors"], strict=True))
    ids, texts = documents["id"].to_pylist(), documents["text"].to_pylist()
    new = {name: text for name, text in zip(ids, texts, strict=True) if name not in known}
    if new:
        compute = Compute(device="cpu", embedding_batch=8)
        made = embed_texts(list(new.values()), embedding, compute, WINDOWS).astype(np.float16)
        known |= dict(zip(new, made, strict=True))
        np.savez(path, ids=np.array(list(known)), vectors=np.stack(list(known.values())))
    return np.stack([known[name] for name in ids]).astype(np.float32)


def chosen_by(arm: Arm, corpus: Corpus, budget: int, seed: int) -> np.ndarray:
    """The rows that an arm selects: at least *budget* tokens, or all that it has."""
    quality = corpus.score(arm.score)
    arm = arm.at(corpus.auc[arm.score]) if arm.follows else arm
    rows = corpus.distinct if arm.is_distinct else np.arange(len(corpus.texts))
    kept = round(arm.kept * len(rows))
    rows = np.sort(rows[np.argsort(-quality[rows], kind="stable")][:kept])
    costs, vectors, quality = corpus.costs[rows], corpus.vectors[rows], quality[rows]
    is_metric = arm.method in (*METRICS, VENDI)
    number = min(len(rows), max(16, round(budget / costs.mean())))
    for _ in range(ATTEMPTS):
        selected = datamask.select(
            vectors,
            quality,
            num_selected=number,
            method="mask" if is_metric else arm.method,
            metric=arm.method if is_metric else "disf",
            quality_weight=arm.weight,
            seed=seed,
            compute=Compute(device="cpu"),
        )
        ranked = np.argsort(-selected.logits, kind="stable")
        chosen = ranked[: np.searchsorted(np.cumsum(costs[ranked]), budget) + 1]
        if abs(len(chosen) - number) <= LEAST_CHANGE * number:
            break
        number = len(chosen)
    return np.asarray(rows[chosen])


def run_arm(arm: Arm, corpus: Corpus, share: float) -> dict[str, Any]:
    """Bits per byte of an arm, and what it selects."""
    budget, started = int(share * corpus.costs.sum()), time.process_time()
    draws = RANDOM_DRAWS if arm.method == "random" else 1
    selections = [chosen_by(arm, corpus, budget, seed) for seed in range(draws)]
    bits = [corpus.bits_per_byte(rows, budget, seed) for seed, rows in enumerate(selections)]
    chosen = np.concatenate(selections)
    return {
        "bits": float(np.mean(bits)),
        "good": float(corpus.is_good[chosen].mean()),
        "copies": float((corpus.kinds[chosen] == "copy").mean()),
        "tokens": float(corpus.costs[chosen].mean()),
        "seconds": time.process_time() - started,
    }


def measure(arguments: argparse.Namespace) -> None:
    """Run the arms that have no result yet."""
    path = arguments.folder / "results.jsonl"
    done = {tuple(row[:4]) for row in read_results(path)}
    embedding = Embedding(
        model=str(arguments.model), prefix="", dimension=384, max_tokens=128, dtype="bfloat16"
    )
    for fold, setting in product(arguments.folds, arguments.settings):
        arms = arms_of(setting, arguments.study)
        wanted = [
            (share, name)
            for share, name in product(arguments.shares, arms)
            if (setting, fold, share, name) not in done
        ]
        if not wanted:
            continue
        corpus = Corpus(arguments.folder, setting, fold, embedding)
        print(f"{setting}-{fold}: {len(corpus.texts)} documents", flush=True)
        for share, name in wanted:
            result = run_arm(arms[name], corpus, share)
            with path.open("a") as file:
                file.write(json.dumps([setting, fold, share, name, result]) + "\n")


def read_results(path: Path) -> list[list[Any]]:
    """Setting, fold, share, arm and figures of each result."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """The mean, half the width of its 95 % interval, and the p value of Student's t."""
    values, freedom = np.asarray(differences), len(differences) - 1
    if freedom < 1 or not values.any():
        return float(values.mean()), float("nan"), 1.0
    error = values.std(ddof=1) / np.sqrt(len(values))
    p_value = 2 * stats.t.sf(abs(values.mean()) / error, freedom)
    return float(values.mean()), float(stats.t.ppf(0.975, freedom) * error), float(p_value)


def show(arguments: argparse.Namespace) -> None:
    """Print a table for each share, what arms consist of, and the confirmatory tests."""
    figures: dict[tuple[str, float, str], dict[int, Any]] = {}
    for setting, fold, share, name, result in read_results(arguments.folder / "results.jsonl"):
        if fold in arguments.folds:
            figures.setdefault((setting, share, name), {})[fold] = result
    named = {name: Arm(*NAMED[name]).name for name in COMPARED}

    def apart(setting: str, share: float, name: str, other: str) -> dict[int, float]:
        """Differences of two arms by fold."""
        of_arm, of_other = (figures.get((setting, share, arm), {}) for arm in (name, other))
        folds = sorted(of_arm.keys() & of_other.keys())
        return {fold: of_arm[fold]["bits"] - of_other[fold]["bits"] for fold in folds}

    for share, other in product(arguments.shares, (named["random"], arguments.winner)):
        print(f"\n{share:.0%} of the tokens, folds {arguments.folds}, compared with: {other}\n")
        print("| arm |", *(f"{setting} |" for setting in (*arguments.settings, "mean")))
        for name in dict.fromkeys(name for _, of_share, name in figures if of_share == share):
            columns = [apart(setting, share, name, other) for setting in arguments.settings]
            noisy = [c for c, s in zip(columns, arguments.settings, strict=True) if s != CLEAN]
            of_folds = [[c[fold] for c in noisy if fold in c] for fold in arguments.folds]
            columns.append({i: float(np.mean(v)) for i, v in enumerate(of_folds) if v})
            cells = [[*values.values()] for values in columns]
            shown = ("{:+.3f} ± {:.3f} |".format(*interval(c)) if c else "– |" for c in cells)
            print(f"| {name} |", *shown)
    print("\narms:", ", ".join(KEYS))
    for (setting, share, name), of_arm in figures.items():
        numbers = [np.mean([result[key] for result in of_arm.values()]) for key in KEYS]
        print(f"  {setting}, {share:.0%}, {name}:", *(f"{number:.2f}" for number in numbers))
    tests = []
    for setting, other in FAMILY:
        if by_fold := apart(setting, arguments.shares[0], arguments.winner, named[other]):
            tests.append((setting, other, *interval([*by_fold.values()])))
    for test, p_value in zip(tests, holm(np.array([test[-1] for test in tests])), strict=True):
        print("| {} | {} | {:+.3f} ± {:.3f} |".format(*test), f"{p_value:.4f} |")


def main() -> None:
    """Run arms, then print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of benchmarks.noisy_crawl")
    parser.add_argument("--model", type=Path, required=True, help="all-MiniLM-L6-v2")
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--settings", nargs="+", default=["A", "A2", "B", "B0", "C"])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1])
    parser.add_argument(
        "--study", choices=["all", "confirmed", "weights", "grid", "follows"], default="all"
    )
    parser.add_argument("--winner", default=RECIPE)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measure(arguments)
    show(arguments)


if __name__ == "__main__":
    main()
