"""Settings of a run that the mask model of another run judges."""

from __future__ import annotations

from datamask.config.evaluation import Evaluation
from datamask.config.inputs import Source
from datamask.config.selection import FROM_RECIPE, without_budget
from datamask.config.settings import Settings
from datamask.errors import SettingsError
from datamask.runs.run import Run


def settings_to_apply(learnt: Run, source: Source | None = None) -> Settings:
    """Return the settings of a finished run, with its mask model instead of a budget.

    Limits, repeats, evaluation and publication belong to the finished run alone and are left out.

    Args:
        learnt: the finished run.
        source: where the new documents are; settings that it does not name stay as in the finished
            run. None: it is set later.

    Raises:
        RunError: the run has no mask model yet, or its mask is not a function of a document.
    """
    from datamask.selection.model_file import read_about

    learnt.receipt("mask_model")
    folder = _folder_of(learnt)
    about = read_about(folder)
    settings = learnt.settings
    selection = settings.selection.model_copy(
        update={
            **{name: getattr(settings.selection, name) for name in FROM_RECIPE},
            **without_budget(),
            **{"mask_model": folder, "scope": "shard"},
            "ratio": round(about["documents"] / about["source_documents"], 6) or 1e-6,
        }
    )
    named = {name: getattr(source, name) for name in source.model_fields_set} if source else {}
    changes = {
        "source": settings.source.model_copy(update={"path": "", **named}),
        "selection": selection,
        "evaluation": Evaluation(),
        "publication": None,
    }
    return settings.model_copy(update=changes)


def _folder_of(learnt: Run) -> str:
    return f"{learnt.address}/{learnt.name('mask_model').rpartition('/')[0]}"


def check_applied(settings: Settings, learnt: Run) -> Settings:
    """Return the settings, if they name a source and the mask model of *learnt*.

    Raises:
        SettingsError: they do not.
        InputError: the mask model that they name is missing.
    """
    from datamask.selection.model_file import read_about

    if not settings.selection.mask_model:
        raise SettingsError(
            "selection.mask_model: the run selects by itself; name another folder for the new "
            "documents"
        )
    if not settings.source.path:
        raise SettingsError("source.path: name the new documents with --set source.path=...")
    named, folder = settings.selection.mask_model, _folder_of(learnt)
    if named != folder and read_about(named) != read_about(folder):
        raise SettingsError(
            f"selection.mask_model: the run is judged by {named}; name another folder for what "
            f"{folder} judges"
        )
    return settings
