"""List the settings as text, generated from the models."""

from __future__ import annotations

import types
import typing
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from datamask.config.compute import Compute
from datamask.config.group import groups_in
from datamask.config.rubric import Rubric
from datamask.config.settings import Settings
from datamask.errors import SettingsError, did_you_mean

ALL: tuple[tuple[type[BaseModel], str], ...] = (
    (Settings, ""),
    (Compute, "compute."),
    (Rubric, "rubric."),
)
"""Every model of settings, with the prefix of its keys."""

KINDS = {bool: "true or false", int: "integer", float: "number", str: "text", dict: "mapping"}


def describe(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """Describe each setting and each inner group: key, default, type and meaning, by key."""
    texts = {}
    for name, field in model.model_fields.items():
        groups, is_list = groups_in(field.annotation), typing.get_origin(field.annotation) is tuple
        key = f"{prefix}{name}"
        if not groups or is_list:
            texts[key] = f"{key} = {_default(field)}  ({_kind(field)})\n    {field.description}"
        else:
            texts[key] = f"{key}:  {field.description}"
        texts |= _of_kinds(groups, f"{key}{'[]' if is_list else ''}.")
    return texts


def _of_kinds(groups: dict[str, type[BaseModel]], prefix: str) -> dict[str, str]:
    """Describe the settings of groups that are kinds of one thing; of one group, as `describe`."""
    kinds_of: dict[tuple[str, str], list[str]] = {}
    for kind, group in groups.items():
        for pair in describe(group, prefix).items():
            kinds_of.setdefault(pair, []).append(kind)
    texts = {}
    for (key, text), kinds in kinds_of.items():
        of = "" if len(kinds) == len(groups) else f" (kind {', '.join(kinds)})"
        texts[f"{key}{of}"] = f"{text}{of}"
    return texts


def descriptions() -> dict[str, str]:
    """Return `describe` of every model of settings."""
    return {key: text for model, prefix in ALL for key, text in describe(model, prefix).items()}


def described(key: str) -> list[str]:
    """Describe one setting, or a group and all settings in it; an empty key means all settings.

    Raises:
        SettingsError: there is no such key; the message has the nearest ones.
    """
    lines = descriptions()
    parts = tuple(f"{key}{end}" for end in (".", "[].", " ("))
    texts = [lines[name] for name in lines if not key or name == key or name.startswith(parts)]
    if texts:
        return texts
    last = key.rpartition(".")[2]
    meant = next((f"; did you mean `{name}`?" for name in lines if name.endswith(f".{last}")), "")
    hint = meant or did_you_mean(key, lines) or "; `datamask settings` lists them all"
    raise SettingsError(f"{key}: no such setting{hint}")


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "(required)" if field.default_factory is None else "{}"
    if isinstance(field.default, tuple):
        return str(list(field.default))
    return "none" if field.default is None else str(field.default)


def _kind(field: FieldInfo) -> str:
    """Return the type of a setting, with its choices or range."""
    symbols = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    rules = [(rule, bound) for rule in field.metadata for bound in symbols if hasattr(rule, bound)]
    bounds = [f"{symbols[bound]} {getattr(rule, bound)}" for rule, bound in rules]
    kind = _type(field.annotation)
    return f"{kind} {' and '.join(bounds)}" if bounds else kind


def _type(annotation: Any) -> str:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " | ".join(map(str, parts))
    if origin is typing.Annotated:
        return _type(parts[0])
    if origin is tuple:
        return f"list of {'groups' if groups_in(annotation) else _type(parts[0])}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(part) for part in parts if part is not type(None))
    return KINDS.get(origin or annotation, "")
