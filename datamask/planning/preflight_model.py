"""Check that a mask model fits the settings of a run that it will judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from datamask.config.settings import Settings
from datamask.errors import SettingsError, together
from datamask.objectives.weighted import build_terms
from datamask.runs.run import digest
from datamask.selection.mask_model import about_embedding, about_scores, read_model
from datamask.selection.model_file import read_about

STAGES = ("combined", "quality", "topics", "judged")
"""Stages that read the model."""


def pin_model_of(settings: Settings, pinned_revisions: Mapping[str, str]) -> dict[str, str]:
    """Return the digest of the mask model of `selection.mask_model`, for the stages that read it.

    The model must fit the revisions of the encoder and of scores that are computed.

    Raises:
        SettingsError: scores, encoder or terms are not those of the model.
        InputError: the model is missing.
        CorruptFileError: it is damaged.
    """
    folder = settings.selection.mask_model
    about = read_about(folder)
    read_model(folder, about)
    problems = list(_differences(settings, pinned_revisions, about))
    if problems:
        raise together(problems)
    return {f"{stage}:mask_model": digest(about) for stage in STAGES}


def _differences(
    settings: Settings, pinned_revisions: Mapping[str, str], about: dict[str, Any]
) -> Iterator[SettingsError]:
    def differ(what: str, theirs: object, ours: object) -> SettingsError:
        return SettingsError(
            f"selection.mask_model: learnt with {what} {theirs}, but this run has {ours}; use the "
            "same, or learn a mask of its own"
        )

    ours, theirs = about_embedding(settings, pinned_revisions), about["embedding"]
    for key in sorted({*ours, *theirs}):
        # The revision identifies a model; a copy may have its name.
        if key != "model" and ours.get(key) != theirs.get(key):
            name = "source.windows" if key == "windows" else f"embedding.{key}"
            yield differ(name, _shown(theirs, key), _shown(ours, key))
    for score in settings.scores:
        if score.is_fitted:
            yield SettingsError(
                f"selection.mask_model: score {score.name} is fitted to each run's own source, so "
                "a mask model of another run does not fit; learn a mask of its own"
            )
            return
    known = {score["name"]: score for score in about["scores"]}
    compared = about_scores(settings, pinned_revisions)
    mine = {score["name"]: score for score in compared["scores"]}
    for name in (*known, *(name for name in mine if name not in known)):
        if name not in mine or name not in known:
            yield differ("quality.scores", ", ".join(known), ", ".join(mine))
            return
        for key, value in known[name].items():
            if mine[name][key] != value:
                yield differ(f"{key} of score {name}", repr(value), repr(mine[name][key]))
    if settings.topics is not None and "topics" not in about:
        yield SettingsError(
            "selection.mask_model: its run has no topics, and new ones would be others; unset "
            "topics, or set them in that run and rebuild it"
        )
    terms = {t.objective.name: t.weight for t in build_terms(settings.selection) if t.weight}
    learnt = {term["name"]: term["weight"] for term in about["terms"]}
    if terms != learnt or compared["indicators"] != about["indicators"]:
        yield differ("the objective", about["objective"].replace("`", ""), terms)


def _shown(of: Mapping[str, Any], key: str) -> str:
    """Show a value, and for a revision the model that has it."""
    model = f" of {of['model']}" if key == "revision" and of.get("model") else ""
    return f"{of.get(key)!r}{model}"
