"""Settings of the selection: budget, objective, limits, learner."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from datamask.config import recipe
from datamask.config.group import Group, Place, known_or_own

MOST_ROUNDS = 50
"""Maximum of `selection.rounds`."""

METRICS = ("disf", "facility_location", "pairwise")
"""Built-in diversity metrics."""

TERMS = (*METRICS, "group_balance", "length", "target")
"""Built-in further terms, for `selection.more_terms`."""

ObjectiveName = Annotated[str, known_or_own("objective", METRICS)]
"""The name of a built-in diversity metric, or a custom objective."""


class Term(Group):
    """A further term of the objective, besides quality and the diversity metric."""

    name: Annotated[str, known_or_own("objective", TERMS)] = Field(
        ..., description=f"{', '.join(TERMS)}, or package.module:Class, whose code runs"
    )
    weight: float
    """positive: improve the term"""
    path: Place = ""
    """file that the term reads, argument `path` of its class (`target`: .npy)"""
    options: dict[str, Any] = Field(default_factory=dict)
    """other keyword arguments of the class"""


GREEDY = {"greedy": ("pairwise", "disf"), "lazy_greedy": ("facility_location",)}
"""The greedy methods, with the metrics that they can maximise."""

WITHOUT_VECTORS = ("random", "top_quality")
"""Methods that read no vectors."""

WITHOUT_OBJECTIVE = ("random", "semdedup", "d4", "cluster_balanced")
"""Methods that optimise nothing."""

NO_GROUP = "(none)"
"""Name of the group of documents whose group is missing or blank, or that have no topic because
they were not embedded."""


AND = " * "
"""Stands between columns that together define groups, and between the names in such a group."""

QUALITY_BANDS = 5
"""Number of bands of quality, each with equally many candidates."""

LENGTH_BINS = 10
"""Number of length bins, each with equally many candidates (docs/log.md#numbers)."""


class Topics(Group):
    """Topics of the documents: clusters of their vectors, named by their typical words."""

    number: int = Field(24, ge=2, le=500)
    """number of topics"""


class NamedGroup(Group):
    """Documents that are in a group of a column, or in groups of several columns at once."""

    column: str
    value: str | None

    @field_validator("column", "value")
    @classmethod
    def _spaced(cls, text: str | None, about: ValidationInfo) -> str | None:
        """Put one space beside each `*` between columns, and between the groups of these."""
        if text is None or (
            about.field_name == "value" and "*" not in about.data.get("column", "")
        ):
            return text
        return AND.join(map(str.strip, text.split("*")))

    @property
    def columns(self) -> list[str]:
        """The columns that together define the groups."""
        return self.column.split(AND)

    @property
    def groups(self) -> list[str]:
        """The group in each of the columns; none without a value."""
        return [] if self.value is None else self.value.split(AND, len(self.columns) - 1)

    @model_validator(mode="after")
    def _check_value(self) -> Self:
        if self.value is not None and len(self.groups) < len(self.columns):
            raise ValueError(
                f"value `{self.value}` must name a group for each column of `{self.column}`"
            )
        return self


class Limit(NamedGroup):
    """Minimum and maximum fraction of the selection that a group of documents may have."""

    column: str
    """what defines the groups: dump, language, domain, topic, quality (fifths of the candidates,
    from 1, the lowest, to 5), a name in source.groups, or several of these, as `topic * quality`"""
    value: str | None = None
    """the group (`(none)`: documents without one; of several columns `music * 5`); not set: each
    group without another limit"""
    floor: float = Field(0, ge=0, le=1)
    """minimum share of the selection"""
    cap: float = Field(1, ge=0, le=1)
    """maximum share of the selection"""

    @model_validator(mode="after")
    def _check(self) -> Limit:
        if self.floor > self.cap:
            raise ValueError(f"floor {self.floor} is above cap {self.cap}")
        if self.floor and self.value is None:
            raise ValueError("a floor needs `value`: the group it is for")
        return self


class RepeatCap(NamedGroup):
    """Maximum number of times that training sees a document of a group."""

    column: str
    """what defines the group: dump, language, domain, topic, a name in source.groups, or several of
    these, as `topic * language`"""
    value: str
    """the group (`(none)`: documents without one; of several columns `music * en`)"""
    most: int = Field(ge=1, le=100)
    """how often training sees a document of the group at most; the least cap of a document holds"""


FROM_RECIPE = ("metric", "quality_weight")
"""Settings of `Selection` that `Settings` fills in where they are not given."""

TRAINING = ("max_repeat", "repeat_caps", "training_documents", "training_tokens")
"""Settings of `Selection` that do not change which documents are kept."""


class Selection(Group):
    """The number of documents to keep, the objective and method, and the repeats."""

    scope: Literal["shard", "corpus"] = "shard"
    """`shard`: every shard keeps its share; `corpus`: one selection over all shards"""
    rounds: int = Field(20, ge=1, le=MOST_ROUNDS)
    """scope `corpus`: most exchanges between shards, which end when the objective has settled
    (`tolerance`); 1: every document is judged once, by what a sample taught"""
    method: Literal[
        "mask",
        "random",
        "top_quality",
        "greedy",
        "lazy_greedy",
        "semdedup",
        "d4",
        "cluster_balanced",
    ] = "mask"
    """`mask` learns; the others are comparators: the greedy methods maximise quality and metric as
    `mask` does; the rest have no objective"""
    mask_model: Place = ""
    """folder or URL of a finished run's `mask_model`: documents above its threshold are kept
    (`datamask apply` sets it), and `ratio` is the share that is expected"""
    ratio: float = Field(0.1, gt=0, le=1)
    """share of the source's documents to keep"""
    documents: int | None = Field(None, ge=1)
    """number of documents to keep; overrides `ratio`"""
    tokens: int | None = Field(None, ge=1)
    """tokens to keep, within one document; needs token counts, or source.tokenizer"""
    max_repeat: int = Field(1, ge=1, le=100)
    """how often training sees a document at most; above 1, column `repeat` says how often"""
    repeat_caps: tuple[RepeatCap, ...] = ()
    """groups whose documents training sees less often than `max_repeat`"""
    training_documents: int | None = Field(None, ge=1)
    """documents that training sees, with repeats (met exactly)"""
    training_tokens: int | None = Field(None, ge=1)
    """tokens that training sees, with repeats (met within one document)"""
    limits: tuple[Limit, ...] = ()
    """floors and caps of dumps, languages, domains or topics"""
    metric: ObjectiveName = Field(
        recipe.METRIC,
        description=f"diversity term: {', '.join(METRICS)}, or package.module:Class, whose code "
        f"runs; not given: {recipe.METRIC}, or {recipe.CORPUS_METRIC} with scope `corpus`, method "
        "`greedy` and mask models, or none with methods without vectors",
    )
    quality_weight: float = Field(
        recipe.UNPRUNED_QUALITY_WEIGHT,
        ge=0,
        le=1,
        description="lambda in lambda Q / r_Q + (1 - lambda) s D / r_D, with r the range of a term "
        "and s = -1 for metrics to be minimised: 1 is quality only, 0 is diversity only; not "
        "given: "
        f"{recipe.QUALITY_WEIGHT:g} if scores of yours prune, or what follows from a score's "
        "examples (docs/method.md), "
        f"{recipe.HEURISTIC_QUALITY_WEIGHT:g} with the heuristic alone, else "
        f"{recipe.UNPRUNED_QUALITY_WEIGHT:g}",
    )
    more_terms: tuple[Term, ...] = ()
    """further terms of the objective, scaled like the others"""
    scale_terms: bool = True
    """divide each term by what its best selection gains over random documents; false: the paper's
    unscaled sum"""
    estimator: Literal["auto", "expected", "policy_gradient"] = "auto"
    """`auto`: expected if every term supports it"""
    init: Literal["uniform", "quality"] = "uniform"
    """initial logits"""
    steps: int = Field(1000, ge=0, le=10_000_000)
    """maximum steps of the learner"""
    batch_fraction: float = Field(0.1, gt=0, le=1)
    """share of the shard in one step's batch"""
    rollouts: int = Field(128, ge=2, le=65536)
    """policy_gradient: masks per step"""
    initial_lr: float = Field(10.0, gt=0)
    """policy_gradient: learning rate at the start"""
    final_lr: float = Field(1.0, gt=0)
    """policy_gradient: learning rate at the end"""
    tolerance: float = Field(1e-2, ge=0, lt=1)
    """stop when a window (or two rounds) gains at most this share of the whole; 0: never"""
    swap_refinement: int = Field(1000, ge=0)
    """scope `shard`: maximum swaps near the threshold after learning"""

    @model_validator(mode="before")
    @classmethod
    def _without_none(cls, data: Any) -> Any:
        """Treat a metric or lambda of None, or an empty one, as not given."""
        if not isinstance(data, dict):
            return data
        return {k: v for k, v in data.items() if k not in FROM_RECIPE or v not in (None, "")}

    @model_validator(mode="after")
    def _check(self) -> Selection:
        if self.final_lr > self.initial_lr:
            raise ValueError(f"final_lr {self.final_lr} is above initial_lr {self.initial_lr}")
        if self.documents is not None and self.tokens is not None:
            raise ValueError("`documents` and `tokens` are both set; set one")
        if self.training_documents is not None and self.training_tokens is not None:
            raise ValueError("`training_documents` and `training_tokens` are both set; set one")
        if (self.max_repeat > 1) != (self.training is not None):
            raise ValueError(
                "`max_repeat` above 1 and `training_documents` or `training_tokens` need each other"
            )
        if beyond := [cap.most for cap in self.repeat_caps if cap.most > self.max_repeat]:
            raise ValueError(
                f"`repeat_caps` has {max(beyond)}, but max_repeat is {self.max_repeat}"
            )
        values = [(limit.column, limit.value) for limit in self.limits]
        if len(set(values)) != len(values):
            raise ValueError("`limits` has a group twice")
        for column in {limit.column for limit in self.limits}:
            if sum(limit.floor for limit in self.limits if limit.column == column) > 1:
                raise ValueError("the floors of `limits` add up to more than 1")
        names = ("documents", "tokens", "limits", "training_documents", "training_tokens")
        others = [name for name in names if getattr(self, name)]
        if self.mask_model and (others or (self.method, self.scope) != ("mask", "shard")):
            needed = f"method `mask`, scope `shard` and none of {', '.join(names)}"
            raise ValueError(f"`mask_model` decides by its own threshold: it needs {needed}")
        if self.scope == "corpus" and self.method not in ("mask", "random", "top_quality"):
            raise ValueError(f"method {self.method} has no scope `corpus`; use scope `shard`")
        if self.scope == "corpus" and self.method == "mask" and self.init != "uniform":
            raise ValueError("scope `corpus` needs init `uniform`")
        if self.scope == "corpus" and self.estimator == "policy_gradient":
            raise ValueError("scope `corpus` needs estimator `expected`")
        return self

    def filled_in(self, **values: Any) -> Selection:
        """Fill in *values* where none is given; such values do not count as given."""
        given = self.model_fields_set
        values = {name: value for name, value in values.items() if name not in given}
        return Selection.model_construct(given, **{**dict(self), **values})

    def changed(self, change: dict[str, Any]) -> dict[str, Any]:
        """Change some settings; returns plain data. A new budget replaces the old one."""
        budgets = {"ratio", "documents", "tokens"}
        replaced = budgets if budgets & change.keys() else set()
        return self.model_dump(mode="json", exclude=replaced) | change

    @property
    def training(self) -> int | None:
        """The total that training sees, in documents or tokens; None without repeats."""
        return self.training_documents or self.training_tokens

    @property
    def limited(self) -> list[str]:
        """The columns that define limited groups, alone or together, in their order."""
        return list(dict.fromkeys(name for limit in self.limits for name in limit.columns))

    @property
    def has_cells(self) -> bool:
        """True if limits name several columns; a document's groups together are then a cell."""
        return len({limit.column for limit in self.limits}) > 1

    def named_groups(self, column: str) -> list[str]:
        """List the groups of a column that limits name, alone or with groups of other columns."""
        named = [limit for limit in self.limits if column in limit.columns and limit.value]
        return [limit.groups[limit.columns.index(column)] for limit in named]

    def with_limits_of(self, column: str) -> Selection:
        """Return these settings with the limits of one column, or of one list of columns, alone."""
        limits = tuple(limit for limit in self.limits if limit.column == column)
        return self.model_copy(update={"limits": limits})

    def without_limits_of(self, *columns: str) -> Selection:
        """Return these settings without the limits that some columns take part in."""
        limits = tuple(limit for limit in self.limits if not {*columns} & {*limit.columns})
        return self.model_copy(update={"limits": limits})

    @property
    def needs_tokens(self) -> str:
        """Name the setting that needs the tokens of every document; empty if none does."""
        names = ("tokens", "training_tokens")
        return next((name for name in names if getattr(self, name) is not None), "")

    @property
    def has_custom_terms(self) -> bool:
        """True if a term of the objective is a class of the user."""
        return any(":" in name for name in (self.metric, *(term.name for term in self.more_terms)))

    @property
    def has_cut(self) -> bool:
        """True if documents of all shards are compared before any is selected."""
        return self.scope == "corpus" or self.tokens is not None or bool(self.limits)

    @property
    def num_rounds(self) -> int:
        """Maximum number of exchanges between shards; 0 if shards do not learn together."""
        return self.rounds if self.scope == "corpus" and self.method == "mask" else 0


def without_budget() -> dict[str, Any]:
    """Return the defaults of the settings, besides `ratio`, that say how much is kept or seen."""
    names = ("documents", "tokens", "limits", *TRAINING)
    return {name: Selection.model_fields[name].default for name in names}
