"""Select the settings that determine the output of each stage, for the table in `runs.stages`.

A stage lists only the settings that it reads itself; settings that its inputs depend on are in the
inputs' fingerprints. `tests/runs/test_fingerprints.py` records what every stage reads and compares.

A function here is named after the output whose settings it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from datamask.config.group import OF_SOURCE
from datamask.config.scores import ExamplesScore
from datamask.config.selection import Selection
from datamask.config.settings import Settings


def reads(*paths: str) -> Callable[[Settings], list[Any]]:
    """Return a function that reads the settings at dotted paths; a list gives a list."""
    return lambda settings: [_at(settings, path) for path in paths]


def _at(group: Any, path: str) -> Any:
    name, _, rest = path.partition(".")
    value = getattr(group, name)
    if isinstance(value, tuple) and rest:
        return [_at(item, rest) for item in value]
    return value if value is None or not rest else _at(value, rest)


def texts(settings: Settings) -> list[Any]:
    """Settings of the texts that are read from the source; vectors in their place have none."""
    if settings.source.layout == "features":
        return ["features"]
    names = ("source.columns.text", "source.most_characters", "source.longer")
    return reads("source.layout", *names)(settings)


def reads_texts(*paths: str) -> Callable[[Settings], list[Any]]:
    """Return a function that reads the settings at dotted paths and the settings of `texts`."""
    return lambda settings: [*reads(*paths)(settings), texts(settings)]


def _of_stage(settings: Settings, stage: str, *names: str) -> list[Any]:
    scores = [score for score in settings.scores if score.stage == stage]
    return [[getattr(score, name) for name in names] for score in scores]


def classifiers(settings: Settings) -> list[Any]:
    """Settings of the scores that classifiers give."""
    of_source = [settings.source.id_column, texts(settings), settings.source.windows]
    scores = _of_stage(settings, "classifier_scores", "name", "label")
    return [*of_source, scores, settings.embedding.dtype]


def classes(settings: Settings) -> list[Any]:
    """Settings of the classes that classifiers give documents; planning pins the classifiers."""
    of_source = [settings.source.id_column, texts(settings), settings.source.windows]
    return [*of_source, [*settings.source.classifiers], settings.embedding.dtype]


def groups(settings: Settings) -> list[Any]:
    """Settings of the groups that the user has named."""
    classifiers = [*settings.source.classifiers]
    return [settings.source.expressions, *([classifiers] if classifiers else [])]


def groups_of_source(settings: Settings) -> list[Any]:
    """Settings of all groups of the source: those that columns define, and the user's own."""
    of_columns = [f"source.columns.{name}" for name in ("dump", "language", "url")]
    return [*reads(*of_columns)(settings), *groups(settings)]


def file_scores(settings: Settings) -> list[Any]:
    """Settings of scores from separate files."""
    names = ("name", "path", "column", "id_column")
    return [settings.source.id_column, _of_stage(settings, "file_scores", *names)]


def vector_places(settings: Settings) -> list[Any]:
    """Settings of the join of documents and files of vectors."""
    return [settings.source.id_column, settings.vector_files, settings.embedding.id_column]


def example_models(settings: Settings) -> list[Any]:
    """Settings of the models that are fitted to examples."""
    held_out = settings.evaluation.hold_out and [settings.evaluation.hold_out, settings.seed]
    chosen: list[Any] = [settings.source.id_column, texts(settings), held_out]
    chosen.append(settings.source.windows)
    for score in settings.scores:
        if isinstance(score, ExamplesScore):
            read: list[Any] = [score.column, score.id_column if score.labels else settings.seed]
            if score.where:
                columns = settings.source.columns
                read.append([score.where, columns.url, columns.language, columns.dump])
                read += filter(None, [settings.source.expressions.get(score.where.column)])
            chosen.append([score.name, score.path, score.labels, score.least_correlation, *read])
            if score.path:
                kind, source = score.matched_kind, settings.source
                of_source = source.columns.of_group(kind) if kind in OF_SOURCE else ""
                of_source = of_source or source.expressions.get(kind, "")
                chosen += [kind, of_source, score.group_column]
    return chosen


def raw_scores(settings: Settings) -> list[Any]:
    """Settings of facts and raw scores."""
    columns = ("token_count", "dump", "language", "url")
    of_source = [f"source.columns.{name}" for name in columns]
    scores = reads("source.id_column", *of_source, "scores.name", "scores.kind")
    # Without such scores, the lists of these two kinds are empty in the fingerprint.
    of_kind: dict[str, list[Any]] = {"column": [], "fasttext": []}
    for score in settings.scores:
        if score.own_settings:
            values = [getattr(score, name) for name in score.own_settings]
            of_kind.setdefault(score.kind, []).append(values)
    counted = ["with end of document"] if settings.counts_for_trainer else []
    in_windows = any(score.reads_windows for score in settings.scores)
    windows = [settings.source.windows] if in_windows else []
    text = [texts(settings), settings.compares_texts]
    return [*scores(settings), *text, *of_kind.values(), *counted, windows]


def screening(settings: Settings) -> list[Any]:
    """Settings of signatures, and of n-grams that texts and benchmarks have in common."""
    read = reads_texts("source.id_column", "quality.contamination.ngram")
    return [*read(settings), settings.quality.near_duplicates is not None]


def combined(settings: Settings) -> list[Any]:
    """Settings of normalised scores, and of what is dropped before pruning."""
    names = ("name", "missing", "normalisation", "normalise_within", "weight")
    of_scores = [f"scores.{name}" for name in names]
    of_benchmarks = [f"quality.contamination.{name}" for name in ("action", "covered", "common")]
    every = reads(*of_scores, "quality.duplicates", *of_benchmarks)(settings)
    held_out = settings.evaluation.hold_out and [settings.evaluation.hold_out, settings.seed]
    favoured = reads("quality.near_duplicates.exempt", "quality.near_duplicates.prefer")(settings)
    return [*every, held_out, *(favoured if settings.quality.favoured else [])]


def pruned(settings: Settings) -> list[Any]:
    """Settings of quality, and of everything that is dropped before embedding."""
    selection = settings.selection
    fraction: Any = None  # A mask model brings the pruning of the run that made it.
    if not selection.mask_model and settings.pruning_gives_way:
        fraction = ["follows", selection.ratio, selection.documents, selection.tokens]
    elif not selection.mask_model:
        fraction = "follows" if settings.pruning_follows else settings.prune_fraction
    rule = reads("quality.near_duplicates.similarity", "quality.near_duplicates.rule")(settings)
    return [*combined(settings), fraction, settings.quality.contamination is not None, rule]


def embedding(settings: Settings) -> Any:
    """Return the settings that determine a document's vector and how it is stored.

    Vectors that were computed before a setting existed stay valid while it has its default.
    """
    stored = settings.embedding.model_dump(mode="json", include={"storage"}, exclude_defaults=True)
    vectors = _vectors(settings)
    if isinstance(vectors, dict):
        return vectors | stored
    return [vectors, stored] if stored else vectors


def _vectors(settings: Settings) -> Any:
    """Settings of vectors, whatever number type stores them."""
    embedding = settings.embedding
    if settings.vector_column:
        is_published = settings.vector_column == "feature_arr" and not settings.vector_files
        own = [] if is_published else [settings.vector_column]
        return [embedding.dimension, *own] if own else embedding.dimension
    bound = {"most_characters", "longer"}
    of_texts = settings.source.model_dump(include=bound, exclude_defaults=True)
    of_texts["windows"] = settings.source.windows
    if not embedding.has_model:
        return [embedding.method, embedding.dimension, of_texts]
    changed = embedding.model_dump(mode="json", include={"truncate"}, exclude_defaults=True)
    changed |= of_texts
    others = {"model", "revision", "truncate", "storage", "column", "path", "id_column"}
    return embedding.model_dump(mode="json", exclude=others) | changed


_OBJECTIVE = ("metric", "more_terms", "quality_weight")


def statistics(settings: Settings) -> list[Any]:
    """Settings of the statistics of a shard and its sample."""
    selection = settings.selection
    chosen = [getattr(selection, name) for name in _OBJECTIVE]
    return [*chosen, selection.tokens is not None, settings.seed]


def total(settings: Settings) -> list[Any]:
    """Settings of the sums over all shards; only none, one or more `rounds` differ."""
    selection, rounds = settings.selection, min(settings.selection.num_rounds, 2)
    chosen = [selection.method, selection.scale_terms, rounds, budget(selection)]
    return [*chosen, selection.tolerance] if rounds > 1 else chosen


def learning(settings: Settings) -> list[Any]:
    """Settings of logits that are compared over all shards."""
    selection = settings.selection
    if selection.scope == "shard":
        return learner(settings)
    return [selection.scope, selection.method, selection.method == "random" and settings.seed]


def cut(settings: Settings) -> list[Any]:
    """Settings of the common threshold of all shards."""
    return [settings.selection.scope, budget(settings.selection), settings.selection.limits]


def mask(settings: Settings) -> list[Any]:
    """Settings of a mask, besides the logits and common threshold where the run has them."""
    if settings.selection.mask_model:  # Its selection is compared with random selections.
        names = (f"selection.{name}" for name in ("scope", *_OBJECTIVE, "scale_terms"))
        return reads(*names, "seed")(settings)
    return [] if settings.selection.has_cut else learner(settings)


def learner(settings: Settings) -> list[Any]:
    """Settings of a shard that learns by itself."""
    selection, names = settings.selection, ["scope", "method", *_OBJECTIVE, "scale_terms"]
    names += ["init", "steps"]
    if selection.method == "mask":
        names += ["batch_fraction", "estimator", "tolerance", "swap_refinement"]
        if _may_draw_masks(selection):
            names += ["rollouts", "initial_lr", "final_lr"]
    chosen = [getattr(selection, name) for name in names]
    chosen += ["follows"] if settings.weight_follows else []
    return [*chosen, budget(selection), settings.seed]


def _may_draw_masks(selection: Selection) -> bool:
    """Return True if the estimator may be `policy_gradient`: only users' own terms need it."""
    names = [selection.metric, *(term.name for term in selection.more_terms)]
    is_own = any(":" in name for name in names)
    return selection.estimator == "policy_gradient" or (selection.estimator == "auto" and is_own)


def repeats(settings: Settings) -> list[Any]:
    """Settings of how often training sees each document."""
    selection = settings.selection
    totals = [selection.max_repeat, selection.training_documents, selection.training_tokens]
    return [*totals, *([selection.repeat_caps] if selection.repeat_caps else [])]


def budget(selection: Selection) -> list[Any]:
    """Return the budget in force: its kind and value."""
    if selection.tokens is not None:
        return ["tokens", selection.tokens]
    if selection.documents is not None:
        return ["documents", selection.documents]
    return ["ratio", selection.ratio]


def held_out(settings: Settings) -> list[Any]:
    """Settings of the texts that score trained models; examples are left out of these texts."""
    sets = settings.evaluation.model_dump(mode="json", include={"hold_out_by", "sets"})
    return [sets, _of_stage(settings, "example_models", "path", "column")]


def report(settings: Settings) -> dict[str, Any]:
    """All settings that a report shows."""
    return settings.model_dump(mode="json", exclude={"subset", "publication"})


def has_scores(stage: str) -> Callable[[Settings], bool]:
    """Return a function: True if a stage before `scores` makes values or a model of a score."""
    return lambda settings: any(score.stage == stage for score in settings.scores)


def makes_tokens(settings: Settings) -> bool:
    """Return True if the run writes tokens for a trainer."""
    return settings.tokens is not None


def evaluates(settings: Settings) -> bool:
    """Return True if the run trains language models."""
    return bool(settings.evaluation.arms)


def makes_model(settings: Settings) -> bool:
    """Return True if the run ends with a mask model, because it learns a mask."""
    return settings.selection.method == "mask" and not settings.selection.mask_model


def _of_groups(settings: Settings, kinds: Iterable[Any]) -> tuple[str, ...]:
    """Name the stages that make groups of some kinds."""
    stages = {"topic": "topics"} if settings.topics else {}
    stages |= dict.fromkeys(settings.source.groups, "groups")
    return tuple(dict.fromkeys(stages[kind] for kind in kinds if kind in stages))


def balanced_groups(settings: Settings) -> tuple[str, ...]:
    """Name the stages that make groups which the objective may read."""
    kinds = [term.options.get("column") for term in settings.selection.more_terms]
    if settings.selection.has_custom_terms:
        kinds = ["topic", *settings.source.groups]
    return _of_groups(settings, kinds)


def groups_of_quality(settings: Settings) -> tuple[str, ...]:
    """Name the stages that make groups within which scores are normalised or copies preferred."""
    favoured = (group.column for group in settings.quality.favoured)
    return _of_groups(settings, [*(s.normalise_within for s in settings.scores), *favoured])


def groups_of_examples(settings: Settings) -> tuple[str, ...]:
    """Name the stages that make groups which are examples, or have their shares of documents."""
    examples = [score for score in settings.scores if isinstance(score, ExamplesScore)]
    kinds = {score.where.column if score.where else score.matched_kind for score in examples}
    return ("classes",) if kinds & settings.source.classifiers.keys() else ()


def limited_groups(settings: Settings) -> tuple[str, ...]:
    """Name the stages that make groups with floors or caps."""
    return _of_groups(settings, settings.selection.limited)


def repeated_groups(settings: Settings) -> tuple[str, ...]:
    """Name the stages that make groups whose repeats are capped."""
    return _of_groups(
        settings, (name for c in settings.selection.repeat_caps for name in c.columns)
    )


def held_out_groups(settings: Settings) -> tuple[str, ...]:
    """Name the stages that give held-out documents their groups, if these are read."""
    if settings.evaluation.hold_out_by != "topic":
        return _of_groups(settings, [settings.evaluation.hold_out_by])
    return ("topic_model", "vector_places") if settings.vector_files else ("topic_model",)


def exchanges(settings: Settings) -> bool:
    """Return True if shards learn together, or are compared by sums over their vectors."""
    return settings.selection.scope == "corpus" and settings.has_vectors
