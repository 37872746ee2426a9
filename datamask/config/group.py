"""The base of all groups of settings: immutable, closed to unknown keys, without secrets."""

from __future__ import annotations

from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    field_validator,
)

from datamask.errors import without_secrets


class Group(BaseModel):
    """Base of the settings groups: immutable, closed to unknown keys, and without secrets."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )

    @field_validator("*")
    @classmethod
    def _refuse_secrets(cls, value: Any) -> Any:
        """Settings are recorded and published: no text in them may hold a password or token."""
        left = [value]
        while left:
            part = left.pop()
            if isinstance(part, str) and without_secrets(part) != part:
                raise ValueError(
                    "a user, password, token or signature would be recorded; give it in the "
                    "environment (HF_TOKEN, AWS_ACCESS_KEY_ID, ...)"
                )
            if isinstance(part, dict):
                left += [*part, *part.values()]
            if isinstance(part, list | tuple):
                left += part
        return value
