"""The rubric of `datamask label`: questions about texts, the model that answers, and limits."""

from __future__ import annotations

from pydantic import Field, model_validator

from datamask.config.group import Group
from datamask.config.scores import RESERVED_SCORE_NAMES


class Axis(Group):
    """One question about a text, answered by an integer."""

    name: str = Field("grade", pattern=r"^[a-z][a-z0-9_]*$")
    """its column in the file of labels (lower-case letters, digits and _)"""
    question: str = Field("How good is this text for training your model?", min_length=1)
    """what is asked about each text, with the meaning of the integers"""
    lowest: int = Field(1, ge=0, le=100)
    """lowest answer"""
    highest: int = Field(5, ge=1, le=100)
    """highest answer"""

    @model_validator(mode="after")
    def _check(self) -> Axis:
        if self.lowest >= self.highest:
            raise ValueError(f"lowest {self.lowest} must be below highest {self.highest}")
        if self.name in RESERVED_SCORE_NAMES:
            raise ValueError(f"name `{self.name}` is reserved for a column of the run's files")
        return self


class Rubric(Group):
    """A file of its own, for `datamask label --rubric`."""

    axes: tuple[Axis, ...] = Field((Axis(),), min_length=1)
    """questions about a text"""
    model: str = ""
    """name of the model at the endpoint"""
    key_variable: str = Field("DATAMASK_API_KEY", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """environment variable of the endpoint's API key; unset: none is sent"""
    characters: int = Field(6000, ge=100, le=1_000_000)
    """most characters of a text that are sent or shown"""
    answer_tokens: int = Field(500, ge=10, le=100_000)
    """most tokens of an answer; more for models that reason"""
    most_requests: int = Field(2000, ge=1)
    """bound on requests that are answered, over all launches"""
    most_tokens: int = Field(5_000_000, ge=1)
    """bound on tokens of prompts and answers, over all launches, as the endpoint counts them; at
    most `concurrency` requests go beyond it"""
    concurrency: int = Field(8, ge=1, le=256)
    """requests at a time"""

    @model_validator(mode="after")
    def _check(self) -> Rubric:
        names = [axis.name for axis in self.axes]
        if len({*names}) < len(names):
            raise ValueError(f"names of axes must differ, got {names}")
        return self
