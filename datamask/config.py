"""Every setting, grouped, with its range and what it means.

These models are at once the flow's parameters, the YAML file and the command line's `--set`.
Groups that say *what* to make enter the fingerprint of the stages that depend on them; `Compute`
says *how* to make it and never does. Every field has a default, because Prefect merges parameters
at the top level only. Unknown keys and values out of range are refused with the key's path.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from datamask.errors import DatamaskError, SettingsError, together

MOST_ROUNDS = 50
"""Exchanges between shards that `selection.rounds` may allow."""


class Group(BaseModel):
    """Base of the settings groups: immutable, and closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def refuse_credentials(path: str) -> None:
    """Settings are recorded and published, so a URL must not hold a password.

    Raises:
        ValueError: it does; the message does not repeat it.
    """
    _, separator, rest = path.partition("://")
    if separator and "@" in rest.partition("/")[0]:
        raise ValueError(
            "`path` has a user or password in its URL, which would be recorded; give them in the "
            "environment (HF_TOKEN, AWS_ACCESS_KEY_ID, ...)"
        )


class Columns(Group):
    """Names of the source's columns. Only `text` and `id` must exist."""

    text: str = Field("text", description="the document's text")
    id: str = Field("id", description="unique key of a document")
    dump: str = Field("dump", description="crawl or collection the document came from")
    url: str = Field("url", description="address; its host becomes the document's domain")
    language: str = Field("language", description="language code")
    token_count: str = Field("token_count", description="number of tokens, where known")
    chunk_id: str = Field("chunk_id", description="layout `features`: unique key of a document")
    quality_score: str = Field("quality_score", description="layout `features`: its quality")
    feature_arr: str = Field("feature_arr", description="layout `features`: its embedding")


class Source(Group):
    """Where the documents are."""

    path: str = Field(
        "",
        description="folder, glob or fsspec URL of Parquet files "
        "(hf://datasets/owner/name@revision/glob, s3://...)",
    )
    layout: Literal["documents", "features"] = Field(
        "documents",
        description="`documents`: rows of text; `features`: the published DATAMASK input "
        "(chunk_id, quality_score, feature_arr), which skips scoring and embedding",
    )
    columns: Columns = Field(default_factory=Columns, description="names of the columns")
    tokenizer: str = Field(
        "",
        description="counts tokens where the source has no column for them: a tokenizer.json, or "
        "a model on the Hub (owner/name)",
    )

    @model_validator(mode="after")
    def _check(self) -> Source:
        refuse_credentials(self.path)
        return self

    @property
    def id_column(self) -> str:
        """Name of the column that identifies a document in this layout."""
        return self.columns.id if self.layout == "documents" else self.columns.chunk_id


class Plan(Group):
    """How the source is cut into shards. Fixed for the life of a run folder."""

    rows_per_shard: int = Field(1_000_000, ge=1, description="most documents in a shard")
    bytes_per_shard: int = Field(
        8 * 2**30, ge=1, description="most uncompressed bytes in a shard (all columns read)"
    )
    digest: Literal["footer", "content"] = Field(
        "footer",
        description="what identifies an input file: its size and Parquet footer (cheap), or "
        "every byte (reads the whole source once)",
    )


class Score(Group):
    """One quality score and how it is brought to a common scale."""

    name: str = Field(
        "heuristic",
        pattern=r"^[a-z][a-z0-9_]*$",
        description="its column in the run's files (lower-case letters, digits and _)",
    )
    kind: Literal["heuristic", "column", "file"] = Field(
        "heuristic",
        description="computed from the text; a column of the source; or separate files",
    )
    column: str = Field("score", description="name of the column that holds the score")
    path: str = Field(
        "", description="kind `file`: file, folder, glob or URL of Parquet, CSV or JSONL"
    )
    id_column: str = Field("id", description="kind `file`: the column matched with the ids")
    normalisation: Literal["rank", "z-score", "min-max", "none"] = Field(
        "z-score", description="over the whole corpus"
    )
    weight: float = Field(1.0, gt=-1e6, lt=1e6, description="weight in the combined quality")
    missing: Literal["error", "drop", "fill"] = Field(
        "error", description="a document whose score is absent, null, NaN or infinite"
    )
    fill: float = Field(0.0, allow_inf_nan=False, description="value for `missing: fill`, raw")

    @model_validator(mode="after")
    def _check(self) -> Score:
        refuse_credentials(self.path)
        if self.kind == "file" and not self.path:
            raise ValueError("kind `file` needs `path`")
        if self.name in RESERVED_SCORE_NAMES:
            raise ValueError(f"name `{self.name}` is taken by a column of the run's own files")
        return self


RESERVED_SCORE_NAMES = frozenset(
    {
        *("id", "row", "shard", "characters", "tokens", "dump", "language", "domain"),
        *("quality", "dropped", "selected", "logit", "content", "source", "tokenizer"),
    }
)


class Quality(Group):
    """Which scores make a document's quality, and how much of the worst is pruned."""

    scores: tuple[Score, ...] = Field(
        (),
        description="scores to combine; none means the built-in heuristic for text, and "
        "quality_score as it is for layout `features`",
    )
    prune: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="worst fraction dropped before embedding; none means 0.4 for text and 0 for "
        "layout `features`",
    )
    duplicates: Literal["drop", "keep"] = Field(
        "drop",
        description="`drop` keeps one of all documents with the same text, wherever they are: the "
        "first in the order of the source",
    )

    @model_validator(mode="after")
    def _check(self) -> Quality:
        names = [score.name for score in self.scores]
        if len(set(names)) != len(names):
            raise ValueError(f"score names must differ, got {names}")
        return self


class Embedding(Group):
    """Which model turns text into vectors; layout `features` brings its own."""

    method: Literal["sentence-transformer", "lexical"] = Field(
        "sentence-transformer",
        description="`lexical` needs no model: hashed n-grams and a fixed projection, for demos, "
        "tests and near-duplicates only",
    )
    model: str = Field("intfloat/e5-base-v2", description="model name on the Hub or local folder")
    revision: str | None = Field(None, description="branch, tag or commit; pinned when planned")
    prefix: str = Field("query: ", description="put before every text (sentence-transformer only)")
    dimension: int = Field(768, ge=2, le=16384, description="width of an embedding")
    max_tokens: int = Field(512, ge=8, description="longer texts are cut (model tokens)")
    dtype: Literal["float32", "float16", "bfloat16"] = Field(
        "float32", description="precision of the model's arithmetic"
    )
    trust_remote_code: bool = Field(False, description="run code that comes with the model")


class Term(Group):
    """One more term of the objective, beside quality and the diversity metric."""

    name: str = Field(..., description="disf, facility_location, pairwise, or package.module:Class")
    weight: float = Field(
        ..., allow_inf_nan=False, description="positive pursues the term's good direction"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="keyword arguments of the class"
    )


NO_GROUP = "(none)"
"""The group of documents that have no dump, language or domain, or a blank one."""


class Limit(Group):
    """Least and most of the selection that a group of documents may have."""

    column: Literal["dump", "language", "domain"] = Field(
        ..., description="what the group has in common; the same in all limits of a run"
    )
    value: str | None = Field(
        None,
        description="the group (its dump, language or domain; `(none)`: documents without one); "
        "not set: each group that no other limit names, `(none)` included",
    )
    floor: float = Field(0, ge=0, le=1, description="least share of the selection")
    cap: float = Field(1, ge=0, le=1, description="largest share of the selection")

    @model_validator(mode="after")
    def _check(self) -> Limit:
        if self.floor > self.cap:
            raise ValueError(f"floor {self.floor} is above cap {self.cap}")
        if self.floor and self.value is None:
            raise ValueError("a floor needs `value`: the group it is for")
        return self


class Selection(Group):
    """How many documents are kept, and by which objective and method."""

    scope: Literal["shard", "corpus"] = Field(
        "shard",
        description="`shard`: every shard keeps its share; `corpus`: one selection over all of "
        "them, so that a shard full of good text keeps more, and one that repeats others less",
    )
    rounds: int = Field(
        20,
        ge=1,
        le=MOST_ROUNDS,
        description="scope `corpus`: most exchanges between shards; they end when the objective "
        "has settled (`tolerance`)",
    )

    method: Literal[
        "mask",
        "random",
        "top_quality",
        "greedy",
        "lazy_greedy",
        "stochastic_greedy",
        "semdedup",
        "direct_logits",
    ] = Field("mask", description="`mask` learns; the others are comparators for ablations")
    ratio: float = Field(0.1, gt=0, le=1, description="share of the source's documents to keep")
    documents: int | None = Field(
        None, ge=1, description="number of documents to keep; overrides `ratio`"
    )
    tokens: int | None = Field(
        None,
        ge=1,
        description="number of tokens to keep, met within one document; overrides `ratio` "
        "(needs source.columns.token_count or source.tokenizer)",
    )
    limits: tuple[Limit, ...] = Field(
        (), description="floors and caps of dumps, languages or domains"
    )
    metric: str = Field(
        "disf",
        description="diversity term: disf, facility_location, pairwise, or package.module:Class",
    )
    quality_weight: float = Field(
        0.5, ge=0, le=1, description="lambda: 1 is quality only, 0 is diversity only"
    )
    more_terms: tuple[Term, ...] = Field((), description="further terms of the objective")
    scale_terms: bool = Field(
        True, description="divide each term by its deviation over random subsets of the shard"
    )
    estimator: Literal["auto", "expected", "policy_gradient"] = Field(
        "auto", description="`auto`: expected where every term supports it"
    )
    init: Literal["same", "quality"] = Field("same", description="initial logits")
    steps: int = Field(1000, ge=0, le=10_000_000, description="most steps of the learner")
    partial: float = Field(0.1, gt=0, le=1, description="share of the shard in one step's batch")
    rollouts: int = Field(128, ge=2, le=65536, description="policy_gradient: masks per step")
    max_lr: float = Field(10.0, gt=0, description="policy_gradient: learning rate at the start")
    min_lr: float = Field(1.0, gt=0, description="policy_gradient: learning rate at the end")
    tolerance: float = Field(
        1e-2,
        ge=0,
        lt=1,
        description="stop when the gain over a window (scope `corpus`: two rounds) is at most this "
        "share of the gain so far; 0 never stops early",
    )
    polish: int = Field(
        1000, ge=0, description="most swaps near the threshold after learning (exchange pass)"
    )

    @model_validator(mode="after")
    def _check(self) -> Selection:
        if self.min_lr > self.max_lr:
            raise ValueError(f"min_lr {self.min_lr} is above max_lr {self.max_lr}")
        if self.documents is not None and self.tokens is not None:
            raise ValueError("`documents` and `tokens` are both set; set one")
        if len({limit.column for limit in self.limits}) > 1:
            raise ValueError("`limits` must all be of one column")
        values = [limit.value for limit in self.limits]
        if len(set(values)) != len(values):
            raise ValueError("`limits` has a group twice")
        if sum(limit.floor for limit in self.limits) > 1:
            raise ValueError("the floors of `limits` add up to more than 1")
        if self.scope == "corpus" and self.method not in ("mask", "random", "top_quality"):
            raise ValueError(f"method {self.method} knows no scope `corpus`; use scope `shard`")
        if self.scope == "corpus" and self.method == "mask" and self.init != "same":
            raise ValueError("scope `corpus` begins with init `same`")
        if self.scope == "corpus" and self.estimator == "policy_gradient":
            raise ValueError("scope `corpus` learns by estimator `expected`")
        return self

    @property
    def has_cut(self) -> bool:
        """Whether the documents of all shards are compared before any is selected."""
        return self.scope == "corpus" or self.tokens is not None or bool(self.limits)

    @property
    def num_rounds(self) -> int:
        """Most exchanges between shards; 0 where they learn alone, or nothing is learnt."""
        return self.rounds if self.scope == "corpus" and self.method == "mask" else 0


class Subset(Group):
    """How the selected documents are written."""

    file_bytes: int = Field(
        512 * 2**20,
        ge=1024,
        description="size of a published file, near this (as estimated from the source)",
    )
    row_group_bytes: int = Field(
        100 * 2**20, ge=1024, description="uncompressed size of a row group, near this"
    )
    max_dumps: int = Field(
        200,
        ge=0,
        le=1000,
        description="each dump gets files and a configuration of its own, unless there are more "
        "than this; 0 never",
    )


class Report(Group):
    """How closely the report looks. Counts and means are always of every document."""

    sample_documents: int = Field(
        5000, ge=10, le=100_000, description="documents compared with their whole shard"
    )
    map_documents: int = Field(3000, ge=10, le=20_000, description="of these, points on the map")
    neighbour_documents: int = Field(
        2000, ge=10, le=100_000, description="documents a selection for nearest neighbours"
    )
    near_duplicate: float = Field(
        0.95, gt=0, le=1, description="cosine from which two documents count as near-duplicates"
    )
    examples: int = Field(20, ge=0, le=200, description="documents of each kind shown as examples")
    text_characters: int = Field(240, ge=20, le=2000, description="characters shown of a document")
    text_bytes: int = Field(
        2 * 2**30, ge=0, description="most bytes of text read for examples and map"
    )


class Sweep(Group):
    """What is tried on a sample of a run's shards, to choose settings of `selection`.

    Every value of lambda is tried with every seed for the run's own selection, and again for each
    other setting changed alone.
    """

    quality_weights: tuple[float, ...] = Field(
        (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0), min_length=1, description="values of lambda"
    )
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1, description="repetitions, for spread")
    metrics: tuple[str, ...] = Field((), description="other diversity terms")
    ratios: tuple[float, ...] = Field((), description="other shares to keep")
    inits: tuple[str, ...] = Field((), description="other initial logits: same, quality")
    rollouts: tuple[int, ...] = Field((), description="policy_gradient: other numbers of masks")
    max_lrs: tuple[float, ...] = Field((), description="policy_gradient: other learning rates")
    shards: int = Field(2, ge=1, le=1000, description="shards drawn for it")
    documents: int = Field(
        5000, ge=10, description="most documents of a shard; drawn if there are more"
    )
    steps: int = Field(
        100, ge=1, description="most steps of a trial: enough to compare, cheaper than the run's"
    )

    @model_validator(mode="after")
    def _check(self) -> Sweep:
        if not all(0 <= weight <= 1 for weight in self.quality_weights):
            raise ValueError(f"quality_weights must be in [0, 1], got {self.quality_weights}")
        return self


class Publication(Group):
    """Where and as what the subset is published. Tokens are never settings: use HF_TOKEN."""

    repository: str = Field(
        "", pattern=r"^$|^[\w.-]+/[\w.-]+$", description="dataset repository, `owner/name`"
    )
    license: str = Field("", description="license of the source, as on the Hub (odc-by); required")
    private: bool = Field(True, description="create the repository private")
    dry_run: bool = Field(False, description="write the same folder, show what would change")
    overwrite: bool = Field(
        False, description="publish even where the repository holds somebody else's files"
    )
    sample: float = Field(
        0.01, ge=0, le=1, description="share of the subset in configuration `sample`, seeded"
    )
    scores: bool = Field(
        False,
        description="configuration `scores`: id, scores and logit of every document of the source, "
        "for redoing the cut",
    )
    tag: str = Field(
        "v1",
        pattern=r"^\w[\w.-]*$",
        description="tag set after verification (letters, digits, `_`, `.`, `-`)",
    )
    pretty_name: str = Field("", description="title of the card; the repository's name if empty")
    languages: tuple[str, ...] = Field(("en",), description="language codes for the card")
    source_datasets: tuple[str, ...] = Field((), description="Hub datasets this derives from")
    citation: str = Field("", description="BibTeX of the source, quoted in the card")

    @model_validator(mode="after")
    def _check(self) -> Publication:
        if not self.license:
            raise ValueError("`license` is required and never guessed; FineWeb's is odc-by")
        names = self.repository.split("/") if self.repository else []
        if any(n[0] in ".-" or n[-1] in ".-" or "--" in n or ".." in n for n in names):
            raise ValueError(
                f"`repository` {self.repository}: the Hub has no names with -- or .., or with . or "
                "- at an end"
            )
        if not self.repository and not self.dry_run:
            raise ValueError("`repository` is required unless `dry_run`")
        return self


class Compute(Group):
    """How a run is computed; changing these never redoes finished work."""

    device: str = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda, cuda:1"
    )
    workers: int = Field(
        1, ge=1, le=1024, description="shards worked on at once in this process (engine `threads`)"
    )
    gpus: int | None = Field(
        None, ge=1, description="GPUs used at once, one shard on each; none: all this process sees"
    )
    engine: Literal["threads", "ray"] = Field(
        "threads",
        description="what runs the tasks of a stage: `threads` of the flow run's process, or "
        "`ray`, the cluster at `ray_address` (needs datamask-pipeline[ray]; Prefect flows only)",
    )
    ray_address: str = Field(
        "",
        description="engine `ray`: `auto` (the cluster this machine is a node of), host:port, "
        "ray://host:port; empty starts Ray on this machine",
    )
    task_cpus: float = Field(
        1, gt=0, le=1024, description="engine `ray`: CPUs asked of the scheduler for a task"
    )
    task_gpus: int | None = Field(
        None,
        ge=0,
        le=16,
        description="engine `ray`: GPUs for a task of a stage that computes on a device; none: 1 "
        "with device `cuda`, or `auto` where a node has one, else 0",
    )
    task_memory_bytes: int | None = Field(
        None,
        ge=2**20,
        description="engine `ray`: memory asked of the scheduler for a task; none: not asked for",
    )
    shards_per_task: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="neighbouring shards that are one task; none: as many as make a task of "
        "minutes, by their documents, and leave tasks for every worker",
    )
    checkpoint_seconds: float = Field(
        60,
        ge=0,
        description="seconds between checkpoints inside a shard, for going on after a kill",
    )
    mirror_bytes: int = Field(
        100 * 2**30,
        ge=0,
        description="a run at a URL: most bytes kept on this machine of files that no work needs "
        "now; the rest is fetched again when it is needed",
    )
    embedding_batch: int = Field(
        32,
        ge=1,
        description="texts of embedding.max_tokens in one forward pass; of shorter ones there are "
        "more, up to the same number of tokens",
    )
    embedding_chunk: int = Field(
        4096, ge=1, description="texts tokenised and sorted by length together"
    )
    compile_model: bool = Field(
        False,
        description="compile the embedding model (torch.compile): a minute or more at the start of "
        "every process, for less time a text",
    )
    matmul: Literal["float32", "tf32", "bfloat16"] = Field(
        "float32",
        description="precision of the products that steer `expected`: tf32 on CUDA only, bfloat16 "
        "also on CPUs that have it; reported values are always exact",
    )
    working_set_bytes: int = Field(
        2**30, ge=2**20, description="memory the learner may use beside the embeddings"
    )
    duckdb_memory: str = Field(
        "4GB", pattern=r"^\d+(\.\d+)?(MB|GB|TB)$", description="DuckDB's memory limit, as 4GB"
    )
    duckdb_threads: int = Field(2, ge=1, description="DuckDB's threads")

    @property
    def device_kind(self) -> str:
        """The device without its number: auto, cpu or cuda."""
        return self.device.partition(":")[0]


class Settings(Group):
    """All of a run's settings."""

    seed: int = Field(0, ge=0, lt=2**63, description="every random choice follows from it")
    source: Source = Field(default_factory=Source, description="where the documents are")
    plan: Plan = Field(default_factory=Plan, description="how they are cut into shards")
    quality: Quality = Field(default_factory=Quality, description="what a good document is")
    embedding: Embedding = Field(default_factory=Embedding, description="text to vectors")
    selection: Selection = Field(default_factory=Selection, description="what is kept")
    subset: Subset = Field(default_factory=Subset, description="how it is written")
    report: Report = Field(default_factory=Report, description="how closely it is looked at")
    publication: Publication | None = Field(None, description="where it goes; none: nowhere")

    @property
    def scores(self) -> tuple[Score, ...]:
        """The scores in force: those set, or the default of the source's layout."""
        if self.quality.scores:
            return self.quality.scores
        if self.source.layout == "features":
            column = self.source.columns.quality_score
            return (
                Score(name="quality_score", kind="column", column=column, normalisation="none"),
            )
        return (Score(),)

    @property
    def prune(self) -> float:
        """The fraction pruned: as set, or the default of the source's layout."""
        if self.quality.prune is not None:
            return self.quality.prune
        return 0.4 if self.source.layout == "documents" else 0.0


def parse_settings(data: dict[str, Any], model: type[Group] = Settings) -> Any:
    """Validate plain data against a settings model.

    Raises:
        SettingsError: all problems, each beginning with the key's path.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [SettingsError(_describe(problem, model)) for problem in error.errors()]
        raise together(problems) from None


def _description(model: type[BaseModel], place: tuple[int | str, ...]) -> str:
    """What a setting means, in the words of its field."""
    text = ""
    for part in place:
        field = model.model_fields.get(str(part))
        if field is not None:
            text = field.description or ""
            kinds = (field.annotation, *typing.get_args(field.annotation))
            groups = (k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel))
            model = next(groups, model)
    return text


def _describe(problem: Any, model: type[BaseModel]) -> str:
    path = ".".join(str(part) for part in problem["loc"]) or "settings"
    if problem["type"] == "extra_forbidden":
        return f"{path}: unknown key; `datamask settings` lists them all"
    message = problem["msg"].removeprefix("Value error, ")
    shown = problem["input"]
    if problem["type"] == "string_pattern_mismatch":
        return f"{path}: {shown!r} does not fit; needed: {_description(model, problem['loc'])}"
    if isinstance(shown, dict | list | tuple | BaseModel):
        return f"{path}: {message}"
    return f"{path}: {message}, got {shown!r}"


def load_settings(config: Path | None, overrides: tuple[str, ...] = ()) -> tuple[Settings, Compute]:
    """Read a YAML file and apply `group.key=value` overrides (values are YAML).

    The file's top level holds the groups of `Settings` and, beside them, `compute`.

    Raises:
        SettingsError: unreadable file, unknown key, value out of range.
    """
    data: dict[str, Any] = {}
    if config is not None:
        try:
            loaded = yaml.safe_load(config.read_text(encoding="utf-8"))
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            raise SettingsError(f"{config}{where}: not YAML ({error.problem}); mend it") from None
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            reason = " ".join(str(error).split())
            raise SettingsError(f"{config}: not a YAML file ({reason}); mend it") from None
        if not isinstance(loaded, dict | None):
            raise SettingsError(
                f"{config}: needed groups of settings at the top level, such as `source: ...`"
            )
        # A group that is named and left empty is all defaults.
        data = {key: value for key, value in (loaded or {}).items() if value is not None}
    problems: list[DatamaskError] = []

    def gather(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except SettingsError as error:
            problems.extend(error.problems)

    for override in overrides:
        gather(lambda override=override: _apply(data, override))  # type: ignore[misc]
    compute = data.pop("compute", None) or {}
    settings = gather(lambda: parse_settings(data))
    machine = gather(lambda: parse_settings({"compute": compute}, _ComputeFile).compute)
    if problems:
        raise together(problems)
    return settings, machine


def load_sweep(overrides: tuple[str, ...]) -> tuple[Sweep, Compute]:
    """Settings of a sweep from `sweep.key=value` and `compute.key=value`.

    Raises:
        SettingsError: another key, or a value out of range.
    """
    data: dict[str, Any] = {}
    for override in overrides:
        if not override.startswith(("sweep.", "compute.")):
            raise SettingsError(f"--set {override}: only sweep.* and compute.* here")
        _apply(data, override)
    found = parse_settings(data, _SweepFile)
    return found.sweep, found.compute


class _ComputeFile(Group):
    compute: Compute = Field(default_factory=Compute)


class _SweepFile(_ComputeFile):
    sweep: Sweep = Field(default_factory=Sweep)


def _apply(data: dict[str, Any], override: str) -> None:
    key, separator, value = override.partition("=")
    if not separator or not key:
        raise SettingsError(f"--set {override}: needed group.key=value")
    *groups, last = key.split(".")
    place: Any = data
    for group in groups:
        if place.get(group) is None:
            place[group] = {}
        place = place[group]
        if not isinstance(place, dict):
            raise SettingsError(
                f"--set {override}: {group} is not a group of settings; `datamask settings` lists "
                "them all"
            )
    try:
        place[last] = yaml.safe_load(value)
    except yaml.YAMLError:
        raise SettingsError(f"--set {override}: the value is not YAML; quote it") from None


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, models as their plain data."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no canonical JSON")
