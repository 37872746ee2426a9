"""Check schemas and counts, before any row is read: columns, types, enough documents.

Problems are yielded, not raised, so that they are reported together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pyarrow as pa

from datamask.config.group import OF_SOURCE
from datamask.config.selection import GREEDY
from datamask.config.settings import Settings
from datamask.errors import DatamaskError, InputError, SettingsError, did_you_mean
from datamask.runs.schemas import added_columns
from datamask.runs.stage_settings import makes_model
from datamask.source.columns import feature_problem, has_text, is_id, is_numeric, is_text
from datamask.source.groups import group_problems

_ProblemOf = Callable[[pa.DataType, str], str]
"""Return the problem of a column's type, which a setting may change; empty if there is none."""


def _must_be(fits: Callable[[pa.DataType], bool], needed: str) -> _ProblemOf:
    return lambda kind, key: (
        "" if fits(kind) else f"type {kind}, needed {needed}; fix it, or set {key}"
    )


def column_problems(settings: Settings, schema: pa.Schema) -> Iterator[DatamaskError]:
    """Yield errors about columns that are absent, have a wrong type, or a clashing name."""
    source = settings.source
    columns, path = source.columns, source.path

    def check(column: str, key: str, problem_of: _ProblemOf) -> Iterator[DatamaskError]:
        if schema.names.count(column) == 1:
            problem = problem_of(schema.field(column).type, key)
        else:
            many = "twice in the source" if column in schema.names else "absent from the source"
            problem = f"{many}, whose columns are {', '.join(schema.names)}; set {key}"
        if problem:
            yield InputError(problem, path=path, column=column)

    is_key = _must_be(is_id, "text or integer")
    if source.layout == "documents":
        required = {"id": is_key, "text": _must_be(is_text, "text")}
    else:
        required = {"id": is_key}
    has_one_text = dict.fromkeys(("dump", "language", "url"), _must_be(has_text, "text"))
    optional = {"token_count": _must_be(is_numeric, "a number"), **has_one_text}
    for key, problem_of in (required | optional).items():
        name = getattr(columns, key, "")
        # Optional columns of the source may be absent, unless a setting names them.
        is_named = name not in ("", key)
        if key in required or is_named or name in schema.names:
            setting = f"source.columns.{key}" if name else "source.layout"
            yield from check(name or key, setting, problem_of)
    if settings.vector_column and not settings.vector_files and settings.has_vectors:
        width = settings.embedding.dimension
        is_vector: _ProblemOf = lambda kind, _: feature_problem(kind, width)  # noqa: E731
        yield from check(settings.vector_column, "embedding.column", is_vector)
    yield from _name_problems(settings, schema)
    yield from group_problems(source, schema)
    if source.layout == "features":
        for key in ("near_duplicates", "contamination"):
            if getattr(settings.quality, key) is not None:
                yield SettingsError(f"quality.{key}: needs text; layout `features` has none")
    for index, score in enumerate(settings.scores):
        if score.source_column:
            key = f"quality.scores.{index}.column"
            yield from check(score.source_column, key, _must_be(is_numeric, "a number"))
        if score.reads_text and source.layout == "features":
            yield SettingsError(
                f"quality.scores.{index}.kind: {score.kind} needs text; layout `features` has none"
            )
    for name in source.classifiers if source.layout == "features" else ():
        yield SettingsError(f"source.groups.{name}: needs text; layout `features` has none")
    named = [score.source_group for score in settings.scores if score.source_group]
    for name in dict.fromkeys(group.column for group in (*named, *settings.quality.favoured)):
        if name in OF_SOURCE:
            key = "url" if name == "domain" else name
            wanted = _must_be(has_text, "text")
            yield from check(columns.of_group(name), f"source.columns.{key}", wanted)


def _name_problems(settings: Settings, schema: pa.Schema) -> Iterator[DatamaskError]:
    """Yield errors about columns that DuckDB would confuse, because it ignores case."""
    path = settings.source.path
    added = added_columns(settings).names
    taken: dict[str, str | None] = dict.fromkeys(name.lower() for name in added)
    for name in schema.names:
        other = taken.setdefault(name.lower(), name)
        if other is None:
            problem = "the subset adds a column of this name; set subset.column_prefix"
            yield InputError(f"{problem} (as datamask_)", path=path, column=name)
        elif other != name:
            problem = f"differs from column {other} in case only, which DuckDB ignores; rename one"
            yield InputError(problem, path=path, column=name)


def token_problems(settings: Settings, schema: pa.Schema) -> Iterator[DatamaskError]:
    """Yield errors if the source lacks tokens, or columns of groups, that the selection needs."""
    source, selection = settings.source, settings.selection
    named = bool(source.tokenizer) or settings.counts_for_trainer
    can_count = source.layout == "documents" and named
    has_tokens = source.columns.token_count in schema.names or can_count
    if selection.needs_tokens and not has_tokens:
        yield SettingsError(
            f"selection.{selection.needs_tokens}: the source has no column "
            f"`{source.columns.token_count}`; set source.columns.token_count, or "
            "source.tokenizer to count them"
        )
    limited = dict.fromkeys(selection.limited, "limits")
    limited |= {name: "repeat_caps" for cap in selection.repeat_caps for name in cap.columns}
    groups = {name: limited[name] for name in limited if name != "quality"} | _balanced(settings)
    for column, setting in groups.items():
        if column == "length":
            if source.layout == "features":
                yield SettingsError(f"selection.{setting}: layout `features` has no lengths")
            continue
        if column == "topic":
            if settings.topics is None:
                yield SettingsError(
                    f"selection.{setting}: the run has no topics; set `topics`, as 'topics={{}}'"
                )
            continue
        if column not in source.kinds:
            hint, known = did_you_mean(column, source.kinds), ", ".join((*source.kinds, "topic"))
            yield SettingsError(
                f"selection.{setting}: no group `{column}`{hint}; known are {known}"
            )
        elif column in OF_SOURCE and (name := source.columns.of_group(column)) not in schema.names:
            key = "url" if column == "domain" else column
            yield SettingsError(
                f"selection.{setting}: the source has no column `{name}`; set source.columns.{key}"
            )


def _balanced(settings: Settings) -> dict[str, str]:
    """Return columns whose groups the objective balances; none if it cannot be made."""
    if not (settings.selection.more_terms or settings.selection.has_custom_terms):
        return {}
    from datamask.objectives.formula import indicator_names

    with contextlib.suppress(SettingsError):
        names = indicator_names(settings.selection)
        return {name.partition("=")[0]: "more_terms" for name in names}
    return {}


def _suits(settings: Settings) -> bool:
    """Return True if a built-in metric is the only term, and settings ask only what it supports."""
    selection = settings.selection
    is_only = not (selection.more_terms or selection.has_custom_terms)
    has_sums = selection.scope == "shard" or selection.metric != "facility_location"
    is_free = selection.method not in GREEDY
    return is_only and has_sums and is_free and not _publishes_model(settings)


def _publishes_model(settings: Settings) -> bool:
    return settings.publication is not None and "mask_model" in settings.publication.include


def objective_problems(settings: Settings) -> Iterator[DatamaskError]:
    """Yield errors if terms cannot be built or do not suit estimator, method and scope.

    Custom terms are tried on a few random documents.
    """
    if _suits(settings):
        return
    # These import torch.
    from datamask.learning.exchange import check_scope
    from datamask.learning.learner import check_terms
    from datamask.objectives.trial import try_objective
    from datamask.objectives.weighted import BUILT_IN, build_terms

    try:
        terms = build_terms(settings.selection)
        check_terms(settings.selection, terms)
        if settings.selection.scope == "corpus":
            check_scope(terms)
        if _publishes_model(settings):
            if not makes_model(settings):
                raise SettingsError("publication.include: this run learns no mask model")
            check_scope(terms)
        names = [score.name for score in settings.scores]
        for term in terms:
            if type(term.objective) not in BUILT_IN.values():
                try_objective(term.objective, settings.embedding.dimension, names)
    except SettingsError as error:
        yield error
