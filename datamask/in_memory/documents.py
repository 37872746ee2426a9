"""Documents in memory as the source of a run, and the settings of that run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datamask.config.loading import parse_settings
from datamask.config.scores import HeuristicScore
from datamask.config.settings import Settings
from datamask.source.opening import resolve_path

GIVEN, EXAMPLES = "given", "examples.parquet"
"""Column and name of a quality that is given, and the file of examples."""
QUALITY_AS_BEFORE = "quality: give it if, and only if, the selection had one"
"""Problem of new documents that come with a quality where the selection had none, or without."""


@dataclass(frozen=True, slots=True, eq=False)
class Documents:
    """N documents in memory, and what is known of each.

    Args:
        content: N texts, or unit rows, N x D.
        quality: float64, shape N, or None.
        scores: further numbers by name, float64, shape N.
        lengths: tokens, shape N, or None.
        groups: a name or None for each document, by the column that limits name.
        examples: texts of the wanted kind, or None.
    """

    content: list[str] | np.ndarray
    quality: np.ndarray | None = None
    scores: Mapping[str, np.ndarray] | None = None
    lengths: np.ndarray | None = None
    groups: Mapping[str, list[str | None]] | None = None
    examples: list[str] | None = None

    @property
    def are_texts(self) -> bool:
        """True for texts, False for embeddings."""
        return isinstance(self.content, list)

    def write(self, folder: Path) -> Path:
        """Write source and examples of a run below a folder; return the source's path."""
        rows = len(self.content)
        width = len(str(rows - 1))
        columns: dict[str, Any] = {"id": [f"{row:0{width}d}" for row in range(rows)]}
        if isinstance(self.content, list):
            columns["text"] = pa.array(self.content, pa.string())
        else:
            flat = pa.array(np.ascontiguousarray(self.content).reshape(-1))
            columns["feature_arr"] = pa.FixedSizeListArray.from_arrays(flat, self.content.shape[1])
        quality = self.quality
        if quality is None and not self.are_texts:
            quality = np.zeros(rows)
        columns |= {} if quality is None else {GIVEN: quality}
        columns |= {f"score {name}": values for name, values in (self.scores or {}).items()}
        columns |= {} if self.lengths is None else {"token_count": self.lengths}
        for name, values in (self.groups or {}).items():
            columns[f"group {name}"] = pa.array(values, pa.string())
        source = folder / "source"
        source.mkdir()
        pq.write_table(pa.table(columns), source / "documents.parquet")
        if self.examples is not None:
            examples = pa.table({"text": pa.array(self.examples, pa.string())})
            pq.write_table(examples, folder / EXAMPLES)
        return source

    def settings(self, folder: Path, sections: Mapping[str, Any]) -> Settings:
        """Return the settings of a run on these documents, in one shard.

        *sections* have the seed and what the user sets of quality, embedding and selection.
        """
        scores: list[dict[str, Any]] = []
        if self.examples is not None:
            path = resolve_path(str(folder / EXAMPLES))
            scores.append({"name": "examples", "kind": "examples", "path": path})
        if self.quality is not None or not self.are_texts:
            score = {"name": GIVEN, "kind": "column", "column": GIVEN}
            scores.append(score if self.are_texts else score | {"normalisation": "none"})
        if self.scores:
            scores = scores or [HeuristicScore().model_dump()]
            unweighted = {"kind": "column", "weight": 0.0, "normalisation": "none"}
            for name in self.scores:
                scores.append({"name": name, "column": f"score {name}", **unweighted})
        groups = {name: f'"group {name}"' for name in self.groups or ()}
        source: dict[str, Any] = {"path": str(folder / "source"), "groups": groups}
        if not self.are_texts:
            source |= {"layout": "features", "columns": {"id": "id"}}
        own = {
            "source": source,
            "plan": {"rows_per_shard": len(self.content), "bytes_per_shard": 2**62},
            "quality": {"scores": scores, **sections["quality"]},
        }
        settings: Settings = parse_settings({**sections, **own})
        return settings
