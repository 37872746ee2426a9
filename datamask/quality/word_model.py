"""Fit a model of hashed words that scores texts.

The features of a text are its words and pairs of neighbouring words, hashed to `FEATURES` places,
as log(1 + count), at length 1; a long text has the weighted mean over its windows
(`source.windows`).

Two values separate examples from other texts. The margin of a logistic regression weighs the words
that the regression has seen; a word that it has not seen counts nothing. The familiarity of a text
is the mean log ratio of its words, which is high for words that mostly examples have; a word of no
example lowers it. A second regression, which is fitted to cross-validated values of both, gives the
score: the log-odds that a text is an example, if examples and other texts are equally many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.hygiene.words import hash_ngrams, split_words
from datamask.quality import fitting
from datamask.source.windows import cut

FEATURES = 2**18
"""Number of places of hashed words and pairs; a model's two arrays take 4 MiB
(docs/log.md#examples)."""

READ_CHARACTERS = 3000
"""Characters of a window of a text (docs/log.md#examples)."""

STRENGTH = 10.0
"""Inverse regularisation strength of the logistic regression (docs/log.md#examples)."""

FOLDS = 5
"""Number of folds of the cross-validation (docs/log.md#examples)."""

TEXTS_AT_ONCE = 1000
"""Number of texts whose words are hashed at once, to limit memory (docs/log.md#examples)."""


@dataclass(frozen=True, slots=True)
class WordModel:
    """A fitted model, which scores texts by their features.

    Args:
        weights: of the features in the margin, shape FEATURES.
        log_ratios: of the features (`log_ratios_of`), times the weight of familiarity in the score;
            shape FEATURES. All are 0 in a ridge regression.
        intercept: added to margin and familiarity.
        predicted: ascending values of a ridge regression that are calibrated; none otherwise.
        expected: the calibrated score for each of `predicted` (`fitting.calibrated`).
    """

    weights: np.ndarray
    log_ratios: np.ndarray
    intercept: float
    predicted: np.ndarray
    expected: np.ndarray

    def scores(self, features: Any) -> np.ndarray:
        """Score N texts with *features* (sparse, N x FEATURES); float64."""
        values = features @ self.weights + familiarity(features, self.log_ratios) + self.intercept
        return fitting.calibrated(values, np.stack([self.predicted, self.expected]))


def features_of(texts: Iterable[str | None], most: int) -> tuple[Any, np.ndarray]:
    """Hash words and pairs of texts, read in at most *most* windows.

    Texts are taken a thousand at a time, so an iterator need not hold them all.

    Returns:
        a sparse matrix, float64, N x FEATURES; and the fraction of each text that was read.
    """
    from scipy import sparse

    left, parts, shares = iter(texts), [sparse.csr_array((0, FEATURES))], [np.zeros(0, np.float32)]
    while some := [text or "" for text in islice(left, TEXTS_AT_ONCE)]:
        windows = cut(some, READ_CHARACTERS, most)
        parts.append(windows.mean(_features(pa.array(windows.texts, pa.large_string()))))
        shares.append(windows.share_read())
    return sparse.vstack(parts, format="csr"), np.concatenate(shares)


def _features(texts: pa.Array) -> Any:
    """Hash words and pairs of windows (large_string), as `features_of` does."""
    from scipy import sparse
    from sklearn.preprocessing import normalize

    words = split_words(texts)
    rows, columns = [], []
    for number in (1, 2):
        hashes, offsets = hash_ngrams(words, number)
        # The number of words is part of the hash, as a text of one word is a pair of its own.
        columns.append((hashes + np.uint64(number)) % np.uint64(FEATURES))
        rows.append(np.repeat(np.arange(len(texts), dtype=np.int32), np.diff(offsets)))
    row, column = np.concatenate(rows), np.concatenate(columns).astype(np.int32)
    counts = sparse.csr_array((np.ones(len(row)), (row, column)), shape=(len(texts), FEATURES))
    counts.sum_duplicates()
    return normalize(counts.log1p())


def log_ratios_of(features: Any, is_example: np.ndarray) -> np.ndarray:
    """Return log(½ + q) of each feature, where q is the probability that its text is an example.

    q is the examples' fraction of the feature's sum over texts, with both kinds scaled to equal
    totals; 0 for a feature that no text has. The values are from log ½ to log 3⁄2.
    """
    totals = [features[is_example == kind].sum(axis=0) for kind in (True, False)]
    examples, others = (total / max(total.sum(), 1e-300) for total in totals)
    both = examples + others
    shares = np.divide(examples, both, out=np.zeros_like(both), where=both > 0)
    return np.asarray(np.log(0.5 + shares))


def familiarity(features: Any, log_ratios: np.ndarray) -> np.ndarray:
    """Return the mean log ratio of each text's words and pairs; shape N, 0 without words."""
    return np.asarray(features @ log_ratios / np.maximum(features.sum(axis=1), 1e-300))


def fit_words(
    features: Any, targets: np.ndarray, groups: Sequence[str] = ()
) -> tuple[WordModel, dict[str, Any], np.ndarray]:
    """Fit a logistic regression and familiarity to two targets, or a ridge regression to more.

    *groups* belong to the first texts, all of kind 1: folds of the cross-validation split none. If
    several folds held pieces of one text, its names would betray them, not their kind.

    Returns:
        the model, whose values for two targets are calibrated log-odds at equal numbers of both;
        metrics (see `examples.fit_examples`); and cross-validated predictions, shape N, which are
        0 where texts are too few for them.
    """
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.model_selection import KFold, PredefinedSplit, StratifiedKFold, cross_val_predict
    from threadpoolctl import threadpool_limits

    classes = np.unique(targets)
    is_logistic = len(classes) == 2
    model: Any = Ridge(alpha=1.0, solver="sparse_cg")
    folds: Any = KFold(FOLDS, shuffle=True, random_state=0)
    if is_logistic:
        targets = (targets == classes[1]).astype(np.float64)
        # `liblinear` takes a fifth of the time of `lbfgs` for words (docs/log.md#examples).
        model = LogisticRegression(C=STRENGTH, solver="liblinear", class_weight="balanced")
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
        if groups:
            folds = PredefinedSplit(folds_of(groups, len(targets)))
    figures: dict[str, Any] = {
        "kind": "logistic" if is_logistic else "ridge",
        "examples": int(targets.sum()) if is_logistic else len(targets),
        "others": int((targets == 0).sum()) if is_logistic else 0,
        "auc": None,
        "correlation": None,
    }
    weights, log_ratios = np.zeros(FEATURES), np.zeros(FEATURES)
    curve = np.zeros((2, 0))
    if len(classes) < 2 or (is_logistic and min(figures["examples"], figures["others"]) < FOLDS):
        return WordModel(weights, log_ratios, 0.0, *curve), figures, np.zeros(len(targets))
    # Places that no word of these texts has get the weight 0.
    used = np.unique(features.indices)
    features = features[:, used]
    # One thread gives sums a fixed order.
    with threadpool_limits(1):
        method = "decision_function" if is_logistic else "predict"
        predicted = cross_val_predict(model, features, targets, cv=folds, method=method)
        fitted = model.fit(features, targets)
        weights[used], intercept = np.ravel(fitted.coef_), float(np.ravel(fitted.intercept_)[0])
        if is_logistic:
            factors, shift, predicted = _weigh(folds, predicted, features, targets)
            log_ratios[:] = np.log(0.5)
            log_ratios[used] = log_ratios_of(features, targets == 1)
            weights, log_ratios = weights * factors[0], log_ratios * factors[1]
            intercept = intercept * factors[0] + shift
        else:
            curve = fitting.isotonic_curve(predicted, targets)
        figures["correlation"] = fitting.rank_correlation(predicted, targets)
        figures["auc"] = fitting.concordance(predicted, targets)[0]
    return WordModel(weights, log_ratios, intercept, *curve), figures, predicted


def folds_of(groups: Sequence[str], number: int) -> np.ndarray:
    """Assign *number* texts to folds; the first texts have *groups*, which are not split.

    Each group, the largest first, goes to the fold with the fewest texts. The other texts are dealt
    at random.
    """
    names, members, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    fold_of, texts = np.zeros(len(names), int), np.zeros(FOLDS, int)
    for group in np.argsort(-sizes, kind="stable"):
        fold_of[group] = texts.argmin()
        texts[fold_of[group]] += sizes[group]
    others = np.random.default_rng(0).permutation(number - len(groups)) % FOLDS
    return np.concatenate([fold_of[members], others])


def cross_validated_familiarity(folds: Any, features: Any, targets: np.ndarray) -> np.ndarray:
    """Return how familiar each text's words are from the texts of the other folds; shape N.

    *features* are sparse (N x D), *targets* are 0 or 1.
    """
    values = np.zeros(len(targets))
    for rest, part in folds.split(features, targets):
        ratios = log_ratios_of(features[rest], targets[rest] == 1)
        values[part] = familiarity(features[part], ratios)
    return values


def _weigh(
    folds: Any, margins: np.ndarray, features: Any, targets: np.ndarray
) -> tuple[np.ndarray, float, np.ndarray]:
    """Weigh cross-validated margins and familiarity (stacked generalisation, Wolpert 1992).

    *margins* are cross-validated in *folds*, shape N; *features* are sparse (N x D), *targets* are
    0 or 1.

    Returns:
        the weights of margin and familiarity, not negative; the intercept; and the N log-odds.
    """
    from sklearn.linear_model import LogisticRegression

    values = np.column_stack([margins, cross_validated_familiarity(folds, features, targets)])
    model = LogisticRegression(C=1e6, class_weight="balanced").fit(values, targets)
    if (model.coef_ < 0).any():  # Both values say the same (Breiman 1996).
        values *= model.coef_ > 0
        model.fit(values, targets)
    return model.coef_[0], float(model.intercept_[0]), model.decision_function(values)


def example_scores(
    texts: Iterable[str | None], model: WordModel, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Score N texts (float64); also return the fraction of each text that was read.

    *most* is the number of windows of a text.
    """
    features, read = features_of(texts, most)
    return model.scores(features), read
