"""Select by the recipe: a run in a temporary folder, which does what it does with files.

So the same documents, scores and settings lead to the same selection in memory and on files. A
document's id is its row, with leading zeros.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.inputs import Source
from datamask.config.settings import Settings
from datamask.errors import InputError, SettingsError
from datamask.execution.pipeline import run_stage
from datamask.in_memory.documents import EXAMPLES, GIVEN, QUALITY_AS_BEFORE, Documents
from datamask.in_memory.selected import Selected
from datamask.planning.applying import settings_to_apply
from datamask.planning.plan import plan_run
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from datamask.source.opening import resolve_path


def select_by_run(documents: Documents, sections: Mapping[str, Any], compute: Compute) -> Selected:
    """Select by a run on the documents up to its selection; errors are as in `rebuild`.

    *sections* are for `Documents.settings`.
    """
    from datamask.in_memory.direct_judge import is_function_of_document  # This imports torch.

    home = Path(tempfile.mkdtemp(prefix="datamask-"))
    judge = None
    try:
        documents.write(home)
        settings = documents.settings(home, sections)
        with naming_arguments(home):
            run = select_in(home / "run", settings, compute)
        mask, logits, dropped, values = result_of(run)
        metrics, chosen = run.receipt("selection", 0).metrics, run.in_force.selection
        note = _note(run, dropped)
        is_alone = documents.examples is None and not documents.scores
        if is_alone and "mask_model" in stages_of(settings) and is_function_of_document(chosen):
            judge = RunJudge(home, run, compute)
    finally:
        if judge is None:
            shutil.rmtree(home, ignore_errors=True)
    quality = values if documents.are_texts and documents.quality is None else documents.quality
    outcome = (mask, logits, quality, chosen, settings.seed, metrics)
    return Selected(*outcome, note, dropped, documents.are_texts, judge)


@contextlib.contextmanager
def naming_arguments(home: Path) -> Iterator[None]:
    """Name the arguments of `select` in errors, in place of the files that the run reads."""
    try:
        yield
    except InputError as error:
        for file, name in {EXAMPLES: "examples", "source/documents.parquet": "documents"}.items():
            if str(error.path) == resolve_path(str(home / file)):
                raise InputError(f"{name}: {error.problem}", row=error.row) from None
        raise


def select_in(root: Path, settings: Settings, compute: Compute) -> Run:
    """Plan a run and do its stages up to `selection`."""
    run = plan_run(root, settings, compute)
    for stage in stages_of(run.settings, last="selection"):
        run_stage(run, stage, compute)
    return run


def result_of(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return mask, logits, reasons for dropping and quality of all N documents; shapes N.

    A dropped document has logit NaN, and the others have the reason None.
    """
    shards = range(run.num_shards)
    table = pa.concat_tables(
        run.read_output("quality", shard, ["dropped", "quality"]) for shard in shards
    )
    dropped = np.array(table["dropped"].to_pylist(), object)
    survives = np.array([reason is None for reason in dropped])
    made = pa.concat_tables(
        run.read_output("selection", shard, ["logit", "selected"]) for shard in shards
    )
    mask, logits = np.zeros(len(dropped), bool), np.full(len(dropped), np.nan, np.float32)
    mask[survives] = made["selected"].to_numpy()
    logits[survives] = made["logit"].to_numpy()
    return mask, logits, dropped, table["quality"].to_numpy()


def _note(run: Run, dropped: np.ndarray) -> str:
    """Say what was dropped, and which settings were in force because of examples."""
    notes = []
    if counts := Counter(reason for reason in dropped if reason):
        shown = ", ".join(f"{count:,d} {reason}" for reason, count in sorted(counts.items()))
        notes.append(f"Dropped before: {shown}.")
    if run.settings.pruning_follows:
        pruned, weight = run.in_force.prune_fraction, run.in_force.selection.quality_weight
        notes.append(
            f"As the examples decide: prune_fraction={pruned:g}, quality_weight={weight:g}."
        )
    if run.settings.has_heuristic_alone and run.settings.source.layout == "documents":
        notes.append("Quality is a heuristic of the texts' form, which prunes and does not rank.")
    if run.settings.embedding.method == "lexical":
        notes.append("Embeddings are lexical (shared wording, not meaning); name a model.")
    return " ".join(notes)


class RunJudge:
    """Judges new documents by the mask model of a run, whose folder lives as long as this does."""

    def __init__(self, home: Path, run: Run, compute: Compute) -> None:
        self.home, self.run, self.compute = home, run, compute
        weakref.finalize(self, shutil.rmtree, home, ignore_errors=True)

    def __call__(self, documents: Documents) -> np.ndarray:
        """Return the logits of documents; float32, NaN if dropped."""
        if (documents.quality is not None) != (self.run.settings.scores[0].name == GIVEN):
            raise SettingsError(QUALITY_AS_BEFORE)
        for stage in stages_of(self.run.settings, last="mask_model"):
            run_stage(self.run, stage, self.compute)
        with tempfile.TemporaryDirectory(dir=self.home) as folder:
            source = documents.write(Path(folder))
            settings = settings_to_apply(self.run, Source(path=str(source)))
            run = select_in(Path(folder) / "run", settings, self.compute)
            return result_of(run)[1]
