"""The Hub's token: HF_TOKEN of the worker, or a Prefect Secret block."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from datamask.errors import check_secrets


def provide_hub_token() -> None:
    """Set this process's HF_TOKEN from Secret block `hf-token`, if unset and if there is a block.

    The token is in no parameter, state, log or file.

    Raises:
        SettingsError: no token looks like this one.
    """
    if not os.environ.get("HF_TOKEN"):
        from prefect.blocks.system import Secret

        with contextlib.suppress(ValueError):
            # `load` has an asynchronous twin under the same name; here it is always synchronous.
            secret: Any = Secret.load("hf-token")
            os.environ["HF_TOKEN"] = str(secret.get())
    check_secrets()
