"""Settings of classifiers whose classes are groups of documents (`source.groups`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from datamask.config.group import Group, Model, Place


class ModelClasses(Group):
    """Groups that are the classes of a transformers model."""

    kind: Literal["classifier"]
    """a transformers model"""
    model: Model = Field(min_length=1)
    """sequence-classification model on the Hub, or local folder"""
    revision: str | None = None
    """branch, tag or commit; pinned when planned"""


class FastTextClasses(Group):
    """Groups that are the labels of a fastText model."""

    kind: Literal["fasttext"]
    """a fastText model"""
    path: Place = Field(min_length=1)
    """a .bin file"""


EXPRESSION = "expression"


def _form_of(data: Any) -> str:
    """Return the form of a definition of groups, given as settings or as plain data."""
    if isinstance(data, str):
        return EXPRESSION
    given = data.get("kind") if isinstance(data, dict) else getattr(data, "kind", None)
    return str(given)


GroupsBy = Annotated[
    Annotated[str, Tag(EXPRESSION)]
    | Annotated[ModelClasses, Tag("classifier")]
    | Annotated[FastTextClasses, Tag("fasttext")],
    Discriminator(
        _form_of,
        custom_error_type="groups",
        custom_error_message="give a SQL expression, or {kind: classifier, model: ...}, or "
        "{kind: fasttext, path: ...}",
    ),
]
"""What defines groups: a SQL expression, or a classifier that gives every document one class."""
