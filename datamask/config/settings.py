"""All settings of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from datamask.config import recipe
from datamask.config.evaluation import Evaluation
from datamask.config.group import Group
from datamask.config.inputs import OWN_VECTORS, Embedding, Plan, Quality, Source
from datamask.config.outputs import Publication, Subset, Tokens
from datamask.config.scores import ColumnScore, ExamplesScore, HeuristicScore, Score
from datamask.config.selection import FROM_RECIPE, WITHOUT_VECTORS, Selection, Topics
from datamask.errors import did_you_mean

SMALL_RATIO = 0.25
"""Budgets up to this fraction of the source fit, whatever AUC and hygiene usually remove."""

DEFAULT_SCORES: dict[str, tuple[Score, ...]] = {
    "documents": (HeuristicScore(),),
    "features": (
        ColumnScore(
            name="quality_score", kind="column", column="quality_score", normalisation="none"
        ),
    ),
}
"""The scores of a source's layout, if none are set."""


class Settings(Group):
    """All of a run's settings."""

    seed: int = Field(0, ge=0, lt=2**63)
    """every random choice follows from it"""
    source: Source = Field(default_factory=Source)
    """where the documents are"""
    plan: Plan = Field(default_factory=Plan)
    """how they are cut into shards"""
    quality: Quality = Field(default_factory=Quality)
    """scores and pruning"""
    embedding: Embedding = Field(default_factory=Embedding)
    """the embedding model"""
    topics: Topics | None = None
    """what documents are about, as a group of documents; none: no topics"""
    selection: Selection = Field(default_factory=Selection)
    """what is kept, and how"""
    subset: Subset = Field(default_factory=Subset)
    """how the subset is written"""
    tokens: Tokens | None = None
    """what trainers read; none: no tokens"""
    evaluation: Evaluation = Field(default_factory=Evaluation)
    """training on selections, to compare them"""
    publication: Publication | None = None
    """repository and card; none: neither"""

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        """Refuse names of groups that the run does not have, or that are names of scores."""
        taken = [name.lower() for name in (*self.source.groups, *(s.name for s in self.scores))]
        if clash := [name for name in taken if taken.count(name) > 1]:
            raise ValueError(f"source.groups: `{clash[0]}` is the name of two groups or scores")
        for key, name, others in self._group_names():
            known = (*self.source.kinds, *others)
            if name not in known:
                hint = did_you_mean(name, known)
                raise ValueError(f"{key}: no group `{name}`{hint}; known are {', '.join(known)}")
        return self

    def _group_names(self) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Yield each setting that names a kind of groups, the name, and names only it may have."""
        for number, limit in enumerate(self.selection.limits):
            for column in limit.columns:
                yield f"selection.limits.{number}.column", column, ("topic", "quality")
        for number, cap in enumerate(self.selection.repeat_caps):
            for column in cap.columns:
                yield f"selection.repeat_caps.{number}.column", column, ("topic",)
        yield "evaluation.hold_out_by", self.evaluation.hold_out_by, ("topic", "none", "")
        for number, score in enumerate(self.quality.scores):
            key = f"quality.scores.{number}"
            yield f"{key}.normalise_within", score.normalise_within, ("none", "source")
            if group := score.source_group:
                yield f"{key}.where.column", group.column, ()
        for group in self.quality.favoured:
            yield "quality.near_duplicates", group.column, ()

    @model_validator(mode="after")
    def _fill_in(self) -> Self:
        """Fill in a metric and a lambda that are not given; settings of other groups decide."""
        selection, publication, counter = self.selection, self.publication, self.source.tokenizer
        if self.tokens is not None and counter not in ("", self.tokens.tokenizer):
            raise ValueError("source.tokenizer is not tokens.tokenizer; leave source.tokenizer out")
        included = publication.include if publication else ()
        if "tokens" in included and self.tokens is None:
            raise ValueError("publication.include: tokens need tokens.tokenizer")
        if self.evaluation.hold_out_by == "topic" and self.topics is None:
            raise ValueError("evaluation.hold_out_by: the run has no topics; set `topics`")
        of_sums = selection.scope == "corpus" or selection.method == "greedy"
        of_sums |= bool(selection.mask_model or "mask_model" in included)
        metric = recipe.CORPUS_METRIC if of_sums else recipe.METRIC
        weight = recipe.UNPRUNED_QUALITY_WEIGHT
        if self.has_heuristic_alone:
            weight = recipe.HEURISTIC_QUALITY_WEIGHT
        elif self.prune_fraction:
            weight = recipe.QUALITY_WEIGHT
        filled = selection.filled_in(
            metric=metric if self._needs_vectors() else "", quality_weight=weight
        )
        object.__setattr__(self, "selection", filled)  # settings are frozen
        return self

    @property
    def selection_by_columns(self) -> Selection:
        """The selection with those limits alone whose groups columns of the source define."""
        computed = ("topic", "quality", *self.source.classifiers)
        return self.selection.without_limits_of(*computed)

    def given(self, *without: str) -> dict[str, Any]:
        """Return these settings as plain data, *without* some groups and values filled in."""
        data = self.model_dump(mode="json", exclude={*without})
        for name in {*FROM_RECIPE} - self.selection.model_fields_set:
            del data["selection"][name]
        return data

    def explained(self) -> list[str]:
        """Explain to people why metric, lambda and verdict have their default values."""
        selection = self.selection
        lines = [self.evaluation.question] if self.evaluation.arms else []
        if selection.method != "mask" or selection.mask_model:
            return lines
        given, weight = selection.model_fields_set, selection.quality_weight
        pruned, is_blind = f"the worst {self.prune_fraction:.0%}", self.has_heuristic_alone
        pruned += " at most" if self.pruning_follows else ""
        if is_blind and "quality_weight" not in given:
            lines.append(
                f"The only score is the built-in heuristic of form: it prunes {pruned} and does "
                "not rank (selection.quality_weight is 0), because models trained on documents "
                "that it ranks highest were worse than on random ones; name a score of your own in "
                "quality.scores."
            )
        elif (
            self.prune_fraction
            and selection.metric == recipe.METRIC
            and weight <= recipe.QUALITY_WEIGHT
            and not is_blind
        ):
            role = f", with a weight of {weight:g} for quality," if weight else " alone"
            role = ", with a weight for quality," if self.weight_follows else role
            lines.append(
                f"Recipe: filter, then cover. Scores prune {pruned}, and {selection.metric}{role} "
                "selects from the rest."
            )
        if self.vector_column and self.has_vectors:
            lines.append("Vectors are your own, divided by their length.")
        if self.pruning_follows:
            both = " and lambda follow" if self.weight_follows else " follows"
            lines.append(
                f"The pruned share{both} from how well the score separates the examples from "
                "random documents; the log then says how much of the source can be of the wanted "
                "kind by this score: compare that with what you know."
            )
        if "metric" not in given and selection.metric != recipe.METRIC:
            lines.append(
                f"selection.metric is {selection.metric}, because {recipe.METRIC}, the default, is "
                "no function of sums over documents, which scope `corpus`, mask models and method "
                "`greedy` need."
            )
        return lines

    @property
    def compares_texts(self) -> bool:
        """True if a setting compares the texts of documents, so equal texts must be known."""
        drops = self.quality.duplicates == "drop" or self.evaluation.hold_out > 0
        return drops or self.quality.contamination is not None

    @property
    def counts_for_trainer(self) -> bool:
        """True if budgets count tokens with the tokenizer of `tokens.tokenizer`."""
        return self.tokens is not None and bool(self.selection.needs_tokens)

    @property
    def has_vectors(self) -> bool:
        """True if documents have vectors: the source's, or made because a setting needs them."""
        return bool(self.selection.metric)

    @property
    def vector_column(self) -> str:
        """The column that holds the user's own vectors; empty if an embedder makes the vectors."""
        if self.source.layout == "features":
            return self.embedding.column or "feature_arr"
        is_own = self.embedding.method in OWN_VECTORS
        return (self.embedding.column or "embedding") if is_own else ""

    @property
    def vector_files(self) -> str:
        """The path of files of vectors; empty if the vectors are computed or in the source."""
        return self.embedding.path if self.source.layout == "documents" else ""

    def _needs_vectors(self) -> bool:
        selection, arms = self.selection, self.evaluation.arms
        needed = bool(selection.more_terms or self.topics)
        needed |= "metric" in selection.model_fields_set or any(arm.change for arm in arms)
        return needed or selection.method not in WITHOUT_VECTORS or self.source.layout == "features"

    @property
    def default_arms(self) -> list[str]:
        """Name the arms of an evaluation that names none."""
        filtered = ["filtered_random"] if self.prune_fraction else []
        selects = self.has_vectors and not self.selection.mask_model
        return ["ours", "random", "top_quality", *([*filtered, "semdedup"] if selects else [])]

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy the settings with other groups, and fill in again what follows from these groups."""
        return type(self)(**{**dict(self), **(update or {})})

    @property
    def has_heuristic_alone(self) -> bool:
        """True if the built-in heuristic of form is the only score."""
        return all(isinstance(score, HeuristicScore) for score in self.scores)

    @property
    def scores(self) -> tuple[Score, ...]:
        """The scores that are set, or the default of the source's layout."""
        return self.quality.scores or DEFAULT_SCORES[self.source.layout]

    @property
    def pruning_follows(self) -> bool:
        """True if the AUC of a score decides the fraction to prune (`recipe.following`).

        This holds if no fraction is given, and the only score separates examples from random
        documents, prefers the examples and is compared over the whole corpus, as its AUC is. Then
        `prune_fraction` is the largest fraction that may be pruned.
        """
        score, *others = self.scores
        is_told = isinstance(score, ExamplesScore) and bool(score.path) and score.weight > 0
        is_told &= score.normalise_within == "none" and not others
        return is_told and self.quality.prune_fraction is None

    @property
    def pruning_gives_way(self) -> bool:
        """True if pruning keeps more than the AUC would leave where the budget needs more.

        A budget up to `SMALL_RATIO` always fits, so changing such a budget makes no scores again.
        """
        selection = self.selection
        is_small = selection.documents is None and selection.tokens is None
        return self.pruning_follows and not (is_small and selection.ratio <= SMALL_RATIO)

    @property
    def weight_follows(self) -> bool:
        """True if the AUC decides lambda too; then lambda in these settings is not in force.

        This holds for the recipe's metric alone, which was tested, and for its comparator.
        """
        selection = self.selection
        covers = selection.metric == recipe.METRIC and selection.method in ("mask", "lazy_greedy")
        is_given = "quality_weight" in selection.model_fields_set
        return covers and not is_given and self.pruning_follows

    def resolved(self, pruned: float, weight: float) -> Self:
        """Fix the fraction that is pruned and, if the AUC decides it too, lambda."""
        weight = weight if self.weight_follows else self.selection.quality_weight
        quality = self.quality.model_copy(update={"prune_fraction": pruned})
        selection = self.selection.model_copy(update={"quality_weight": weight})
        return self.model_copy(update={"quality": quality, "selection": selection})

    def __eq__(self, other: object) -> bool:
        """Compare all settings; a lambda that the AUC decides does not equal one that is set."""
        is_same = isinstance(other, Settings) and self.weight_follows == other.weight_follows
        return is_same and super().__eq__(other)

    @property
    def least_pruned(self) -> float:
        """Lower bound on the fraction that is pruned, before the scores are known."""
        return 0.0 if self.pruning_follows else self.prune_fraction

    @property
    def prune_fraction(self) -> float:
        """The fraction pruned: as set, or the default of the source's layout."""
        if self.quality.prune_fraction is not None:
            return self.quality.prune_fraction
        if self.source.layout == "features":
            return 0.0
        if self.pruning_follows:
            return recipe.MOST_PRUNED
        alone = self.has_heuristic_alone
        return recipe.HEURISTIC_PRUNE_FRACTION if alone else recipe.PRUNE_FRACTION
