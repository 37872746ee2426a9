"""Settings of what comes out: subset, report, sweep, publication."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from datamask.config.group import Group
from datamask.config.selection import NOT_TRIED, TRAINING


class Subset(Group):
    """How the selected documents are written."""

    file_bytes: int = Field(512 * 2**20, ge=1024)
    """approximate size of a published file"""
    column_prefix: str = Field("", pattern=r"^[A-Za-z0-9_]*$")
    """prefix of the added columns (quality, logit, shard, repeat): letters, digits and _"""


class Sweep(Group):
    """Trials on a sample of a run's shards, to choose settings of `selection`.

    Every lambda is tried with every seed for the run's own selection, and again for each change.
    """

    by: Literal["knee", "evaluation"] = "knee"
    """what chooses lambda: the knee of quality and diversity, or trained language models"""
    quality_weights: tuple[float, ...] = Field((0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0), min_length=1)
    """values of lambda"""
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    """repetitions, for spread"""
    changes: tuple[dict[str, Any], ...] = ()
    """settings of `selection` to try as well with every lambda, such as {metric: pairwise}"""
    shards: int = Field(2, ge=1, le=1000)
    """number of sampled shards"""

    @model_validator(mode="after")
    def _check(self) -> Sweep:
        if not all(0 <= weight <= 1 for weight in self.quality_weights):
            raise ValueError(f"quality_weights must be in [0, 1], got {self.quality_weights}")
        fixed = sorted({*NOT_TRIED, *TRAINING} & {key for change in self.changes for key in change})
        if fixed:
            raise ValueError(f"`changes` has {fixed[0]}, which a trial sets itself or does not use")
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


MOST_DUMPS = 200
"""Dumps up to which each has files and a configuration of its own: a dump needs a file, however
small."""

SAMPLED_DOCUMENTS, SAMPLED_SHARDS = 5000, 32
"""Random documents of the report's sample, and shards from which they are drawn: they bound the
report's time and size. Counts and means always cover every document."""
