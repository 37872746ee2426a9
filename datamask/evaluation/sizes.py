"""Estimate how much text an evaluation needs and has, and its time, before anything is done."""

from __future__ import annotations

from collections.abc import Iterator

from datamask.analysis.summary import totals_of
from datamask.config.evaluation import LEAST_TOKENS
from datamask.config.settings import Settings
from datamask.errors import SettingsError
from datamask.evaluation.models import PRESETS, budget_tokens
from datamask.runs.run import Run

MOST_CHARACTERS = 10
"""Maximum of the mean characters per token: a selection surely has a tenth of its characters as
tokens. English has 4 to 5."""

CHANGE = 2
"""Factor by which text may exceed the old selection's, if that is made again without held-out
texts."""

HELD_OUT = 100
"""Number of documents that a proposed evaluation holds out, within the range of the setting."""

SCORED_PER_SECOND = 100
"""Held-out documents that a `tiny` model scores in a second on one core (docs/evaluation.md)."""


def size_problems(settings: Settings, size: int, before: Run | None) -> Iterator[SettingsError]:
    """Yield a problem if models would need more training tokens than the documents can have.

    A token is at least a byte. The exact tokens of arms are known after they are made.

    Args:
        settings: the new settings.
        size: uncompressed bytes of the source.
        before: the run as it is; if its selection is finished, its text is counted.
    """
    evaluation = settings.evaluation
    if not evaluation.arms or settings.quality.duplicates != "drop":
        return  # A copy takes no bytes of a Parquet file.
    wanted, most, of = budget_tokens(evaluation), size, "the source"
    if before is not None and before.settings.selection == settings.selection:
        characters = _characters(before)
        if characters is not None and any(arm.name == "ours" for arm in evaluation.arms):
            most, of = characters, "the selection"
    if wanted > most * (CHANGE if of == "the selection" else 1):
        text = f"evaluation.tokens: models would be trained on {wanted:,d} tokens, but {of} has "
        text += f"about {most:,d} characters of text"
        fitting = rounded_down(most // MOST_CHARACTERS)
        remedy = f"set evaluation.tokens={fitting}"
        if fitting < LEAST_TOKENS:
            remedy = "select more, or evaluate on a larger source"
        yield SettingsError(f"{text}; {remedy}")


def _characters(run: Run) -> int | None:
    """Return the characters of the arm with the least text; None before there is a selection."""
    if run.state("composition") != "done":
        return None
    totals = totals_of(run)
    known = [totals[name]["characters"] for name in ("selected", "top_quality", "random")]
    least: list[int] = [int(number) for number in known if number is not None]
    return min(least, default=None)


def rounded_down(number: int) -> int:
    """Round down a whole number to two significant digits."""
    digits: int = 10 ** max(len(str(number)) - 2, 0)
    return number // digits * digits


def proposed(run: Run) -> tuple[str, float]:
    """Return the command that evaluates a finished selection, and its seconds of training.

    It trains the smallest models, on one core of any machine, on as much text as the arms surely
    have. The command is empty if the selection has too little text.

    Raises:
        RunError: the composition is missing.
    """
    settings = run.settings
    share, options = 0.0, []
    held_out = sum(1 for _ in settings.evaluation.sets) * HELD_OUT
    if not settings.evaluation.has_texts:
        share = min(0.2, max(0.01, HELD_OUT / max(run.num_documents, 1)))
        share = float(f"{share:.2g}")
        options.append(f"evaluation.hold_out={share:g}")
        held_out = int(share * run.num_documents)
    size, characters = PRESETS["tiny"], _characters(run) or 0
    tokens = min(size.tokens, rounded_down(int(characters * (1 - share)) // MOST_CHARACTERS))
    if tokens < LEAST_TOKENS:
        return "", 0.0
    options.append("evaluation.model=tiny")
    if tokens < size.tokens:
        options.append(f"evaluation.tokens={tokens}")
    models = len(settings.default_arms) * settings.evaluation.seeds * len(size.learning_rates)
    seconds = models * (tokens / size.per_second + min(held_out, 2000) / SCORED_PER_SECOND)
    return "datamask evaluate RUN" + "".join(f" --set {option}" for option in options), seconds
