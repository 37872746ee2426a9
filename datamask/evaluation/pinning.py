"""Check and identify what an evaluation reads besides the run, when it is planned."""

from __future__ import annotations

from pathlib import Path

from datamask.config.evaluation import Arm
from datamask.config.loading import parse_settings
from datamask.config.selection import Selection
from datamask.config.settings import Settings
from datamask.errors import SettingsError
from datamask.evaluation.models import PRESETS, configuration
from datamask.hygiene.references import reference_digest
from datamask.runs.opening import open_run
from datamask.source.opening import digest_file
from datamask.source.token_counts import tokenizer_digest

NOTHING_HELD_OUT = (
    "evaluation.hold_out: nothing is held out; set it to a share such as 0.01 (which selects anew, "
    "without those documents), or name texts of your own in evaluation.sets"
)


def pin_evaluation(settings: Settings) -> dict[str, str]:
    """Return digests of all that an evaluation reads from outside of the run.

    These are lists of ids, texts, the model's configuration and the selections of other runs.

    Raises:
        SettingsError: the source has no text; nothing is held out; the model or the tokenizer
            cannot be loaded; a changed setting of `selection` is unknown or out of range.
        InputError: a list of ids, a file of texts or one that an objective reads is unreadable.
        RunError: there is no run at the path of an arm.
    """
    evaluation = settings.evaluation
    if not evaluation.arms:
        return {}
    if settings.source.layout == "features":
        raise SettingsError(
            "evaluation: layout `features` has no text to train on; leave out evaluation.arms"
        )
    if not evaluation.has_texts:
        raise SettingsError(NOTHING_HELD_OUT)
    pins = {}
    for arm in evaluation.arms:
        if arm.kind in ("ids", "texts"):
            pins[f"arm:{arm.name}"] = reference_digest(arm.path, arm.columns)
        elif arm.kind == "run":
            pins[f"arm:{arm.name}"] = open_run(arm.path).fingerprint_all("selection")
        elif arm.change:
            terms = changed_selection(settings.selection, arm).more_terms
            paths = {term.path for term in terms if term.path}
            pins |= {f"arms:{path}": digest_file(path) for path in paths}
    if evaluation.model not in PRESETS:
        configuration(evaluation, vocabulary=PRESETS["15M"].vocabulary)
        pins["training:model"] = digest_file(f"{evaluation.model}/config.json")
        if Path(evaluation.model, "tokenizer.json").is_file():
            pins["tokenizer:tokenizer"] = tokenizer_digest(evaluation.model, "evaluation.model")
    return pins


def changed_selection(selection: Selection, arm: Arm) -> Selection:
    """Return the settings of an arm that selects otherwise, shard by shard.

    Raises:
        SettingsError: as in `parse_settings`.
    """
    change = {"scope": "shard", **arm.change}
    try:
        changed: Selection = parse_settings(selection.changed(change), Selection)
    except SettingsError as error:
        raise SettingsError(f"evaluation.arms {arm.name}: {error}") from None
    return changed
