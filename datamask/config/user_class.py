"""Import classes that settings name as `package.module:Class`, and so run their module's code."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from datamask.errors import DatamaskError, SettingsError, one_line


def import_class(named: str) -> Any:
    """Return what `package.module:Class` names; the caller checks that it is a suitable class.

    Raises:
        Exception: whatever the module raises; see `user_code`.
    """
    module, _, name = named.partition(":")
    return getattr(importlib.import_module(module), name)


@contextlib.contextmanager
def user_code(problem: str) -> Iterator[None]:
    """Turn whatever a user's code raises into a `SettingsError` of one line.

    Args:
        problem: begins the line, and the error follows it in brackets.

    Raises:
        SettingsError: the code raised anything but a `DatamaskError`, which passes unchanged.
    """
    try:
        yield
    except DatamaskError:
        raise
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        raise SettingsError(f"{problem} ({reason})") from error
