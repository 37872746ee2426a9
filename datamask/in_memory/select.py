"""Select documents that are in memory, from Python: `datamask.select`.

Texts are selected by the recipe, as a run does (`in_memory.recipe_run`). Embeddings with a quality
are learned directly (`datamask.learning.learner`), unless something is to be dropped or limited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config import recipe
from datamask.config.compute import Compute
from datamask.config.inputs import EMBEDDERS, OWN_VECTORS, Embedding, group_name
from datamask.config.loading import parse_settings
from datamask.config.selection import AND, TRAINING, Selection
from datamask.errors import InputError, SettingsError
from datamask.in_memory.containers import column_of, names_of, numbers, texts_or_matrix
from datamask.in_memory.documents import Documents
from datamask.in_memory.recipe_run import select_by_run
from datamask.in_memory.selected import Selected
from datamask.objectives.formula import indicator_names
from datamask.runs.budget import total_budget
from datamask.source.columns import whole_tokens

OF_RUNS = ("scope", "rounds", "mask_model", "documents", *TRAINING)
"""Settings of the selection that only a run has."""

HINTS = {
    **dict.fromkeys(("n", "k", "size", "n_samples", "n_select", "documents"), "num_selected"),
    **dict.fromkeys(("frac", "fraction", "share"), "ratio"),
    **dict.fromkeys(("random_state", "rng", "random_seed"), "seed"),
    **dict.fromkeys(("lam", "lambda_", "alpha"), "quality_weight"),
    **dict.fromkeys(("model", "encoder", "embedder"), "embedding"),
}
"""Names of other libraries for arguments of `select`."""


def select(
    data: Any,
    quality: Any = None,
    *,
    examples: Any = None,
    ratio: float | None = None,
    num_selected: int | None = None,
    tokens: int | None = None,
    lengths: Any = None,
    limits: Sequence[Mapping[str, Any]] = (),
    prune_fraction: float | None = None,
    near_duplicates: bool | Mapping[str, Any] = False,
    quality_weight: float | None = None,
    metric: str | type | None = None,
    seed: int = 0,
    column: str | None = None,
    embedding: str | Embedding = "lexical",
    scores: Mapping[str, Any] | None = None,
    compute: Compute | None = None,
    **settings: Any,
) -> Selected:
    """Select documents: filter by quality, then cover the rest.

    Of texts, copies and the worst by quality are dropped first, as in a run with these settings.
    Of embeddings nothing is, unless `prune_fraction` says so.

    Args:
        data: texts, or embeddings, one row per document (NumPy, a tensor, Arrow, polars, pandas,
            lists); or a table with a column of either (Arrow, polars, pandas, Hugging Face
            Dataset). Embeddings that are not of unit length are divided by their norm.
        quality: a number per document, or the name of a column; higher is better. None: for texts
            the examples or else a heuristic of their form, for embeddings diversity alone.
        examples: some hundred texts of the wanted kind; a score is fitted to them; for texts.
        ratio: share to select, in (0, 1]; at least one document, rounded half up; by default 0.1.
        num_selected: how many to select, in place of *ratio*.
        tokens: how many tokens to select, in place of *ratio*; needs *lengths*.
        lengths: tokens of each document, or the name of a column.
        limits: floors and caps of groups (`selection.limits`); `column` is a column of the table,
            or several, as `site * licence`.
        prune_fraction: worst share by quality that is dropped first; by default that of a run for
            texts, 0 for embeddings.
        near_duplicates: True, or settings of `quality.near_duplicates`: keep the best of copies.
        quality_weight: lambda, in [0, 1]: 1 is quality only, 0 diversity only; by default that of a
            run for texts, and for embeddings 0.5, 0.3 after pruning, or 0 without quality.
        metric: the diversity term: a built-in name, `package.module:Class`, or an objective class;
            by default facility_location (method `greedy`: disf).
        seed: of every random choice; at least 0, less than 2⁶³.
        column: of *data*, if it has several of embeddings or of texts.
        embedding: for texts: `lexical` (shared wording, not meaning), a model's name on the Hub, a
            local folder, `package.module:Class`, or all settings of an embedder.
        scores: further numbers per document by name, or names of columns, for terms that read them.
        compute: device and memory.
        settings: other keys of `Selection`: method, more_terms, steps, tolerance, ...

    Raises:
        InputError: a row is missing, zero, not finite or of another width (the message has its
            number), or quality does not belong to the documents.
        SettingsError: a setting is unknown, out of range or for runs only, or cannot be met.
    """
    compute = compute or Compute()
    for name in settings:
        if name in HINTS:
            raise SettingsError(f"{name}: the argument is called {HINTS[name]}")
        if name in OF_RUNS:
            raise SettingsError(f"{name}: for runs only; use datamask.rebuild")
    given, groups = _given(data, column, quality, scores, lengths, limits, examples)
    budget = {"documents": _number(num_selected, given), "tokens": tokens, "ratio": ratio}
    budget = {name: value for name, value in budget.items() if value is not None}
    if len(budget) > 1:
        raise SettingsError("num_selected, ratio and tokens: give one of them")
    if tokens is not None and lengths is None:
        raise SettingsError("tokens: give lengths, the tokens of each document")
    if not (isinstance(seed, int | np.integer) and 0 <= seed < 2**63):
        raise SettingsError(f"seed: {seed}; give at least 0 and less than 2⁶³")
    if metric is not None and not isinstance(metric, str):
        metric = f"{metric.__module__}:{metric.__qualname__}"
    settings |= {**budget, "limits": groups, "metric": metric, "quality_weight": quality_weight}
    selection: Selection = parse_settings(settings, Selection)
    if given.quality is None and not given.are_texts:
        if quality_weight or selection.method == "top_quality" or prune_fraction:
            raise SettingsError("quality: nothing to weigh, rank or prune by; give one")
        selection = selection.filled_in(quality_weight=0.0)
    copies: Any = near_duplicates
    if isinstance(near_duplicates, bool):
        copies = {} if near_duplicates else None
    filtered = {"prune_fraction": prune_fraction, "near_duplicates": copies}
    if not given.are_texts and (examples is not None or copies is not None):
        raise SettingsError("examples and near_duplicates: compare texts, and these are embeddings")
    if given.are_texts or prune_fraction or groups or tokens:
        sections = {"quality": filtered, "selection": selection}
        if given.are_texts:
            sections["embedding"] = _embedding(embedding, compute)
        else:
            sections["embedding"] = {"dimension": np.shape(given.content)[1]}
        return select_by_run(given, {"seed": int(seed), **sections}, compute)
    return _learned(given, selection, seed, compute)


def _given(
    data: Any,
    column: str | None,
    quality: Any,
    scores: Mapping[str, Any] | None,
    lengths: Any,
    limits: Sequence[Mapping[str, Any]],
    examples: Any,
) -> tuple[Documents, list[dict[str, Any]]]:
    """Return the documents, and the limits as a run has them: of the documents' groups."""
    content = texts_or_matrix(column_of(data, column))
    if not len(content):
        raise InputError("no texts")
    index = data.index if hasattr(data, "iloc") else None

    def named(values: Any, name: str) -> np.ndarray:
        values = column_of(data, values) if isinstance(values, str) else values
        return numbers(values, len(content), name, index)

    columns = [[*map(str.strip, str(limit.get("column", "")).split("*"))] for limit in limits]
    known = {name: group_name(name) for names in columns for name in names}
    if "" in known:
        raise SettingsError("limits: each must name a column")
    if lengths is not None:
        lengths = named(lengths, "lengths")
        if (row := whole_tokens(pa.array(lengths))[1]) >= 0:
            problem = f"{lengths[row]:g}, needed a whole number of tokens"
            raise InputError(problem, row=row, column="lengths")
    return Documents(
        content,
        None if quality is None else named(quality, "quality"),
        {name: named(values, name) for name, values in (scores or {}).items()},
        lengths,
        {own: names_of(column_of(data, name)) for name, own in known.items()} or None,
        None if examples is None else _texts(examples),
    ), [
        {**limit, "column": AND.join(known[name] for name in names)}
        for limit, names in zip(limits, columns, strict=True)
    ]


def _number(num_selected: Any, given: Documents) -> int | None:
    if num_selected is None:
        return None
    if not isinstance(num_selected, int | np.integer):
        raise SettingsError(f"num_selected: {num_selected!r} is not a whole number")
    if not 1 <= num_selected <= len(given.content):
        raise SettingsError(f"num_selected: {num_selected:,} of {len(given.content):,} documents")
    return int(num_selected)


def _texts(examples: Any) -> list[str]:
    try:
        texts = texts_or_matrix(column_of(examples))
    except InputError as error:
        raise InputError(f"examples: {error.problem}", row=error.row) from None
    if not isinstance(texts, list):
        raise InputError("examples: numbers; give texts")
    return texts


def _learned(given: Documents, selection: Selection, seed: int, compute: Compute) -> Selected:
    """Learn the mask of embeddings without dropping any."""
    from datamask.in_memory.direct_judge import direct_judge
    from datamask.learning.learner import learn_mask  # This imports torch.

    if {*indicator_names(selection)} - {*(given.scores or ())}:
        problem = "a term reads groups or lengths, which only a run has; use datamask.rebuild"
        raise SettingsError(f"more_terms: {problem}")
    is_greedy = selection.method == "greedy"
    metric = recipe.CORPUS_METRIC if is_greedy else recipe.METRIC
    selection = selection.filled_in(metric=metric)
    assert isinstance(given.content, np.ndarray)
    number = len(given.content)
    learned = learn_mask(
        given.content,
        np.zeros(number) if given.quality is None else given.quality,
        selection,
        total_budget(selection, number),
        seed=seed,
        scores=given.scores,
        compute=compute,
    )
    judge = direct_judge(given, selection, learned, compute)
    outcome = (learned.selected, learned.logits, given.quality, selection, seed, learned.metrics)
    return Selected(*outcome, note="", judge=judge)


def _embedding(embedding: str | Embedding, compute: Compute) -> Embedding:
    """Return the settings of an embedder: a named model gets its width, e5 its prefix."""
    method = embedding.method if isinstance(embedding, Embedding) else embedding
    if method in OWN_VECTORS:
        problem = "is for runs; select from the vectors in place of the texts"
        raise SettingsError(f"embedding: method `{method}` {problem}")
    if isinstance(embedding, Embedding):
        return embedding
    if embedding in EMBEDDERS or ":" in embedding:
        return Embedding(method=embedding)
    from datamask.embedding.sentence_transformer import with_own_width

    prefix = Embedding().prefix if embedding == Embedding().model else ""
    return with_own_width(Embedding(model=embedding, prefix=prefix), compute)
