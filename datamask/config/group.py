"""The base of all groups of settings: immutable, closed to unknown keys, without secrets."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Tag, ValidationInfo, field_validator

from datamask.errors import did_you_mean
from datamask.showing import without_secrets

PLACE, MODEL = "place", "model"
"""Marks of settings that `Group.relocated` changes."""

Place = Annotated[str, PLACE]
"""The path or URL of files of the user's own."""

Model = Annotated[str, MODEL]
"""A model or tokenizer: a name on the Hub, or a local file or folder."""


def or_text(schema: dict[str, Any]) -> None:
    """Let the JSON schema of a group also accept a string, which a validator turns into the group.

    Prefect validates the parameters of deployments against this schema.
    """
    group = dict(schema)
    schema.clear()
    schema["anyOf"] = [{"type": "string"}, group]


class Group(BaseModel):
    """Base of the settings groups: the text below a setting is its help.

    Settings are recorded and published, so they hold no secrets.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **given: Any) -> None:
        """Join the lines of each field's description, the text below it."""
        for field in cls.model_fields.values():
            field.description = " ".join((field.description or "").split())

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_truth_as_number(cls, value: Any, about: ValidationInfo) -> Any:
        annotation = cls.model_fields[str(about.field_name)].annotation
        if isinstance(value, bool) and bool not in (annotation, *typing.get_args(annotation)):
            raise ValueError("this setting does not accept true or false")
        return value

    @field_validator("*")
    @classmethod
    def _refuse_secrets(cls, value: Any) -> Any:
        left = [value]
        while left:
            part = left.pop()
            if isinstance(part, str) and without_secrets(part) != part:
                raise ValueError("a secret would be recorded; give it in the environment")
            if isinstance(part, dict):
                left += [*part, *part.values()]
            if isinstance(part, list | tuple):
                left += part
        return value

    def changed_by(self, changes: Mapping[str, Any]) -> Self:
        """Replace settings by name; of a group among the *changes*, only what it was given."""
        new = dict(changes)
        for name, given in changes.items():
            own = getattr(self, name)
            if isinstance(own, Group) and isinstance(given, type(own)):
                new[name] = own.changed_by({n: getattr(given, n) for n in given.model_fields_set})
        return self.model_copy(update=new)

    def relocated(self, place: Callable[[str], str], model: Callable[[str], str]) -> Self:
        """Replace each `Place` and `Model` in the settings, in the groups within it too."""

        def changed(value: Any, marks: Sequence[Any]) -> Any:
            if isinstance(value, Group):
                return value.relocated(place, model)
            if isinstance(value, tuple):
                return tuple(changed(item, marks) for item in value)
            if isinstance(value, dict):
                return {name: changed(item, marks) for name, item in value.items()}
            if PLACE in marks:
                return place(value)
            return model(value) if MODEL in marks else value

        fields = type(self).model_fields
        values = {name: changed(value, fields[name].metadata) for name, value in self}
        # An unchanged value stays a default if it was one.
        update = {name: value for name, value in values.items() if value != getattr(self, name)}
        return self.model_copy(update=update)


OF_SOURCE = ("dump", "language", "domain")
"""Kinds of groups that every source may have; `source.groups` adds others."""


class SourceGroup(Group):
    """Documents of the source that share a domain, language, dump or group of your own."""

    column: str
    """what defines the group: domain, language, dump, or a name in source.groups"""
    value: str
    """the group's name"""


def groups_in(annotation: Any, tag: str = "") -> dict[str, type[BaseModel]]:
    """Return the settings groups in a field's annotation, alone or in a tuple or union.

    The groups of a union that a tag distinguishes have their tags as keys; any other group has the
    key *tag*.
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {tag: annotation}
    members = typing.get_args(annotation)
    [tag] = [member.tag for member in members if isinstance(member, Tag)] or [tag]
    return {key: group for member in members for key, group in groups_in(member, tag).items()}


def known_or_own(kind: str, known: Sequence[str]) -> AfterValidator:
    """Accept a known name, or `package.module:Class` for a class of the user's own."""

    def check(name: str) -> str:
        if ":" not in name and name not in known:
            names = ", ".join((*known, "package.module:Class"))
            raise ValueError(f"unknown {kind}{did_you_mean(name, known)}; known are {names}")
        return name

    return AfterValidator(check)
