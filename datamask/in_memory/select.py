"""Select documents that are in memory, from Python: `datamask.select`.

One call does what a run does with one shard, without its files: documents become unit vectors, the
mask is learned (`datamask.learning.learner`), and the result reports its gain over random and top
quality. No document is dropped or pruned first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from math import isnan, nan
from typing import Any

import numpy as np

from datamask.config import recipe
from datamask.config.compute import Compute
from datamask.config.inputs import EMBEDDERS, Embedding
from datamask.config.loading import parse_settings
from datamask.config.selection import TRAINING, Selection
from datamask.embedding.loose_texts import embed_texts
from datamask.errors import SettingsError
from datamask.in_memory.containers import column_of, numbers, texts_or_matrix
from datamask.quality.heuristic import heuristic_scores
from datamask.report.chart_data import LOOKS, NAMES
from datamask.report.charts import Chart, Series
from datamask.runs.budget import total_budget
from datamask.selection.terms import indicator_names

OF_RUNS = ("scope", "rounds", "mask_model", "documents", "tokens", "limits", *TRAINING)
"""Settings of the selection that only a run has."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One value of the selection, of random and of top quality.

    Args:
        name: a term of the objective, `objective`, or `mean length`.
        selected: of the selected documents.
        random: expected for equally many random candidates.
        best: of the best selection by this term alone; NaN if it was not learned.
        top_quality: of equally many documents with the highest quality.
        better: `higher`, `lower`, or empty if neither is better.
    """

    name: str
    selected: float
    random: float
    best: float
    top_quality: float
    better: str

    @property
    def share(self) -> float:
        """The gain over random, as a fraction of the best selection's gain; NaN if not known."""
        most = self.best - self.random
        return (self.selected - self.random) / most if most else nan


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Selected:
    """The documents that `select` chose from N; notebooks show the gains.

    Args:
        mask: bool, shape N: True if a document is selected.
        logits: float32, shape N: marginal gain minus the threshold, above 0 if selected
            (`datamask.learning.published`).
        quality: float64, shape N; None without quality.
        selection: the settings used.
        seed: of every random choice.
        metrics: values of the terms, as JSON (`LearnedMask.metrics`).
        note: a caveat, or empty.
    """

    mask: np.ndarray
    logits: np.ndarray
    quality: np.ndarray | None
    selection: Selection
    seed: int
    metrics: Mapping[str, Any]
    note: str

    @property
    def indices(self) -> np.ndarray:
        """Rows of the selected documents, ascending; int64, shape S."""
        return np.flatnonzero(self.mask)

    def summary(self) -> list[Comparison]:
        """Compare each term for the selection, random, best and top quality (NaN: no quality)."""
        rows = []
        for name, term in self._terms().items():
            top = np.nan if self.quality is None else term["top_quality"]
            better = "higher" if term["maximise"] else "lower"
            best = nan if term["best"] is None else term["best"]
            rows.append(Comparison(name, term["selected"], term["random"], best, top, better))
        return rows

    def plot(self) -> Chart:
        """Chart the gain of each term over random, as a fraction of the best."""
        series, sets = [], ("selected",) if self.quality is None else ("selected", "top_quality")
        for chosen in sets:
            gains = {}
            for name, term in self._terms().items():
                if term["best"] not in (None, term["random"]):
                    most = term["best"] - term["random"]
                    gains[f"{name}, {NAMES[chosen]}"] = (term[chosen] - term["random"]) / most
            colour, _ = LOOKS[chosen]
            values = [*gains.values()]
            series.append(Series(name=NAMES[chosen], x=[*gains], y=values, colour=colour))
        return Chart(
            key="gains",
            title=f"{self._counts()}: gain over random",
            kind="bars",
            x="gain over random, as a share of what the best selection by this term gains",
            y="",
            series=tuple(series),
        )

    def __repr__(self) -> str:
        lines = [f"{self._counts()}: {self._gains()}"]
        for name, *values, better in self._table():
            lines.append(f"{name:26s}{''.join(f'{v:>14s}' for v in values)}  {better}".rstrip())
        return "\n".join([*lines, self.note] if self.note else lines)

    def _repr_html_(self) -> str:
        heading, *rows = self._table()
        cells = [[f"<th>{name}</th>" for name in heading]]
        cells += [[f"<td>{escape(cell)}</td>" for cell in row] for row in rows]
        table = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
        gained = f"<b>{self._counts()}</b>: {escape(self._gains())}"
        return f"<p>{gained}</p><table>{table}</table><p>{escape(self.note)}</p>"

    def _table(self) -> list[tuple[str, ...]]:
        """Write the comparisons in cells, below a heading."""
        rows: list[tuple[str, ...]] = [("", "ours", "random", "best", "top quality", "better")]
        for row in self.summary():
            cells = (
                "–" if isnan(value) else f"{value:.5g}"
                for value in (row.selected, row.random, row.best, row.top_quality)
            )
            rows.append((row.name, *cells, row.better))
        return rows

    def _terms(self) -> dict[str, Any]:
        terms = self.metrics["terms"]
        return {
            name: terms[name] for name in terms if name != "quality" or self.quality is not None
        }

    def _counts(self) -> str:
        return f"{self.mask.sum():,d} of {len(self.mask):,d} documents selected"

    def _gains(self) -> str:
        """Write the fraction of the best possible gain over random, by term, in words."""
        parts = []
        for row in self.summary():
            if not isnan(row.share):
                parts.append(f"{row.name} {row.share:.0%}")
            elif row.random:
                change = row.selected / row.random - 1
                parts.append(f"{row.name} {abs(change):.1%} {'below' if change < 0 else 'above'}")
                parts[-1] += f" random ({row.better} is better)"
        return ", ".join(parts) + " (0% is random, 100% the best by this alone)"


def select(
    data: Any,
    quality: Any = None,
    *,
    ratio: float | None = None,
    num_selected: int | None = None,
    quality_weight: float | None = None,
    metric: str | type | None = None,
    seed: int = 0,
    column: str | None = None,
    embedding: str | Embedding = "lexical",
    scores: Mapping[str, Any] | None = None,
    compute: Compute | None = None,
    **settings: Any,
) -> Selected:
    """Select documents by quality and diversity.

    Args:
        data: embeddings, one row per document (NumPy, a tensor, Arrow, polars, pandas, lists), or
            texts; or a table with a column of either (Arrow, polars, pandas, Hugging Face
            Dataset). Embeddings that are not of unit length are divided by their norm.
        quality: a number per document, or the name of a column; higher is better. None: diversity
            alone, and for texts a heuristic (`datamask.quality.heuristic`) to compare with.
        ratio: share to select, in (0, 1]; at least one document, rounded half up; by default 0.1.
        num_selected: how many to select, in place of *ratio*.
        quality_weight: lambda, in [0, 1]: 1 is quality only, 0 diversity only; by default 0.5, or 0
            without quality or with the heuristic.
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
        SettingsError: a setting is unknown, out of range or for runs only.
    """
    from datamask.learning.learner import learn_mask  # This imports torch.

    compute, note = compute or Compute(), ""
    documents = texts_or_matrix(column_of(data, column))
    index = data.index if hasattr(data, "iloc") else None

    def named(values: Any, name: str) -> np.ndarray:
        values = column_of(data, values) if isinstance(values, str) else values
        return numbers(values, len(documents), name, index)

    values = None if quality is None else named(quality, "quality")
    if isinstance(documents, list):
        if values is None:
            values = heuristic_scores(documents)[0]
            note = "Quality is a heuristic of the texts' form"
            note += ", which does not rank. " if not quality_weight else ". "
        if embedding == "lexical":
            note += "Embeddings are lexical (shared wording, not meaning); name a model."
    if quality_weight is None:
        quality_weight = 0.0 if quality is None else recipe.UNPRUNED_QUALITY_WEIGHT
    elif quality_weight and values is None:
        raise SettingsError("quality_weight: there is no quality; give one, or leave this out")
    if values is None and settings.get("method") == "top_quality":
        raise SettingsError("method: top_quality has no quality to rank by; give one")
    if metric is None:
        is_greedy = settings.get("method") == "greedy"
        metric = recipe.CORPUS_METRIC if is_greedy else recipe.METRIC
    elif not isinstance(metric, str):
        metric = f"{metric.__module__}:{metric.__qualname__}"
    if not (isinstance(seed, int | np.integer) and 0 <= seed < 2**63):
        raise SettingsError(f"seed: {seed}; give at least 0 and less than 2⁶³")
    for_runs = [name for name in settings if name in OF_RUNS]
    if for_runs:
        raise SettingsError(f"{for_runs[0]}: for runs only; use num_selected, or datamask.rebuild")
    if num_selected is not None:
        if ratio is not None:
            raise SettingsError("num_selected and ratio: give one of them")
        if not isinstance(num_selected, int | np.integer):
            raise SettingsError(f"num_selected: {num_selected!r} is not a whole number")
        if not 1 <= num_selected <= len(documents):
            raise SettingsError(f"num_selected: {num_selected:,} of {len(documents):,} documents")
    settings |= {"documents": num_selected, "metric": metric, "quality_weight": quality_weight}
    settings |= {} if ratio is None else {"ratio": ratio}
    selection: Selection = parse_settings(settings, Selection)
    if set(indicator_names(selection)) - (scores or {}).keys():
        problem = "a term reads groups or lengths, which only a run has; use datamask.rebuild"
        raise SettingsError(f"more_terms: {problem}")
    if isinstance(documents, list):
        documents = embed_texts(documents, _embedding(embedding, compute), compute)
    learned = learn_mask(
        documents,
        np.zeros(len(documents)) if values is None else values,
        selection,
        total_budget(selection, len(documents)),
        seed=seed,
        scores={name: named(score, name) for name, score in (scores or {}).items()},
        compute=compute,
    )
    mask, logits, metrics = learned.selected, learned.logits, learned.metrics
    return Selected(mask, logits, values, selection, seed, metrics, note.strip())


def _embedding(embedding: str | Embedding, compute: Compute) -> Embedding:
    """Return the settings of an embedder: a named model gets its width, e5 its prefix."""
    if isinstance(embedding, Embedding):
        return embedding
    if embedding in EMBEDDERS or ":" in embedding:
        return Embedding(method=embedding)
    from datamask.embedding.sentence_transformer import with_own_width

    prefix = Embedding().prefix if embedding == Embedding().model else ""
    return with_own_width(Embedding(model=embedding, prefix=prefix), compute)
