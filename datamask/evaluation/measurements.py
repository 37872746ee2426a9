"""What trained models need for held-out texts, as arrays."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datamask.errors import RunError
from datamask.evaluation import verdict
from datamask.evaluation.models import learning_rates
from datamask.evaluation.texts import SOURCE_SET
from datamask.evaluation.trials import Trial, unit_of
from datamask.runs.files import read_columns
from datamask.runs.receipt import read_receipt
from datamask.runs.run import Run


def read_bits(run: Run, wanted: list[Trial]) -> tuple[verdict.Bits, dict[str, str]]:
    """Bits by arm, seed, learning rate and document, without rates at which a model diverged.

    Raises:
        RunError: no rate is left.
    """
    rates = learning_rates(run.settings.evaluation)
    names = [unit_of(run, trial).name for trial in wanted]
    paths = [run.storage.fetch(f"{name}.parquet") for name in names]
    read = [_trial_bits(str(path), read_receipt(path).fingerprint) for path in paths]
    diverged = {
        f"{rates[trial.rate]:g}": f"{Path(name).name}: {reason}"
        for trial, name, (reason, _) in zip(wanted, names, read, strict=True)
        if reason
    }
    left = [place for place, rate in enumerate(rates) if f"{rate:g}" not in diverged]
    if not left:
        raise RunError(
            f"{run.address}: evaluation: models diverged at every learning rate "
            f"({next(iter(diverged.values()))}); set lower evaluation.learning_rates"
        )
    seeds = max(trial.seed for trial in wanted) + 1
    documents = max(len(bits) for _, bits in read)
    shape = (len(run.settings.evaluation.arms), seeds, len(left), documents)
    found = np.full(shape, np.nan)
    for trial, (_, bits) in zip(wanted, read, strict=True):
        if trial.rate in left:
            found[trial.arm, trial.seed, left.index(trial.rate)] = bits
    return found, diverged


@functools.lru_cache(maxsize=4096)
def _trial_bits(path: str, fingerprint: str) -> tuple[str | None, npt.NDArray[np.float64]]:
    """Why a trial diverged, and its bits; the fingerprint is part of the key of the cache."""
    bits = read_columns(Path(path), ["bits"])["bits"].to_numpy()
    return read_receipt(Path(path)).metrics["diverged"], bits


def sets_of(held_out: pa.Table) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Every set and which rows are in it; first the sample of all, if the source holds out any."""
    in_all = held_out["in_all"].to_numpy()
    names = np.asarray(held_out["set"].to_pylist(), object)
    if in_all.any():
        yield SOURCE_SET, in_all
    for name in dict.fromkeys(names):
        if name != SOURCE_SET:
            yield str(name), names == name
