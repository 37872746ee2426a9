"""The result of `datamask.select`: which documents, why, and what was gained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import isnan, nan
from typing import Any, overload

import numpy as np

from datamask.config.selection import Selection
from datamask.errors import InputError, SettingsError
from datamask.in_memory.containers import column_of, numbers, texts_or_matrix
from datamask.in_memory.documents import Documents
from datamask.report.chart_data import LOOKS, NAMES
from datamask.report.charts import Chart, Series


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
class Selected(Sequence[int]):
    """The documents that `select` chose from N: their rows, ascending; notebooks show the gains.

    Arrays, tables and frames take it as an index, because it is a sequence of rows.

    Args:
        mask: bool, shape N: True if a document is selected.
        logits: float32, shape N: marginal gain minus the threshold, above 0 if selected
            (`datamask.learning.published`); NaN for documents that were dropped before.
        quality: float64, shape N, as given or as the scores are combined; None without quality.
        selection: the settings used.
        seed: of every random choice.
        metrics: values of the terms, as JSON (`LearnedMask.metrics`).
        note: a caveat, or empty.
        dropped: shape N: why a document was dropped before the selection (`low_quality`,
            `duplicate`, ...), or None; empty if none could be.
        of_texts: True if the documents are texts.
        judge: returns the logits of new documents, NaN if dropped; None if `apply` cannot judge.
    """

    mask: np.ndarray
    logits: np.ndarray
    quality: np.ndarray | None
    selection: Selection
    seed: int
    metrics: Mapping[str, Any]
    note: str
    dropped: np.ndarray = field(default_factory=lambda: np.empty(0, object))
    of_texts: bool = False
    judge: Callable[[Documents], np.ndarray] | None = None

    def __len__(self) -> int:
        return int(self.mask.sum())

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        rows: int | Sequence[int] = self.indices[index].tolist()
        return rows

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices.tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.indices.astype(dtype or np.int64)

    def apply(self, data: Any, quality: Any = None, *, column: str | None = None) -> np.ndarray:
        """Judge new documents by this selection, without learning: those above its threshold.

        Args:
            data: as for `select`, of the same kind and encoder.
            quality: as for `select`, by the same score; needed if the selection had one.
            column: as for `select`.

        Returns:
            Logits, float32, shape of *data*: above 0 if a document is to be kept, NaN if its
            quality is below what the selection pruned.

        Raises:
            SettingsError: the selection is no function of a document (`facility_location`, methods
                that do not learn, scores from examples); a run on all documents judges new ones.
        """
        if self.judge is None:
            problem = "the mask is no function of a document; use metric disf or pairwise"
            raise SettingsError(f"metric: {problem}, without examples")
        content = texts_or_matrix(column_of(data, column))
        if isinstance(content, list) != self.of_texts:
            raise InputError("texts in place of embeddings, or the reverse; give the same kind")
        values = column_of(data, quality) if isinstance(quality, str) else quality
        if values is not None:
            values = numbers(values, len(content), "quality", getattr(data, "index", None))
        return self.judge(Documents(content, values))

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
        return f"{len(self):,d} of {len(self.mask):,d} documents selected"

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
