"""Settings of the input: source, plan, scores, embeddings."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from datamask.config import recipe
from datamask.config.classes import FastTextClasses, GroupsBy, ModelClasses
from datamask.config.group import OF_SOURCE, Group, Model, Place, SourceGroup, known_or_own
from datamask.config.scores import RESERVED_SCORE_NAMES, Score
from datamask.config.screening import Contamination, NearDuplicates

WINDOWS, MOST_WINDOWS = 3, 1000
"""Default number of windows of a long text (beginning, middle and end), and the maximum."""


RESERVED_GROUP_NAMES = {
    *(*RESERVED_SCORE_NAMES, "none", "all", "topic", "length"),
    *("file", "name", "units", "kind", "fate", "octave", "known_topic", "fold"),
}
"""Names that groups of `source.groups` cannot have: of other kinds, and of columns beside them."""


def group_name(name: str) -> str:
    """Return a name for `source.groups` like *name*, which may be that of any column."""
    own = re.sub(r"\W", "_", name)
    is_own = re.fullmatch(r"[A-Za-z]\w*", own) and own.lower() not in RESERVED_GROUP_NAMES
    return own if is_own else f"group_{own}"


class Columns(Group):
    """Names of the source's columns. Only `text` and `id` must exist."""

    text: str = "text"
    """the document's text"""
    id: str = "id"
    """unique key of a document"""
    dump: str = "dump"
    """crawl or collection the document came from"""
    url: str = "url"
    """address; its host becomes the document's domain"""
    language: str = "language"
    """language code"""
    token_count: str = "token_count"
    """number of tokens, where known"""

    @property
    def of_text(self) -> tuple[str, ...]:
        """Columns that hold text even if it looks like numbers; in lower case."""
        names = (self.text, self.id, self.dump, self.url, self.language)
        return tuple(map(str.lower, names))

    def of_group(self, kind: str) -> str:
        """Return the column that holds the groups of a kind in `OF_SOURCE`."""
        return str(getattr(self, "url" if kind == "domain" else kind))


class Source(Group):
    """The documents: where they are, and how they are read."""

    path: Place = ""
    """folder, glob or fsspec URL of Parquet files, or of JSON lines, CSV, Arrow or Lance, which are
    converted once (hf://datasets/owner/name@revision/glob, s3://...)"""
    layout: Literal["documents", "features"] = "documents"
    """`documents`: rows of text; `features`: the published input, scored and embedded, without text
    (columns `chunk_id`, `quality_score` and `feature_arr`; `columns.id`, `quality.scores` and
    `embedding.column` name others)"""
    columns: Columns = Field(default_factory=Columns)
    """names of the columns"""
    groups: dict[str, GroupsBy] = Field(default_factory=dict)
    """groups of your own: a name, and a SQL expression of DuckDB over the source's columns, such as
    {site: "split_part(url, '/', 3)"}, or a classifier whose classes are the groups, such as
    {subject: {kind: fasttext, path: subjects.bin}}; the name then serves wherever `domain` does"""
    most_characters: int = Field(10_000_000, ge=1)
    """most characters (code points) of one document"""
    longer: Literal["refuse", "cut", "drop"] = "refuse"
    """a longer text: `refuse` names the row and ends the shard, `cut` takes its beginning
    everywhere, also in the subset, `drop` leaves the document out"""
    windows: int = Field(WINDOWS, ge=1, le=MOST_WINDOWS)
    """most windows of `max_tokens` that scores and embedder read of a longer text: 1 is the
    beginning, 3 are beginning, middle and end; each costs as much as a short text"""
    union: bool = False
    """Parquet files may have different columns; where a file lacks one, its values are null"""
    most_bad_lines: int = Field(0, ge=0)
    """most lines of a file that are left out because they are not JSON"""
    tokenizer: Model = ""
    """counts tokens where no column has them: a tokenizer.json or a Hub model"""

    @model_validator(mode="before")
    @classmethod
    def _of_features(cls, data: Any) -> Any:
        """Fill in the name of the ids of layout `features`."""
        if not isinstance(data, dict) or data.get("layout") != "features":
            return data
        given = data.get("columns", {})
        if isinstance(given, Columns):
            given = given.model_dump(exclude_unset=True)
        return data | {"columns": {"id": "chunk_id"} | given if isinstance(given, dict) else given}

    @model_validator(mode="after")
    def _check_groups(self) -> Source:
        for name in self.groups:
            if (other := group_name(name)) != name:
                raise ValueError(f"groups: `{name}` cannot be a name; use another, as `{other}`")
        return self

    def __hash__(self) -> int:
        return hash(self.model_dump_json())  # A mapping has no hash of its own.

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the kinds of groups that the source knows."""
        return (*OF_SOURCE, *self.groups)

    @property
    def expressions(self) -> dict[str, str]:
        """The SQL expressions of `groups`, by name."""
        return {name: of for name, of in self.groups.items() if isinstance(of, str)}

    @property
    def classifiers(self) -> dict[str, ModelClasses | FastTextClasses]:
        """The classifiers of `groups`, by name."""
        return {name: of for name, of in self.groups.items() if not isinstance(of, str)}

    @property
    def id_column(self) -> str:
        """Name of the column that identifies a document."""
        return self.columns.id


class Plan(Group):
    """Sizes that divide the source into shards. Fixed for the life of a run folder."""

    rows_per_shard: int = Field(1_000_000, ge=1)
    """most documents in a shard"""
    bytes_per_shard: int = Field(8 * 2**30, ge=1)
    """most uncompressed bytes in a shard"""


class Quality(Group):
    """Combine scores into quality, and drop documents before embedding."""

    scores: tuple[Score, ...] = ()
    """scores to combine; none: the heuristic, or quality_score of layout `features`"""
    prune_fraction: float | None = Field(
        None,
        ge=0,
        lt=1,
        description=f"worst fraction dropped before embedding; none: {recipe.PRUNE_FRACTION:g}, or "
        f"at most {recipe.MOST_PRUNED:g} as follows from a score's examples (docs/method.md), "
        f"{recipe.HEURISTIC_PRUNE_FRACTION:g} by the heuristic alone, 0 for layout `features`",
    )
    duplicates: Literal["drop", "keep"] = "drop"
    """`drop`: of documents with the same text, keep the source's first"""
    near_duplicates: NearDuplicates | None = None
    """drop documents that resemble a better, kept one; none: keep all"""
    contamination: Contamination | None = None
    """detection of benchmark texts; none: off"""

    @model_validator(mode="after")
    def _check(self) -> Quality:
        names = [score.name for score in self.scores]
        if len(set(names)) != len(names):
            raise ValueError(f"score names must differ, got {names}")
        made = {f"raw_{name}" for name in names}
        made |= {f"g_{score.normalise_within}" for score in self.scores}
        made |= {f"g_{group.column}" for group in self.favoured}
        if clash := made.intersection(names):
            raise ValueError(f"name `{min(clash)}` is reserved for a column of the run's files")
        return self

    @property
    def favoured(self) -> tuple[SourceGroup, ...]:
        """The groups that `near_duplicates` exempts, and then those that it prefers."""
        near = self.near_duplicates
        return (*near.exempt, *near.prefer) if near else ()


OWN_VECTORS = ("column", "files")
EMBEDDERS = ("sentence-transformer", "lexical", *OWN_VECTORS)


class Embedding(Group):
    """The model that turns text into vectors, or vectors that exist already."""

    method: Annotated[str, known_or_own("embedder", EMBEDDERS)] = "sentence-transformer"
    """`sentence-transformer`, `lexical` (for demos and tests), or package.module:Class; vectors of
    your own: `column` of the source, `files` joined by id"""
    column: str = ""
    """the column of your own vectors, in the source or the files (default `embedding`; layout
    `features`: `feature_arr`)"""
    path: Place = ""
    """method `files`: file, folder, glob or URL of Parquet files, or of .npy files, each with its
    ids in a Parquet file of the same name"""
    id_column: str = "id"
    """method `files`: the column of ids in the files, compared as text"""
    model: Model = "intfloat/e5-base-v2"
    """model name on the Hub or local folder"""
    revision: str | None = None
    """branch, tag or commit; pinned when planned"""
    prefix: str = "query: "
    """put before every text (sentence-transformer only)"""
    dimension: int = Field(768, ge=2, le=16384)
    """width of an embedding"""
    max_tokens: int = Field(512, ge=8)
    """model tokens of a window of the text (source.windows)"""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """precision of the arithmetic of models, those of kind `classifier` too"""
    truncate: bool = False
    """keep the first `dimension` numbers of a longer vector (Matryoshka models)"""
    storage: Literal["float16", "int8"] = "float16"
    """numbers of the vectors on disk; int8: half the bytes, and a scale per vector"""
    trust_remote_code: bool = False
    """run code that comes with the model"""

    @property
    def bytes_per_vector(self) -> int:
        """Bytes of a vector on disk."""
        return self.dimension + 4 if self.storage == "int8" else 2 * self.dimension

    @model_validator(mode="after")
    def _check(self) -> Embedding:
        if (self.method == "files") != bool(self.path):
            raise ValueError("`path` and method `files` belong together; give both, or neither")
        return self

    @property
    def has_model(self) -> bool:
        """True if a model with files is loaded, pinned and run on the device."""
        return self.method == "sentence-transformer"
