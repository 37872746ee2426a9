"""All settings of a run."""

from __future__ import annotations

import functools

from pydantic import Field

from datamask.config.evaluation import Evaluation
from datamask.config.group import Group
from datamask.config.inputs import Embedding, Plan, Quality, Score, Source
from datamask.config.outputs import Publication, Report, Subset
from datamask.config.selection import Selection


class Settings(Group):
    """All of a run's settings."""

    seed: int = Field(0, ge=0, lt=2**63, description="every random choice follows from it")
    source: Source = Field(default_factory=Source, description="where the documents are")
    plan: Plan = Field(default_factory=Plan, description="how they are cut into shards")
    quality: Quality = Field(default_factory=Quality, description="scores and pruning")
    embedding: Embedding = Field(default_factory=Embedding, description="the embedding model")
    selection: Selection = Field(default_factory=Selection, description="what is kept, and how")
    subset: Subset = Field(default_factory=Subset, description="how the subset is written")
    evaluation: Evaluation = Field(
        default_factory=Evaluation, description="training on selections, to compare them"
    )
    report: Report = Field(default_factory=Report, description="sizes of samples and examples")
    publication: Publication | None = Field(None, description="repository and card; none: neither")

    @property
    def scores(self) -> tuple[Score, ...]:
        """The scores known before embedding: those set, or the default of the source's layout."""
        if self.quality.scores:
            return tuple(score for score in self.quality.scores if score.kind != "probe")
        is_imported = self.source.layout == "features"
        return _default_scores(self.source.columns.quality_score if is_imported else "")

    @property
    def probes(self) -> tuple[Score, ...]:
        """The scores that are fitted on embeddings."""
        return tuple(score for score in self.quality.scores if score.kind == "probe")

    @property
    def prune_fraction(self) -> float:
        """The fraction pruned: as set, or the default of the source's layout."""
        if self.quality.prune_fraction is not None:
            return self.quality.prune_fraction
        return 0.4 if self.source.layout == "documents" else 0.0


@functools.cache
def _default_scores(column: str) -> tuple[Score, ...]:
    """Made once, because fingerprints ask for them for each shard."""
    if not column:
        return (Score(),)
    return (Score(name="quality_score", kind="column", column=column, normalisation="none"),)
