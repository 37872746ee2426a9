"""Record which settings code reads: every field of every group, by its dotted path."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from datamask.config.group import Group, groups_in
from datamask.config.settings import Settings
from datamask.learning.scales import ALONE, ALONE_BY_VALUES

IN_TABLE = {"datamask.runs.run"}
"""Modules that ask which files there are and whether they are due: no stage reads through them."""

DRIVER = IN_TABLE | {"datamask.runs.stages", "datamask.runs.stage_settings"}
"""These, and those that say which stages there are."""


def prefixes(kind: type[Group] = Settings, before: str = "") -> Iterator[tuple[type[Group], str]]:
    """The groups of settings, and with what the paths of their fields begin."""
    yield kind, before
    for name, field in kind.model_fields.items():
        for inner in groups_in(field.annotation).values():
            yield from prefixes(inner, f"{before}{name}.")


PREFIX = dict(prefixes())


@contextlib.contextmanager
def recording(driver: set[str] = DRIVER) -> Iterator[set[str]]:
    """The paths of the settings that are read in the block.

    Reads by modules of *driver* do not count, nor does the name of a group whose fields are read.
    """
    keys: set[str] = set()
    own = Group.__getattribute__
    constants = (ALONE, ALONE_BY_VALUES)  # Settings of no run.

    def read(group: Group, name: str) -> Any:
        is_constant = any(group is constant for constant in constants)
        prefix = None if is_constant else PREFIX.get(type(group))
        if prefix is not None and name in type(group).model_fields:
            key = prefix + name
            # Which module reads is looked up once: that takes longer than to read.
            if key not in keys and not _is_of(driver):
                keys.add(key)
        return own(group, name)

    def dump(group: Group, **given: Any) -> Any:
        prefix, left = PREFIX.get(type(group)), given.get("include")
        if prefix is not None and not _is_of(driver):
            names = set(type(group).model_fields) if left is None else set(left)
            for name in names - set(given.get("exclude") or ()):
                keys.update(_all(prefix + name, type(group), name))
        return original(group, **given)

    original = Group.model_dump
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Group, "__getattribute__", read)
        patch.setattr(Group, "model_dump", dump)
        yield keys
    wholes = {key for key in keys if any(other.startswith(f"{key}.") for other in keys)}
    keys -= wholes


def _all(path: str, kind: type[Group], name: str) -> Iterator[str]:
    groups = groups_in(kind.model_fields[name].annotation).values()
    if not groups:
        yield path
    for inner in groups:
        for field in inner.model_fields:
            yield from _all(f"{path}.{field}", inner, field)


def _is_of(modules: set[str]) -> bool:
    """Return True if a module reads; questions of `Run.in_force` count for the calling stage."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_name
        if name == "in_force":
            return False
        if name == "resolved" or frame.f_globals.get("__name__") in modules:
            return True
        frame = frame.f_back
    return False
