"""Scores from examples: a model of hashed words, fitted in seconds, before `scores`.

Stage `example_models` fits one model (`quality.word_model`) for each score of kind `examples`. It
separates the user's texts from random documents of the source (as in arXiv 2406.11794, section
4.2), or follows labels of documents. Stage `scores` applies the models, so these scores can prune
before anything is embedded.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.recipe import following, wanted_share
from datamask.config.scores import ExamplesScore
from datamask.errors import InputError
from datamask.quality.example_texts import (
    Judged,
    contrasted,
    labelled,
    planned_digest,
    read_examples,
)
from datamask.quality.resemblance import alike, order_effect, resemblance, sorted_by_kind
from datamask.quality.word_model import WordModel, example_scores, fit_words
from datamask.runs import schemas
from datamask.runs.output import write_output
from datamask.runs.run import Run
from datamask.source.windows import Scorer

logger = logging.getLogger(__name__)


def fitted_scores(run: Run) -> list[ExamplesScore]:
    """Return the scores of kind `examples`."""
    return [score for score in run.settings.scores if isinstance(score, ExamplesScore)]


def example_texts(run: Run) -> set[str]:
    """Read the texts of the files of examples. Errors are as in `read_examples`."""
    scores = [score for score in fitted_scores(run) if score.path]
    return {
        text for score in scores for text in read_examples(score, planned_digest(run, score))[0]
    }


def fit_examples(run: Run, compute: Compute) -> None:
    """Write `example_models.parquet`: the weights of each score of kind `examples`.

    Metrics of the receipt, by score: `kind` (logistic, or ridge for labels with more than two
    values), `examples` and `others` (texts of the two kinds; in a ridge all are examples), `copies`
    and `matched` (`Judged`), `auc` (`fitting.concordance`), `correlation` (Spearman's, of targets
    and cross-validated predictions) and, for files of texts without `group_column`, `groups`
    (`resemblance.resemblance`) and `order` (`resemblance.order_effect`).

    Raises:
        InputError: there are too few texts, or they cannot be separated.
    """
    rows, metrics = [], {}
    for score in fitted_scores(run):
        texts = labelled(run, score) if score.labels else contrasted(run, score, compute)
        model, figures, predicted = fit_words(texts.features, texts.targets, texts.groups)
        if texts.matched and _separated(figures)[1] < score.least_correlation:
            logger.warning(
                "score %s: within groups of the same %s, the examples are like any document (AUC "
                "%.3f); so they are compared with documents of all groups",
                *(score.name, texts.matched, figures["auc"]),
            )
            texts = contrasted(run, score, compute, is_matched=False)
            model, figures, predicted = fit_words(texts.features, texts.targets, texts.groups)
        figures |= {"copies": texts.copies, "matched": texts.matched}
        _check_separated(run, score, figures)
        logger.info("score %s: %s", score.name, figures)
        if score.path:
            _explain(score, figures, texts)
        metrics[score.name] = figures
        shards, places = zip(*texts.places, strict=True)
        tested = {"shards": shards, "rows": places, "targets": texts.targets, "tested": predicted}
        rows.append({"score": score.name, **asdict(model), **tested})
    table = pa.Table.from_pylist(rows, schema=schemas.EXAMPLE_MODELS)
    write_output(run, "example_models", 0, schemas.EXAMPLE_MODELS, [table], metrics)


def _separated(figures: dict[str, Any]) -> tuple[str, float]:
    """Return the name and the value of the measure that `least_correlation` bounds."""
    if figures["kind"] == "logistic":  # the AUC does not depend on how many texts each kind has
        return "2 AUC - 1", 2 * (figures["auc"] or 0.5) - 1
    return "rank correlation", figures["correlation"] or 0.0


def _check_separated(run: Run, score: ExamplesScore, figures: dict[str, Any]) -> None:
    measure, value = _separated(figures)
    if value < score.least_correlation:
        then = ": such a score decides little (docs/method.md)" if score.path else ""
        raise InputError(
            f"score {score.name}: {measure} of cross-validated predictions is {value:.3f} on "
            f"{figures['examples'] + figures['others']} texts, below least_correlation "
            f"{score.least_correlation:g}; give more examples, or examples that differ more from "
            f"the source, or lower it{then}",
            path=score.labels or score.path or run.settings.source.path,
        )


def _explain(score: ExamplesScore, figures: dict[str, Any], texts: Judged) -> None:
    """Measure whether examples resemble each other, and log what follows from their score."""
    logger.info("score %s: %s", score.name, wanted_share(figures["auc"]))
    if not score.group_column:
        is_example = texts.targets == 1
        figures["groups"] = resemblance(texts.features[is_example], texts.features[~is_example])
        figures["order"] = order_effect(texts.features, texts.targets, texts.groups)
    if text := alike(figures.get("groups")) or sorted_by_kind(figures.get("order")):
        logger.warning("score %s: %s", score.name, text)
    pruned, weight = following(figures["auc"])
    told = f"the worst {pruned:.0%} are pruned and lambda is {weight:g}"
    logger.info("score %s: where these are not set, %s", score.name, told)


def example_scorer(run: Run, score: ExamplesScore) -> Scorer:
    """Return the function that scores texts by the model that was fitted for a score."""
    run.receipt("example_models")
    names = ["score", *WordModel.__slots__]
    rows = run.read_output("example_models", columns=names).to_pylist()
    [row] = [row for row in rows if row["score"] == score.name]
    model = WordModel(
        np.array(row["weights"]),
        np.array(row["log_ratios"]),
        row["intercept"],
        np.array(row["predicted"]),
        np.array(row["expected"]),
    )
    return functools.partial(example_scores, model=model, most=run.settings.source.windows)


def example_figures(run: Run) -> dict[str, Any]:
    """Read the metrics of `fit_examples`, by score; none without such scores."""
    return run.receipt("example_models").metrics if fitted_scores(run) else {}
