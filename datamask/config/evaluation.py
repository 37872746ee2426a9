"""Settings of evaluation: held-out texts, the selections to compare, and how models train."""

from __future__ import annotations

import typing
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from datamask.config.group import Group, Model, Place, or_text
from datamask.config.selection import Selection

LEAST_TOKENS = 1000
"""Minimum number of tokens that a model is trained on."""

METHODS = typing.get_args(Selection.model_fields["method"].annotation)


class Arm(Group):
    """A set of documents to train on, to be compared with others."""

    model_config = ConfigDict(json_schema_extra=or_text)

    name: str = Field(pattern=r"^[a-z][a-z0-9_.-]*$", max_length=40)
    """as tables and charts name it (lower-case letters, digits, `_`, `.`, `-`)"""
    kind: Literal["selection", "random", "top_quality", "run", "ids", "texts"] = "selection"
    """what the run selects, `random` from all documents with text, `top_quality`: as many tokens of
    the highest quality, what another `run` of the source selects, `ids` of the source, or `texts`
    of any other corpus"""
    change: dict[str, Any] = Field({})
    """kind `selection`: settings of `selection` that differ, such as {method: semdedup}"""
    path: Place = ""
    """kind `run`: its folder or URL; kinds `ids` and `texts`: file, folder, glob or URL of Parquet
    or JSON lines; for ids, also text with an id per line"""
    column: str = ""
    """of the ids (default id) or texts (default text)"""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, data: Any) -> Any:
        """Accept a name alone: `ours`, `filtered_random`, a kind, or a method of selection."""
        if not isinstance(data, str):
            return data
        known: dict[str, dict[str, Any]] = {m: {"change": {"method": m}} for m in METHODS}
        known |= {kind: {"kind": kind} for kind in ("random", "top_quality")}
        known |= {"ours": {}, "filtered_random": {"change": {"method": "random"}}}
        if data not in known:
            raise ValueError(f"unknown arm {data}; give a name and a kind, or {', '.join(known)}")
        return {"name": data, **known[data]}

    @property
    def columns(self) -> tuple[str, ...]:
        """The one column that is read of a list of ids, or of texts."""
        return (self.column or ("id" if self.kind == "ids" else "text"),)

    @model_validator(mode="after")
    def _check(self) -> Arm:
        if (self.kind in ("run", "ids", "texts")) != bool(self.path):
            raise ValueError("kinds `run`, `ids` and `texts` need `path`, others have none")
        if self.change and self.kind != "selection":
            raise ValueError("`change` is for kind `selection`")
        return self


class HeldOutSet(Group):
    """Texts of the user's own on which trained models are scored."""

    name: str = Field(pattern=r"^[A-Za-z0-9][\w .-]*$", max_length=60)
    """as tables name it"""
    path: Place = Field(min_length=1)
    """file, folder, glob or URL (hf://, s3://) of Parquet, JSON lines or plain text"""
    column: str = "text"
    """the text, or the answer to `prompt`, or with `gold` a list of answers"""
    prompt: str = ""
    """column of the text before the answer, which is read but not scored"""
    gold: str = ""
    """multiple choice: column of the number of the right answer, from 0"""
    group_column: str = ""
    """column of the kind of text: results are also given as mean, median and worst over kinds"""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (*filter(None, (self.prompt, self.gold, self.group_column)), self.column)


class Evaluation(Group):
    """Small language models, trained on each selection with one budget, and how they are scored."""

    hold_out: float = Field(0.0, ge=0, lt=0.5)
    """share of the documents, by a seeded hash of the id, that no selection gets and models are
    scored on (0.005 to 0.02 is usual); 0: none"""
    hold_out_by: str = ""
    """score held-out documents separately by domain, dump, language, topic or a name in
    source.groups too, and give mean, median and worst group, because the mixture alone does not
    show what happens to small kinds of text; empty: by domain, among the documents of the mixture;
    none: the mixture alone"""
    sets: tuple[HeldOutSet, ...] = ()
    """texts of your purpose; the verdict rests on the first set"""
    arms: tuple[Arm, ...] = Field((), max_length=50)
    """what is compared, such as [ours, random, semdedup]; none: no evaluation"""
    model: Model = "15M"
    """`tiny` (decides little), `15M`, `30M`, or a folder with a decoder's config.json, perhaps with
    its tokenizer.json; without one, the tokenizer is BPE of a sample of candidates"""
    tokens: int | None = Field(None, ge=LEAST_TOKENS)
    """tokens that a model is trained on; none: 400,000 (tiny), 300 million, 600 million (30M)"""
    epochs: int = Field(1, ge=1, le=100)
    """times that a model sees them"""
    learning_rates: tuple[float, ...] = Field((), max_length=9)
    """every arm is trained with each of them; none: two that suit the model"""
    seeds: int = Field(3, ge=2, le=100)
    """repetitions, each with other initial weights and another draw of text; a larger number trains
    only the models that are missing"""

    @property
    def has_texts(self) -> bool:
        """True if there are texts that can score models."""
        return bool(self.hold_out or self.sets)

    @property
    def question(self) -> str:
        """Say which question the verdict answers, for people."""
        best = "random documents are the best possible, unless the source has noise or copies"
        if not self.sets:
            return (
                f"The verdict says which selection is like the source: there, {best}. Name texts "
                "of your purpose in evaluation.sets."
            )
        rest = f" For set `all`, text like the source, {best}." if self.hold_out else ""
        return f"The verdict says which selection serves set `{self.sets[0].name}`.{rest}"

    @model_validator(mode="after")
    def _check(self) -> Evaluation:
        for what, named in (("arms", self.arms), ("sets", self.sets)):
            names = [item.name for item in named]
            if len(set(names)) != len(names):
                raise ValueError(f"names of {what} must differ, got {names}")
        if len(self.arms) == 1:
            raise ValueError("one arm has nothing to be compared with; name two or more")
        if not all(0 < rate < 1 for rate in self.learning_rates):
            raise ValueError(f"learning_rates must be in (0, 1), got {self.learning_rates}")
        if len(set(self.learning_rates)) != len(self.learning_rates):
            raise ValueError(f"learning_rates must differ, got {self.learning_rates}")
        if "all" in {item.name for item in self.sets}:
            raise ValueError("set name `all` is taken by the documents held out of the source")
        return self
