"""Which settings determine the output of a stage, for the table in `runs.stages`."""

from __future__ import annotations

from typing import Any

from datamask.config.settings import Settings

_COMBINING = {"weight", "normalisation", "normalise_within", "missing", "fill_value"}
"""Settings of a score that its raw values do not depend on."""


def raw_scores(settings: Settings) -> Any:
    """What raw scores depend on."""
    ignored = {*_COMBINING, "model", "revision"}
    scores = [score.model_dump(mode="json", exclude=ignored) for score in settings.scores]
    return [settings.source.layout, settings.source.columns, settings.source.tokenizer, scores]


def file_scores(settings: Settings) -> Any:
    """What scores from separate files depend on."""
    of_files = {"name", "path", "column", "id_column"}
    scores = [score for score in settings.scores if score.kind == "file"]
    return [settings.source.id_column, [score.model_dump(include=of_files) for score in scores]]


def example_models(settings: Settings) -> Any:
    """What models fitted to examples depend on."""
    keys = {"name", "path", "labels", "column", "text_column", "id_column", "least_correlation"}
    scores = [s.model_dump(include=keys) for s in settings.scores if s.kind == "examples"]
    return [settings.source.id_column, settings.source.columns.text, settings.seed, scores]


def screening(settings: Settings) -> Any:
    """What signatures and contamination depend on."""
    near, known = settings.quality.near_duplicates, settings.quality.contamination
    columns = [settings.source.columns.text, settings.source.id_column]
    return [*columns, near and near.ngram, known and known.ngram]


def combined(settings: Settings) -> Any:
    """What normalised scores, and documents dropped before pruning, depend on."""
    known, scores = settings.quality.contamination, settings.scores
    held_out = settings.evaluation.hold_out and [settings.evaluation.hold_out, settings.seed]
    every = [score.model_dump(mode="json") for score in scores]
    return [every, settings.quality.duplicates, held_out, known and known.action]


def classifiers(settings: Settings) -> Any:
    """What the scores of classifiers depend on."""
    ignored = {*_COMBINING, "model", "revision", "column", "path", "id_column", "label"}
    scores = [score for score in settings.scores if score.kind == "classifier"]
    chosen = [score.model_dump(mode="json", exclude=ignored) for score in scores]
    return [settings.source.id_column, settings.source.columns.text, chosen]


def embedding(settings: Settings) -> Any:
    """What embeddings depend on.

    Vectors that were computed before a setting existed stay valid while it has its default.
    """
    embedding, later = settings.embedding, {"truncate", "storage"}
    changed = embedding.model_dump(mode="json", include=later, exclude_defaults=True)
    if embedding.has_model and settings.source.layout != "features":
        others = {"model", "revision", "keep", *later}
        return embedding.model_dump(mode="json", exclude=others) | changed
    changed.pop("truncate", None)
    of_source: Any = embedding.dimension
    if settings.source.layout != "features":
        of_source = [embedding.method, embedding.dimension]
    return [of_source, changed] if changed else of_source


def learnt(settings: Settings) -> Any:
    """Of `rounds`, whether it is 1 (see `STAGES`); limits matter when all shards are cut."""
    every = settings.selection.of_mask()
    ignored = {"limits"} if settings.selection.one_pass else {"rounds", "limits"}
    chosen = {key: every[key] for key in every if key not in ignored}
    return _with_vectors(settings, [chosen, settings.seed])


def evaluates(settings: Settings) -> bool:
    """Whether language models are trained."""
    return bool(settings.evaluation.arms)


def tokens(settings: Settings) -> Any:
    """What the tokens that language models read depend on."""
    evaluation = settings.evaluation
    return [settings.source.columns.text, evaluation.model, evaluation.tokenizer]


def mask(settings: Settings) -> Any:
    """What a mask depends on."""
    return _with_vectors(settings, [settings.selection.of_mask(), settings.seed])


def _with_vectors(settings: Settings, found: list[Any]) -> list[Any]:
    """What an output depends on; the vectors too, if they are made with it."""
    return found if settings.embedding.keep else [*found, embedding(settings)]


def makes_model(settings: Settings) -> bool:
    """Whether the run ends with a mask model: it learns a mask."""
    return settings.selection.method == "mask" and not settings.selection.mask_model


def exchanges(settings: Settings) -> bool:
    """Whether shards learn together."""
    return settings.selection.scope == "corpus"


def swaps_together(settings: Settings) -> bool:
    """Whether shards swap documents after the last of several rounds."""
    return settings.selection.num_rounds > 1 and settings.selection.swap_refinement > 0
