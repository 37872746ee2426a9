"""Settings of the tokens that trainers read, in the order of training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from datamask.config.group import Group, Model


class Phase(Group):
    """A phase of training: a fraction of the tokens, perhaps from some documents only."""

    share: float = Field(gt=0, le=1)
    """share of all tokens; shares add up to 1"""
    where: str = ""
    """SQL condition on columns of `documents`, such as `quality > 1`; empty: any"""


class Tokens(Group):
    """Turn the selected documents into the tokens that a trainer reads."""

    tokenizer: Model = Field(min_length=1)
    """a tokenizer.json, a folder with one, or a model on the Hub"""
    end_of_document: str = ""
    """token after each document; empty: one of <|endoftext|>, </s> and the like"""
    order: Literal["shuffled", "by_quality_then_shuffled"] = "shuffled"
    """`by_quality_then_shuffled`: ten shuffled bands in every epoch, the best last"""
    phases: tuple[Phase, ...] = ()
    """phases of training, one after the other, each in this order; none: one"""

    @model_validator(mode="after")
    def _check(self) -> Tokens:
        if self.phases and abs(sum(phase.share for phase in self.phases) - 1) > 1e-9:
            raise ValueError("the shares of `phases` must add up to 1")
        return self
