"""Read settings from a file, from `--set` and from run.json, with one line for each problem."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from datamask.config.compute import Compute
from datamask.config.group import Group, groups_in
from datamask.config.plain_yaml import read_yaml
from datamask.config.reference import describe
from datamask.config.rubric import Rubric
from datamask.config.settings import Settings
from datamask.errors import (
    DatamaskError,
    SettingsError,
    did_you_mean,
    gathering,
    shortened,
    together,
)


def parse_settings(data: dict[str, Any], model: type[Group] = Settings) -> Any:
    """Validate plain data against a settings model.

    Raises:
        SettingsError: all problems, each beginning with the key's path.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [SettingsError(_describe(problem, model)) for problem in error.errors()]
        raise together(problems) from None


def with_groups(settings: Settings, given: Mapping[str, Group | int | None]) -> Settings:
    """Replace groups in the settings of a run; None or absent groups stay as they are."""
    changes = {name: value for name, value in given.items() if value is not None}
    merged: Settings = parse_settings(settings.changed_by(changes).given())
    return merged


def _walk(
    model: type[BaseModel], path: tuple[int | str, ...]
) -> tuple[list[str], type[BaseModel], str]:
    """Return the keys of a path in the settings, the group of the last one, and its meaning."""
    keys: list[str] = []
    group, groups, text = model, dict[str, type[BaseModel]](), ""
    for key in path:
        if key in groups:  # The kind of a group in a union is not a key.
            group = model = groups[str(key)]
            groups = {}
            continue
        keys.append(str(key))
        if isinstance(key, str):
            group, text = model, ""
        if field := model.model_fields.get(str(key)):
            text, groups = field.description or "", groups_in(field.annotation)
            model = groups.get("", model)
    return keys, group, text


def _describe(problem: Any, model: type[BaseModel]) -> str:
    keys, group, meaning = _walk(model, problem["loc"])
    is_unknown, message, shown = (
        problem["type"] == "extra_forbidden",
        problem["msg"],
        problem["input"],
    )
    # Types in a union, such as "constrained-float", are not keys.
    keys = [key for key in keys if is_unknown or re.fullmatch(r"\w+", key)]
    choices = problem.get("ctx", {}).get("expected", "")
    if problem["type"] == "union_tag_invalid":
        keys, shown, choices = (
            [*keys, "kind"],
            problem["ctx"]["tag"],
            problem["ctx"]["expected_tags"],
        )
        message = f"Input should be {choices}"
    path = ".".join(keys) or "settings"
    if is_unknown:
        name = keys[-1]
        # The name may belong to another group.
        known = (key for key in describe(model) if "[" not in key)
        others = [key for key in known if key.rpartition(".")[2] == name]
        meant = did_you_mean(name, group.model_fields)
        meant = meant or "".join(f"; did you mean `{key}`?" for key in others[:1])
        parent = ".".join(key for key in keys[:-1] if not key.isdecimal())
        command = f"datamask settings {parent}".strip()
        return f"{path}: unknown key{meant or f'; `{command}` lists them all'}"
    if problem["type"] == "missing":
        return f"{path}: required: {meaning}"
    message = message.removeprefix("Value error, ").replace("valid tuple", "list")
    if isinstance(shown, dict | list | tuple | BaseModel):
        return f"{path}: {message}"
    if problem["type"] == "string_pattern_mismatch":
        return f"{path}: {shortened(shown)} does not fit; needed: {meaning}"
    names = re.findall("'([^']+)'", choices)
    return f"{path}: {message}, got {shortened(shown)}{did_you_mean(str(shown), names)}"


def load_settings(
    config: Path | None, overrides: tuple[str, ...] = (), own: Settings | None = None
) -> tuple[Settings, Compute]:
    """Read a YAML file and apply overrides, `group.key=value` with YAML as value.

    A number in a key is the position in a list: `quality.scores.0.missing=drop`. The file's top
    level holds the groups of `Settings` and `compute`. Keys that are not in the file have their
    defaults, so that the file alone determines a run. Without a file, the overrides change the
    settings of an existing run, *own*, or the defaults.

    Raises:
        SettingsError: unreadable file, unknown key, value out of range.
    """
    data: dict[str, Any] = own.given() if own and config is None else {}
    if config is not None:
        loaded = read_yaml(config.read_bytes(), str(config))
        if not isinstance(loaded, dict | None):
            raise SettingsError(
                f"{config}: needed groups of settings at the top level, such as `source: ...`"
            )
        # An empty group means all defaults.
        data = {key: value for key, value in (loaded or {}).items() if value is not None}
    problems: list[DatamaskError] = []
    for override in overrides:
        with gathering(problems):
            _apply(data, override)
    compute = data.pop("compute", None) or {}
    with gathering(problems):
        settings = parse_settings(data)
    with gathering(problems):
        machine = parse_settings({"compute": compute}, _ComputeFile).compute
    if problems:
        raise together(problems)
    return settings, machine


def with_values(own: Settings, values: Mapping[str, Any]) -> Settings:
    """Replace values of settings, by their dotted keys, such as `selection.ratio`.

    Raises:
        SettingsError: an unknown key, or a value out of its range.
    """
    data = own.given()
    for key, value in values.items():
        _put(data, key, value, key)
    settings: Settings = parse_settings(data)
    return settings


def load_rubric(path: Path | None) -> Rubric:
    """Read the rubric of `datamask label`; without a path, return the default rubric.

    Raises:
        SettingsError: unreadable file, unknown key, value out of range.
    """
    data = {} if path is None else read_yaml(path.read_bytes(), str(path))
    rubric: Rubric = parse_settings(data, Rubric)
    return rubric


class _ComputeFile(Group):
    compute: Compute = Field(default_factory=Compute)


def _apply(data: dict[str, Any], override: str) -> None:
    key, separator, value = override.partition("=")
    if not separator or not key:
        raise SettingsError(f"--set {override[:100]}: needed group.key=value")
    shown = f"--set {override[:100]}"
    _put(data, key, read_yaml(value, shown), shown)


def _put(data: dict[str, Any], key: str, value: Any, shown: str) -> None:
    """Set the value of a dotted key in nested data; an error message begins with *shown*.

    A number in the key is the position in a list, from 0.
    """
    *groups, last = key.split(".")
    inner: Any = data
    for group in groups:
        step = _step(inner, group, shown)
        if isinstance(inner, dict) and inner.get(step) is None:
            inner[step] = {}
        inner = inner[step]
        if not isinstance(inner, dict | list):
            raise SettingsError(f"{shown}: {group} is not a group of settings")
    inner[_step(inner, last, shown)] = value


def _step(inner: dict[str, Any] | list[Any], part: str, shown: str) -> Any:
    """Return one part of a dotted key: a name in a group, or a valid position in a list."""
    if isinstance(inner, dict):
        return part
    if not part.isdecimal() or int(part) >= len(inner):
        there = f"0 to {len(inner) - 1}" if inner else "none, because the list is empty"
        raise SettingsError(f"{shown}: {part} is not a position in the list; there: {there}")
    return int(part)
