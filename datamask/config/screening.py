"""Settings of the screening of texts: near-duplicates and benchmarks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from datamask.config.group import PLACE, Group, Place, SourceGroup, or_text

WORDS = 5
"""Words in an n-gram of near-duplicates, as in FineWeb and datatrove."""

SHORTEST = 5
"""Minimum words of a benchmark's item. An item of fewer words than an n-gram is one n-gram."""


class NearDuplicates(Group):
    """Near-duplicates by MinHash of word n-grams: documents that resemble a better, kept one."""

    similarity: float = Field(0.8, ge=0.5, le=1)
    """minimum Jaccard similarity of the word 5-grams of a dropped document and a kept one"""
    rule: Literal["jaccard", "containment"] = "jaccard"
    """`jaccard`: drop documents that similar; `containment`: only if the kept one has all of their
    5-grams, so that no text is lost"""
    against: Annotated[tuple[str, ...], PLACE] = ()
    """earlier datasets, of whose documents near-duplicates are dropped: run folders, or Parquet or
    JSON lines with the source's columns of text and id (local, hf://, s3://)"""
    exempt: tuple[SourceGroup, ...] = ()
    """groups whose documents are never dropped as near-duplicates, as {column: kind, value:
    licence}; copies of them in other groups are"""
    prefer: tuple[SourceGroup, ...] = ()
    """groups whose document is kept where copies stand in several groups, the first ahead of the
    second; exact copies follow it, too; within a group, quality decides"""


class BenchmarkSet(Group):
    """A benchmark, whose texts should not be in the training data."""

    model_config = ConfigDict(json_schema_extra=or_text)

    name: str = ""
    """name in the report; empty: the last part of the path"""
    path: Place = Field(min_length=1)
    """file, folder, glob or URL of Parquet, JSON lines or plain text (a file is one text)"""
    columns: tuple[str, ...] = Field(("text",), min_length=1)
    """columns (text or lists of text) that make up a row's text, in this order"""

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, data: Any) -> Any:
        """Accept a path alone; a set without a name gets the last part of its path."""
        data = {"path": data} if isinstance(data, str) else data
        if isinstance(data, dict) and not data.get("name") and isinstance(data.get("path"), str):
            return {**data, "name": data["path"].rstrip("/").rpartition("/")[2].partition(".")[0]}
        return data


class Contamination(Group):
    """Benchmark contamination: documents that hold word n-grams of a benchmark's items (rows)."""

    sets: tuple[BenchmarkSet, ...] = Field(min_length=1)
    """benchmarks: for each a path, or path, name and columns"""
    ngram: int = Field(13, ge=3, le=100)
    """number of consecutive words that must be shared"""
    covered: float = Field(0.5, gt=0, le=1)
    """least share of an item's n-grams with which a document covers it"""
    common: int = Field(10, ge=1)
    """an n-gram does not count if more documents, of at least two domains, hold it"""
    action: Literal["drop_covered", "drop", "flag"] = "drop_covered"
    """`drop_covered`: drop documents that cover an item, keep those that quote it (hold an n-gram
    inside a column); `drop`: drop both; `flag`: keep both"""

    @model_validator(mode="after")
    def _check(self) -> Contamination:
        names = [item.name for item in self.sets]
        if len(set(names)) != len(names):
            raise ValueError(f"names of sets must differ, got {names}; give each a name")
        return self
