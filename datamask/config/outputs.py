"""Settings of the output: subset, tokens for trainers, report, publication."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from datamask.config.group import Group, Model


class Subset(Group):
    """The files of selected documents."""

    file_bytes: int = Field(512 * 2**20, ge=1024)
    """approximate size of a published file"""
    column_prefix: str = Field("", pattern=r"^[A-Za-z0-9_]*$")
    """prefix of the added columns (quality, logit, shard, repeat): letters, digits and _"""


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


class Publication(Group):
    """Repository and card of the subset. Tokens are never settings: use HF_TOKEN."""

    repository: str = Field("", pattern=r"^$|^[\w.-]+/[\w.-]+$")
    """dataset repository, `owner/name`"""
    license: str = ""
    """license of the source, as on the Hub (odc-by); required"""
    private: bool = True
    """create the repository private"""
    dry_run: bool = False
    """write the same folder, show what would change"""
    include: tuple[Literal["scores", "tokens", "mask_model"], ...] = ()
    """what else to publish: configuration `scores` (id, scores and logit of every document),
    configuration `tokens` (documents as tokens in the order of training), and the mask model, by
    which others can judge documents of their own"""
    tag: str = Field("v1", pattern=r"^\w[\w.-]*$")
    """tag set after verification (letters, digits, `_`, `.`, `-`)"""
    citation: str = ""
    """BibTeX of the source, quoted in the card"""

    @model_validator(mode="after")
    def _check(self) -> Publication:
        if not self.license:
            raise ValueError("`license` is required and never guessed; FineWeb's is odc-by")
        if self.repository:
            from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

            validate_repo_id(self.repository)
        if not self.repository and not self.dry_run:
            raise ValueError("`repository` is required unless `dry_run`")
        return self


OTHER_DUMPS = "other"
"""Name for the dump of documents that have none, or whose dump's name cannot name a folder."""

MOST_DUMPS = 200
"""Maximum number of dumps that get files and a configuration of their own: every dump costs at
least one file, however small."""

SAMPLED_DOCUMENTS, SAMPLED_SHARDS = 2000, 32
"""Number of random documents in the report's sample, and of shards that it comes from: they bound
the report's time and size. Counts and means always cover every document."""
