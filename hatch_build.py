"""Adds flows, tasks and deployments to the wheel as one package, `datamask_flows`.

In a checkout they are the folders `flows/` and `tasks/`. As installed packages, these names could
be those of others.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "datamask_flows"
FOLDERS = ("flows", "tasks")
FILES = tuple(f"deployments/{name}.yaml" for name in ("prefect", "automations", "on-events"))
NAME = re.compile(r"^( *(?:from|import|entrypoint:) )(?=(?:flows|tasks)\b)", re.MULTILINE)


class FlowsInTheWheel(BuildHookInterface):  # type: ignore[type-arg]
    """Copies the files with imports and entry points of the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files to a wheel; an editable installation uses those of the checkout."""
        if version == "editable":
            return
        root = Path(self.root)
        self.copies = tempfile.TemporaryDirectory()
        modules = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))]
        for path in [*modules, *(root / name for name in FILES)]:
            copy = Path(self.copies.name) / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(NAME.sub(rf"\1{PACKAGE}.", path.read_text("utf-8")), "utf-8")
            name = f"{PACKAGE}/{path.relative_to(root).as_posix()}"
            build_data["force_include"][str(copy)] = name
        about = Path(self.copies.name) / "__init__.py"
        about.write_text('"""Flows and tasks of datamask; `datamask deploy` registers them."""\n')
        build_data["force_include"][str(about)] = f"{PACKAGE}/__init__.py"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the copies."""
        if version != "editable":
            self.copies.cleanup()
