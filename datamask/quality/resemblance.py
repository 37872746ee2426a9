"""Find examples that resemble each other more than documents of the source, as pieces of texts do.

Pieces of one text share its names, so a score that has learned from some recognises the others. A
cross-validation that has both in different folds then praises a score that knows nothing of other
texts. Folds of neighbours in the file keep pieces together, unless the file is shuffled; that is
why resemblance is measured, too. But in a file that is sorted by kind of text, such folds test a
score on kinds that it has not seen, so the effect of the order is measured as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from datamask.quality.fitting import concordance
from datamask.quality.word_model import FOLDS, cross_validated_familiarity, folds_of

COMPARED = 300
"""Maximum number of examples, and of random documents, that are compared (docs/log.md#examples)."""

SIMILARITY = 0.02
"""Mean cosine of the pairs of two groups of texts above which they become one
(docs/log.md#examples)."""

FEWEST = 0.6
"""Groups of examples, as a fraction of the groups of random documents, below which there is a
warning (docs/log.md#examples)."""

LEAST_EFFECT = 0.04
"""AUC that familiarity with the words gains in random folds over blocks of the file, from which on
there is a warning (docs/log.md#examples)."""


def resemblance(examples: Any, others: Any) -> dict[str, int]:
    """Count groups of similar texts among the examples, and among equally many random documents.

    Args:
        examples: words and pairs of each text (`word_model.features_of`), N x FEATURES.
        others: features of the random documents.

    Returns:
        `texts` of each kind that were compared, and the groups of `examples` and of `random` ones.
    """
    number = min(examples.shape[0], others.shape[0], COMPARED)
    frequency = np.asarray((others > 0).sum(axis=0)).ravel()
    # Squared, so that names count, which few documents have, and not the words of a topic.
    weights = np.log((others.shape[0] + 1) / (frequency + 1)) ** 2
    groups = {"texts": number}
    for name, features in (("examples", examples), ("random", others)):
        drawn = np.random.default_rng(0).permutation(features.shape[0])[:number]
        groups[name] = _count_groups(features[np.sort(drawn)], weights)
    return groups


def _count_groups(features: Any, weights: np.ndarray) -> int:
    """Count the groups of texts by average linkage, up to a mean cosine of `SIMILARITY`."""
    from scipy import sparse
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform
    from sklearn.preprocessing import normalize

    weighted = normalize(features @ sparse.diags_array(weights))
    distance = np.clip(1 - (weighted @ weighted.T).toarray(), 0, 1)
    np.fill_diagonal(distance, 0)
    merged = linkage(squareform((distance + distance.T) / 2, checks=False), "average")
    return int(fcluster(merged, 1 - SIMILARITY, "distance").max())


def alike(groups: dict[str, int] | None) -> str:
    """Warn in words if the examples seem to be pieces of a few texts; otherwise return "".

    *groups* counts the examples (`texts`), their groups of similar texts (`examples`), and the
    groups of equally many random documents (`random`); None if they were not compared.
    """
    if not groups or groups["examples"] >= FEWEST * groups["random"]:
        return ""
    return (
        f"{groups['texts']:,} examples fall into {groups['examples']:,} groups of similar texts, "
        f"and as many random documents into {groups['random']:,}: the examples seem to come from "
        "few texts, or are about one narrow topic. If some are pieces of the same text, keep these "
        "together in the file, or name the column that says of which text in group_column; else "
        "the score is praised for recognising texts, prunes more than it should, and may know "
        "nothing of others."
    )


def order_effect(features: Any, targets: np.ndarray, groups: Sequence[str]) -> dict[str, float]:
    """Compare how well the examples' words separate them, in blocks of the file and at random.

    Arguments are as in `word_model.fit_words`.

    Returns:
        cross-validated AUCs of familiarity alone, in folds of neighbours (`blocks`) and in folds
        drawn at random (`random`).
    """
    from sklearn.model_selection import PredefinedSplit, StratifiedKFold

    splits: dict[str, Any] = {
        "blocks": PredefinedSplit(folds_of(groups, len(targets))),
        "random": StratifiedKFold(FOLDS, shuffle=True, random_state=0),
    }
    return {
        name: concordance(cross_validated_familiarity(folds, features, targets), targets)[0]
        for name, folds in splits.items()
    }


def sorted_by_kind(order: dict[str, float] | None) -> str:
    """Warn in words if the file of examples seems to be sorted by kind; otherwise return "".

    *order* is the result of `order_effect`; None if it was not measured.
    """
    if not order or order["random"] - order["blocks"] < LEAST_EFFECT:
        return ""
    return (
        "the other parts of the file recognise an example worse (AUC of familiar words "
        f"{order['blocks']:.2f}) than examples drawn at random do ({order['random']:.2f}). If the "
        "file is sorted by kind of text, shuffle it: otherwise the score is tested on kinds that "
        "it has not seen, and too little is pruned. If neighbours in the file are pieces of one "
        "text, set group_column to the column that names the text."
    )
