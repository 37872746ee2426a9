"""The progress of a stage as an artifact of its flow run."""

from typing import Any

from prefect.artifacts import create_progress_artifact, update_progress_artifact


def artifact_key(*words: str) -> str:
    """A key as Prefect requires it: letters, digits and dashes."""
    return "-".join(words).replace("/", "-").replace("_", "-")


class Progress:
    """A progress artifact; the server receives only whole percents.

    Args:
        name: of the work; `NAME-progress` is the artifact's key.
        total: units of work, at least 1.
    """

    def __init__(self, name: str, total: int) -> None:
        self.total, self.shown = total, 0
        key = artifact_key(name, "progress")
        self.artifact: Any = create_progress_artifact(0.0, key=key, description=name)

    def show(self, done: int) -> None:
        """Show that this many units are done."""
        percent = 100 * done // self.total
        if percent > self.shown:
            self.shown = percent
            update_progress_artifact(self.artifact, 100.0 * done / self.total)
