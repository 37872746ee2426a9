"""Settings of quality scores: one class a kind. `quality.kinds` has the work of each kind."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from datamask.config.group import PLACE, Group, Model, Place, SourceGroup, groups_in

LARGEST = 1e30
"""Largest magnitude of quality: the learner computes in float32, which ends at 3.4e38."""

RESERVED_SCORE_NAMES = frozenset(
    {
        *("id", "row", "shard", "characters", "tokens", "dump", "language", "domain", "text_read"),
        *("quality", "dropped", "selected", "logit", "content", "source", "tokenizer"),
        *("top_quality", "filename", "repeat", "file_row_number"),
        *("near_duplicate_of", "near_duplicate_similarity"),
        *("reason", "whole_quality", "drawn", "sampled", "topic", "copy", "hash", "standing"),
        *("kind", "fate", "known_topic", "octave", "length", "fold"),
        *("contaminated_by", "contaminated_at", "contaminated_ngram", "contaminated_share"),
    }
)

HEURISTIC = "heuristic"
"""The kind of a score whose settings name none."""


class AnyScore(Group):
    """The settings of scores of every kind, and the facts about a kind that others ask for."""

    stage: ClassVar[str] = "scores"
    """The stage that computes or reads the values."""
    own_settings: ClassVar[tuple[str, ...]] = ()
    """Settings of the kind that stage `scores` reads."""
    reads_text: ClassVar[bool] = True
    """True if the score is computed from the documents' texts."""
    reads_windows: ClassVar[bool] = False
    """True if stage `scores` reads windows of a long text (`source.windows`)."""
    is_fitted: ClassVar[bool] = False
    """True if the score is fitted to the run's own source, so that other runs cannot compute it."""

    name: str = Field("heuristic", pattern=r"^[a-z][a-z0-9_]*$")
    """its column in the run's files (lower-case letters, digits and _)"""
    kind: str
    """where the score comes from"""
    normalisation: Literal["rank", "z-score", "min-max", "none"] = "z-score"
    """over the whole corpus"""
    normalise_within: str = "none"
    """normalise within groups, small ones less so: domain, language, dump, a name in source.groups,
    or `source`, the file's folder"""
    weight: float = Field(1.0, gt=-1e6, lt=1e6)
    """weight in the combined quality"""
    missing: Literal["error", "drop"] | Annotated[float, Field(ge=-LARGEST, le=LARGEST)] = "error"
    """documents whose score is absent, null, NaN or infinite: `error` refuses the run, `drop`
    leaves them out, a number is their raw score"""

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, data: Any) -> Any:
        """Refuse settings of other kinds by their name."""
        for key in sorted(data.keys() - cls.model_fields.keys()) if isinstance(data, dict) else ():
            every = groups_in(Score).items()
            if kinds := [tag for tag, kind in every if key in kind.model_fields]:
                kind = data.get("kind", HEURISTIC)
                raise ValueError(f"`{key}` belongs to kind {' or '.join(kinds)}, not to `{kind}`")
        return data

    @model_validator(mode="after")
    def _check_names(self) -> AnyScore:
        if self.normalise_within != "none" and self.normalisation == "none":
            raise ValueError("normalise_within needs a normalisation: rank, z-score or min-max")
        if self.name in RESERVED_SCORE_NAMES:
            raise ValueError(f"name `{self.name}` is reserved for a column of the run's files")
        return self

    @property
    def filled(self) -> float | None:
        """The number that replaces a missing score, or None."""
        return None if isinstance(self.missing, str) else self.missing

    @property
    def pin_key(self) -> str:
        """Key of what planning pins for the score."""
        return f"{self.stage}:{self.name}"

    @property
    def source_column(self) -> str:
        """The source's column of numbers that is the score, or empty."""
        return ""

    @property
    def source_group(self) -> SourceGroup | None:
        """The group of the source's documents that the score reads, or None."""
        return None

    @property
    def model_facts(self) -> dict[str, str]:
        """The identity of a pinned model whose output is the score; empty without a model."""
        return {}

    @property
    def places(self) -> dict[str, str]:
        """The files that the score reads, by the name of the setting."""
        marked = (n for n, field in type(self).model_fields.items() if PLACE in field.metadata)
        return {name: getattr(self, name) for name in marked}

    def without_defaults(self) -> dict[str, Any]:
        """Return the score as plain data, without settings that have the default of its kind."""
        return self.model_dump(mode="json", exclude_defaults=True)


class HeuristicScore(AnyScore):
    """A score by the form of the text."""

    reads_windows: ClassVar[bool] = True

    kind: Literal["heuristic"] = "heuristic"
    """by the form of the text"""


class ColumnScore(AnyScore):
    """A score that is a column of the source."""

    reads_text: ClassVar[bool] = False
    own_settings: ClassVar[tuple[str, ...]] = ("column",)

    kind: Literal["column"]
    """a column of the source"""
    column: str = "score"
    """the column of the score"""

    @property
    def source_column(self) -> str:
        """The column."""
        return self.column


class FileScore(AnyScore):
    """A score in files, joined by id."""

    stage: ClassVar[str] = "file_scores"
    reads_text: ClassVar[bool] = False

    kind: Literal["file"]
    """files of scores, joined by id"""
    path: Place = Field(min_length=1)
    """file, folder, glob or URL of scores (Parquet, CSV, JSONL)"""
    column: str = "score"
    """the column of the score"""
    id_column: str = "id"
    """the column of ids, compared as text"""


class ExamplesScore(AnyScore):
    """A score by a model of words that the run fits to texts of the wanted kind, or to labels."""

    stage: ClassVar[str] = "example_models"
    reads_windows: ClassVar[bool] = True
    is_fitted: ClassVar[bool] = True

    kind: Literal["examples"]
    """a linear model of words, fitted to texts of the wanted kind"""
    path: Place = ""
    """file, folder, glob or URL of texts (Parquet, JSONL, .txt)"""
    labels: Place = ""
    """instead of `path`: Parquet, CSV or JSONL of ids and numbers"""
    where: SourceGroup | None = None
    """instead of `path`: a group of the source's documents"""
    column: str = "score"
    """the column of the label; with `path` of the text (default `text`)"""
    id_column: str = "id"
    """with `labels`: the column of ids, compared as text"""
    group_column: str = ""
    """with `path`: the column that says of which text an example is a piece, where several are
    pieces of one"""
    least_correlation: float = Field(0.3, ge=-1, le=1)
    """minimum of Spearman's correlation of labels and cross-validated predictions (of two kinds of
    text 2 AUC - 1); below it, the run fails. With `path` 0.1"""

    @model_validator(mode="before")
    @classmethod
    def _of_texts(cls, data: Any) -> Any:
        """Fill in the defaults of scores from files of examples (`OF_TEXTS`)."""
        return OF_TEXTS | data if isinstance(data, dict) and data.get("path") else data

    @model_validator(mode="after")
    def _check(self) -> ExamplesScore:
        if bool(self.path) + bool(self.labels) + bool(self.where) != 1:
            raise ValueError("kind `examples` needs one of `path`, `labels` and `where`")
        if self.group_column and not self.path:
            raise ValueError("`group_column` is a column of the texts in `path`")
        return self

    @property
    def source_group(self) -> SourceGroup | None:
        """The group whose documents are the examples."""
        return self.where

    @property
    def matched_kind(self) -> str:
        """The kind of groups whose shares random documents have as the examples have them."""
        return "domain" if self.normalise_within in ("none", "source") else self.normalise_within

    def without_defaults(self) -> dict[str, Any]:
        """Return the score as plain data, without settings that have the default of its kind."""
        of_texts = {name: getattr(self, name) for name in OF_TEXTS} if self.path else {}
        return super().without_defaults() | of_texts


class ClassifierScore(AnyScore):
    """A score by a transformers model."""

    stage: ClassVar[str] = "classifier_scores"

    kind: Literal["classifier"]
    """a transformers model"""
    model: Model = Field(min_length=1)
    """sequence-classification model on the Hub, or local folder"""
    revision: str | None = None
    """branch, tag or commit; pinned when planned"""
    label: str = ""
    """the class whose probability is the score, by name or number; `expected_value` is the mean
    class number, and an empty label the model's only output"""

    @property
    def model_facts(self) -> dict[str, str]:
        """The output of the model."""
        return {"head": self.label}


class FastTextScore(AnyScore):
    """A score by a fastText model."""

    own_settings: ClassVar[tuple[str, ...]] = ("label",)

    kind: Literal["fasttext"]
    """a fastText model"""
    path: Place = Field(min_length=1)
    """a .bin file"""
    label: str = Field(min_length=1)
    """the label whose probability is the score, such as `__label__hq`"""

    @property
    def model_facts(self) -> dict[str, str]:
        """The label of the model."""
        return {"label": self.label}


OF_TEXTS = {"column": "text", "least_correlation": 0.1}
"""Defaults of kind `examples` with `path`."""


class OwnScore(AnyScore):
    """A score by a class of the user's own."""

    own_settings: ClassVar[tuple[str, ...]] = ("options",)

    kind: str = Field(pattern=r"^[\w.]+:\w+$")
    """package.module:Class, whose code runs"""
    path: Place = ""
    """file or folder that the class reads, argument `path` of the class"""
    options: dict[str, Any] = Field(default_factory=dict)
    """other keyword arguments of the class"""

    @property
    def model_facts(self) -> dict[str, str]:
        """The class and its arguments."""
        options = json.dumps(self.options, sort_keys=True)
        return {"label": f"{self.kind} {options}" if self.options else self.kind}


OWN = "package.module:Class"


def _kind_of(data: Any) -> str:
    """Return the kind of a score, given as settings or as plain data."""
    given = data.get("kind", HEURISTIC) if isinstance(data, dict) else None
    kind = str(given or getattr(data, "kind", HEURISTIC))
    return OWN if ":" in kind else kind


Score = Annotated[
    Annotated[HeuristicScore, Tag("heuristic")]
    | Annotated[ColumnScore, Tag("column")]
    | Annotated[FileScore, Tag("file")]
    | Annotated[ExamplesScore, Tag("examples")]
    | Annotated[ClassifierScore, Tag("classifier")]
    | Annotated[FastTextScore, Tag("fasttext")]
    | Annotated[OwnScore, Tag(OWN)],
    Discriminator(_kind_of),
]
"""A quality score, its normalisation and its weight."""
