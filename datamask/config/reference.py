"""The list of settings as text, read off the models, so that help never lags behind them."""

from __future__ import annotations

import typing
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined


def describe(model: type[BaseModel], prefix: str = "") -> list[str]:
    """One line per setting: key, default, range, meaning; groups are followed into their keys."""
    lines = []
    for name, field in model.model_fields.items():
        group, is_list = _group(field.annotation)
        key = f"{prefix}{name}"
        if group is None or is_list:
            lines.append(f"{key} = {_default(field)}{_range(field)}\n    {field.description}")
        if group is not None:
            if not is_list:
                lines.append(f"{key}:  {field.description}")
            lines += describe(group, f"{key}{'[]' if is_list else ''}.")
    return lines


def _group(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    arguments = typing.get_args(annotation)
    for candidate in (annotation, *arguments):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate, typing.get_origin(annotation) is tuple
    return None, False


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "(required)" if field.default_factory is None else "{}"
    if isinstance(field.default, tuple):
        return str(list(field.default))
    return "none" if field.default is None else str(field.default)


def _range(field: FieldInfo) -> str:
    symbols = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = [
        f"{symbol} {getattr(rule, bound)}"
        for rule in field.metadata
        for bound, symbol in symbols.items()
        if getattr(rule, bound, None) is not None
    ]
    choices = [
        str(value)
        for part in (field.annotation, *typing.get_args(field.annotation))
        if typing.get_origin(part) is typing.Literal
        for value in typing.get_args(part)
    ]
    text = " and ".join(bounds) or " | ".join(choices)
    return f"  ({text})" if text else ""
