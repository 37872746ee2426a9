"""Scores from examples beside scikit-learn: seconds of fitting and applying them, and their AUC.

The docstrings of some packages are wanted. A score is fitted to `EXAMPLES` of them and to random
documents of the corpus, which contain more of them. It is judged on as many other wanted ones, and
on documents of other packages that it was not fitted to. Our score also measures a cross-validated
AUC, which decides how much to prune. So for each vectoriser, one of scikit-learn's models does the
same, with the faster solver. Seconds are of CPU on one thread, the least of the repeats, for texts
in memory.

    python -m benchmarks.example_scores runs/demo-corpus [--documents 5000 20000]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from threadpoolctl import threadpool_limits

from benchmarks.neighbour_graph import timed
from datamask.config.inputs import WINDOWS
from datamask.quality.example_texts import blocks
from datamask.quality.word_model import (
    FEATURES,
    example_scores,
    features_of,
    fit_words,
    folds_of,
)
from examples.demo_corpus import WANTED

EXAMPLES = 300
GOALS = {"numeric": WANTED, "sqlalchemy": ("sqlalchemy",), "prefect": ("prefect",)}
"""Packages of the docstrings that are wanted."""

Scorer = Callable[[list[str]], np.ndarray]
"""Gives texts their scores."""

VECTORISERS: dict[str, Callable[[], Any]] = {
    "TfidfVectorizer": lambda: TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
    "HashingVectorizer": lambda: HashingVectorizer(
        n_features=FEATURES, ngram_range=(1, 2), alternate_sign=False
    ),
}


def ours(texts: list[str], targets: np.ndarray) -> tuple[Scorer, float]:
    """Our score, and its cross-validated AUC."""
    features, _ = features_of(texts, WINDOWS)
    model, figures, _ = fit_words(features, targets, blocks(EXAMPLES))
    return lambda some: example_scores(some, model, WINDOWS)[0], figures["auc"]


def sklearns(name: str, solver: str, validated: bool) -> Callable[..., tuple[Scorer, float]]:
    """Fit a logistic regression to the vectors of one of scikit-learn's classes."""

    def fit(texts: list[str], targets: np.ndarray) -> tuple[Scorer, float]:
        model = make_pipeline(
            VECTORISERS[name](),
            LogisticRegression(C=10, solver=solver, class_weight="balanced", max_iter=1000),
        )
        auc = np.nan
        if validated:
            # As ours, which makes features once.
            vectors = model[0].fit_transform(texts)
            folds = PredefinedSplit(folds_of(blocks(EXAMPLES), len(texts)))
            method = "decision_function"
            found = cross_val_predict(model[1], vectors, targets, cv=folds, method=method)
            auc = roc_auc_score(targets, found)
            model[1].fit(vectors, targets)
        else:
            model.fit(texts, targets)
        return model.decision_function, auc

    return fit


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--documents", type=int, nargs="+", default=[5000, 20_000])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    corpus = pq.read_table(arguments.corpus, columns=["text", "dump"])
    texts, packages = np.array(corpus["text"].to_pylist(), object), corpus["dump"].to_numpy()
    ways: dict[str, Callable[..., tuple[Scorer, float]]] = {"ours": ours}
    for name in VECTORISERS:
        ways[f"{name}, lbfgs"] = sklearns(name, "lbfgs", False)
        ways[f"{name}, liblinear, cross-validated"] = sklearns(name, "liblinear", True)
    print("| documents | goal | score | fit, s | documents a second | AUC | told |")
    print("|--:|:--|:--|--:|--:|--:|--:|")
    for number in arguments.documents:
        for goal, wanted in GOALS.items():
            generator = np.random.default_rng(0)
            is_wanted = np.isin(packages, wanted)
            drawn = generator.permutation(np.flatnonzero(is_wanted))[: 2 * EXAMPLES]
            others = np.setdiff1d(generator.permutation(len(texts)), drawn, assume_unique=True)
            fitted = [*texts[drawn[:EXAMPLES]], *texts[others[:number]]]
            targets = np.repeat([1.0, 0.0], [EXAMPLES, number])
            unseen = others[number:][~is_wanted[others[number:]]]
            judged = [*texts[drawn[EXAMPLES:]], *texts[unseen]]
            labels = np.repeat([1, 0], [EXAMPLES, len(unseen)])
            for name, fit in ways.items():
                with threadpool_limits(1):
                    seconds, fits = timed(partial(fit, fitted, targets), arguments.repeats)
                    score, told = fits
                    applied, scores = timed(partial(score, judged), arguments.repeats)
                auc = roc_auc_score(labels, scores)
                cells = f"{seconds:.1f} | {len(judged) / applied:,.0f} | {auc:.3f} | {told:.3f}"
                print(f"| {number:,} | {goal} | {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
