"""The list of settings as text, generated from the models."""

from __future__ import annotations

import typing

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from datamask.config.group import group_in


def describe(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Key, default, range and meaning of every setting of a group and of the groups within it."""
    lines = []
    for name, field in model.model_fields.items():
        group, is_list = group_in(field.annotation), typing.get_origin(field.annotation) is tuple
        key = f"{prefix}{name}"
        if group is None or is_list:
            lines.append(f"{key} = {_default(field)}{_range(field)}\n    {field.description}")
        if group is not None:
            if not is_list:
                lines.append(f"{key}:  {field.description}")
            lines += describe(group, f"{key}{'[]' if is_list else ''}.")
    return lines


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "(required)" if field.default_factory is None else "{}"
    if isinstance(field.default, tuple):
        return str(list(field.default))
    return "none" if field.default is None else str(field.default)


def _range(field: FieldInfo) -> str:
    symbols = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    rules = [(rule, bound) for rule in field.metadata for bound in symbols if hasattr(rule, bound)]
    bounds = [f"{symbols[bound]} {getattr(rule, bound)}" for rule, bound in rules]
    parts = (field.annotation, *typing.get_args(field.annotation))
    literals = [part for part in parts if typing.get_origin(part) is typing.Literal]
    choices = [str(value) for literal in literals for value in typing.get_args(literal)]
    text = " and ".join(bounds) or " | ".join(choices)
    return f"  ({text})" if text else ""
