"""A run: its shards, the names of its files, their fingerprints, and the work that remains.

Every file carries the fingerprint of what determines it: the hash of its stage's version and
settings and of its inputs' fingerprints. The chain is computed from run.json and plan.parquet
alone. A missing or stale file is work to do; nothing else is state.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import pkgutil
import shlex
from collections.abc import Iterable
from dataclasses import astuple, dataclass, field
from functools import cached_property
from itertools import groupby, starmap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datamask.config import recipe
from datamask.config.settings import Settings
from datamask.errors import CorruptFileError, RunError
from datamask.runs import schemas
from datamask.runs.files import read_columns, reading
from datamask.runs.receipt import Receipt, canonical_json, read_receipt
from datamask.runs.stages import STAGES, Stage, Unit, owner_of, stages_of
from datamask.runs.subset_files import (
    SubsetFile,
    expected_documents,
    file_groups,
    planned_dumps,
    subset_files,
)
from datamask.storage.local import Storage
from datamask.storage.names import inside


def digest(*parts: Any) -> str:
    """Hash plain values, models or fingerprints into 32 hexadecimal digits."""
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:32]


def shard_seed(seed: int, shard: int) -> int:
    """Return the seed of a shard, in [0, 2**63). It depends on the run's seed and the number."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{shard}".encode()).digest()[:8]) >> 1


@dataclass(frozen=True)
class Run:
    """A run with its settings as in run.json. Use `open_run` or `create_run`."""

    storage: Storage
    settings: Settings
    pinned_revisions: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The local folder of all local paths."""
        return self.storage.root

    @property
    def address(self) -> str:
        """The run's URL or folder, as users give it and other machines open it."""
        return self.storage.address

    @cached_property
    def in_force(self) -> Settings:
        """The settings, with what follows from examples; RunError before `quality` is done."""
        if not self.settings.pruning_follows:
            return self.settings
        [figures] = self.receipt("example_models").metrics.values()
        weight, metrics = recipe.following(figures["auc"])[1], self.receipt("quality").metrics
        return self.settings.resolved(metrics["prune_fraction"], weight)

    @property
    def plan_path(self) -> Path:
        """The local path of plan.parquet, which assigns rows to shards."""
        return self.fetch("plan.parquet")

    @cached_property
    def pieces(self) -> tuple[schemas.Piece, ...]:
        """The plan, in order of shard.

        Raises:
            RunError: the run has not been planned.
            CorruptFileError: the plan is damaged.
        """
        path = self.plan_path
        if not path.exists():
            command = f"datamask plan {shlex.quote(self.address)}"
            raise RunError(f"{self.address}: no plan yet; run `{command}` first")
        table = read_columns(path)
        if not table.num_rows or not table.schema.equals(schemas.PLAN):
            raise CorruptFileError(f"{path}: not a plan of datamask; delete it and relaunch")
        columns = (column.to_pylist() for column in table.columns)
        return tuple(starmap(schemas.Piece, zip(*columns, strict=True)))

    @cached_property
    def plan_metadata(self) -> dict[bytes, bytes]:
        """What plan.parquet says besides its rows. It grows with the shards, so is read once."""
        return dict(pq.read_metadata(self.plan_path).metadata or {})

    @cached_property
    def shard_pieces(self) -> tuple[tuple[schemas.Piece, ...], ...]:
        """The pieces of the plan, grouped by shard."""
        return tuple(tuple(of) for _, of in groupby(self.pieces, lambda piece: piece.shard))

    @property
    def num_shards(self) -> int:
        """Number of shards in the plan."""
        return len(self.shard_pieces)

    def shard_rows(self, shard: int) -> int:
        """Return the number of documents in a shard."""
        return sum(piece.rows for piece in self.shard_pieces[shard])

    @property
    def num_documents(self) -> int:
        """Number of documents in the source."""
        return sum(piece.rows for piece in self.pieces)

    @cached_property
    def subset_files(self) -> list[SubsetFile]:
        """The files of the subset, from the plan and the settings."""
        rows = [self.shard_rows(shard) for shard in range(self.num_shards)]
        sizes = [sum(piece.bytes for piece in pieces) for pieces in self.shard_pieces]
        with reading(self.plan_path):
            dumps = planned_dumps(self.plan_metadata)
        kept = expected_documents(self.settings.selection, self.num_documents, sum(sizes))
        return subset_files(rows, sizes, kept, self.settings.subset.file_bytes, dumps)

    @cached_property
    def subset_groups(self) -> list[int]:
        """The group of each file of the subset. One worker writes a group (`file_groups`)."""
        return file_groups(self.subset_files)

    @property
    def last_round(self) -> int:
        """The first round that has settled, else the next round, at most `selection.rounds`.

        0 if shards exchange nothing. The number depends on `totals/` alone.
        """
        most = self.settings.selection.num_rounds
        for number in range(1, most):
            is_done = self.state("round_total", number) == "done"
            if not is_done or self.receipt("round_total", number).metrics["settled"]:
                return number
        return most

    def round_units(self, number: int) -> range:
        """Return the units of stage `round` that make up a round (from 1), in order of shard.

        A unit is one shard in one round: (number - 1) · num_shards + shard.
        """
        return range((number - 1) * self.num_shards, number * self.num_shards)

    def units(self, stage: str) -> list[Unit]:
        """List the units of a stage whose units are not shards, as far as they are known now."""
        return list(pkgutil.resolve_name(STAGES[stage].units)(self))

    def shard_of(self, stage: str, unit: int) -> int:
        """Return the shard of a unit, for a stage in `SHARD_STAGES` or `round`."""
        return unit % self.num_shards if stage == "round" else unit

    def unit_label(self, stage: str, unit: int) -> str:
        """Name a unit in messages, as in the name of its file: its shard, or its own name."""
        return Path(self.name(stage, unit)).stem

    def folder_of(self, stage: str, unit: int) -> str:
        """Return the stage's name; for a unit of stage `round` with its round: `round/02`."""
        return f"round/{unit // self.num_shards + 1:02d}" if stage == "round" else stage

    def lock_of(self, stage: str, unit: int | None) -> str:
        """Name the lock of a unit (it protects the unit's files), or of a whole stage (None)."""
        if unit is None or not STAGES[stage].in_parallel:
            return stage
        # No number at the end: it protects several files, or a file that has another name.
        if STAGES[stage].each == "file":
            return f"{stage}-{self.subset_groups[unit]:05d}-group"
        if STAGES[stage].each == "unit":
            return f"{stage}-{unit:05d}-unit"
        return f"{self.folder_of(stage, unit)}-{self.shard_of(stage, unit):05d}".replace("/", "-")

    def num_units(self, stage: str) -> int:
        """Return the number of files that a stage makes, as far as it is known now."""
        if stage == "round":
            return self.last_round * self.num_shards
        if stage == "round_total":
            return self.last_round + 1
        if STAGES[stage].file:
            return 1
        if STAGES[stage].units:
            return len(self.units(stage))
        return len(self.subset_files) if stage == "subset" else self.num_shards

    def path(self, stage: str, unit: int = 0) -> Path:
        """Return the path of a stage's output, for reading."""
        return self.fetch(self.name(stage, unit))

    def read_output(self, stage: str, unit: int = 0, columns: list[str] | None = None) -> pa.Table:
        """Read a stage's output, or these columns of it (`read_columns`), without its receipt."""
        return read_columns(self.path(stage, unit), columns)

    def local_path(self, stage: str, unit: int = 0) -> Path:
        """Return the path where a stage's output belongs on this machine, for writing."""
        return inside(self.root, self.name(stage, unit))

    def name(self, stage: str, unit: int = 0) -> str:
        """Name a stage's output within the run."""
        if STAGES[stage].file:
            return STAGES[stage].file.format(unit)
        if stage == "subset":
            return f"subset/train-{unit:05d}-of-{len(self.subset_files):05d}.parquet"
        return f"{self._unit_name(stage, unit)}{STAGES[stage].suffix}"

    def beside(self, stage: str, unit: int) -> list[str]:
        """The names of the files that a unit writes besides its own; by a glob, those there are."""
        names: list[str] = []
        own = Path(self._unit_name(stage, unit)).name if STAGES[stage].beside else ""
        for pattern in STAGES[stage].beside:
            folder, _, name = pattern.format(unit, name=own).rpartition("/")
            names += self.storage.list(folder, name) if "*" in name else [f"{folder}/{name}"]
        return names

    def _unit_name(self, stage: str, unit: int) -> str:
        if STAGES[stage].units:
            return self.units(stage)[unit].name
        return f"{self.folder_of(stage, unit)}/{self.shard_of(stage, unit):05d}"

    def record_path(self, stage: str, unit: int = 0) -> Path:
        """Return the local path of the record of a unit's output, with its `WorkRecord`."""
        return inside(self.root, self.storage.record_name(self.name(stage, unit)))

    def log_path(self, stage: str, unit: int = 0) -> Path:
        """Return the local path of a unit's log, until the unit is done."""
        return inside(self.root, f"logs/{self._unit_name(stage, unit)}.log")

    def fetch(self, file: Path | str) -> Path:
        """Fetch a file, given its local path or its name, and return its local path.

        The path is free if the run has no such file. The file's checksum is compared here.

        Raises:
            CorruptFileError: it is damaged, or missing beside its output, which is set aside.
        """
        name = file if isinstance(file, str) else file.relative_to(self.root).as_posix()
        owner = owner_of(name)
        try:
            path = self.storage.fetch(name)
            # Users may delete what the report keeps for its next version.
            is_needed = owner and owner != self.name("report") and not path.exists()
            if is_needed and self.storage.noted_sha256(name):
                raise CorruptFileError(f"{path}: missing; a relaunch makes it again with {owner}")
            return path
        except CorruptFileError:
            if owner:
                self.storage.set_aside(owner)
            raise

    @cached_property
    def _known(self) -> dict[tuple[str, int], str]:
        return {}

    @cached_property
    def _chosen(self) -> dict[str, list[Any]]:
        """The settings and pinned revisions that determine the outputs, by stage; plain data."""
        chosen = {}
        for name, stage in STAGES.items():
            chosen[name] = [stage.settings(self.settings), self.pinned(stage)]
        return dict(json.loads(canonical_json(chosen)))

    @cached_property
    def _stages(self) -> frozenset[str]:
        return frozenset(stages_of(self.settings))

    def fingerprint(self, stage: str, unit: int = 0) -> str:
        """Return the fingerprint that the output of a stage and unit has if it is up to date."""
        if (key := (stage, unit)) not in self._known:
            self._known[key] = self._compute_fingerprint(STAGES[stage], unit)
        return self._known[key]

    def _compute_fingerprint(self, stage: Stage, unit: int) -> str:
        if stage.units:
            return self._unit_fingerprint(stage, self.units(stage.name)[unit])
        inputs: list[Any] = self._input_fingerprints(stage, unit)
        if stage.reads_source:
            pieces = self.pieces if stage.file else self.shard_pieces[unit]
            inputs += schemas.identify_rows(pieces, self.settings, self.pinned_revisions)
        if stage.name == "subset":
            inputs += [*astuple(self.subset_files[unit]), len(self.subset_files)]
        return digest(stage.name, stage.version, unit, *self._chosen[stage.name], inputs)

    def _unit_fingerprint(self, stage: Stage, unit: Unit) -> str:
        inputs = [*self._input_fingerprints(stage, 0), *starmap(self.fingerprint, unit.after)]
        settings, name = [stage.settings(self.settings), unit.settings], Path(unit.name).name
        return digest(stage.name, stage.version, name, settings, self.pinned(stage), inputs)

    def pinned(self, stage: Stage) -> dict[str, str]:
        """Return the pinned revisions that a stage depends on."""
        names = (stage.name, *stage.pinned_with)
        return {k: v for k, v in self.pinned_revisions.items() if k.partition(":")[0] in names}

    def _input_fingerprints(self, stage: Stage, unit: int) -> list[str]:
        """List the fingerprints of inputs: rounds read the round before, other stages the last."""
        if stage.name == "round_total":
            if unit == 0:
                return [self.fingerprint_all("corpus_statistics")]
            shards = [self.fingerprint("round", number) for number in self.round_units(unit)]
            return [self.fingerprint("round_total", unit - 1), digest(shards)]
        shard, rounds = self.shard_of(stage.name, unit), self.settings.selection.num_rounds
        before = unit // self.num_shards if stage.name == "round" else rounds
        inputs = []
        for name in filter(self._stages.__contains__, stage.after):
            if name != "round":
                inputs.append(self.fingerprint(name, shard))
            elif before:
                inputs.append(self.fingerprint(name, self.round_units(before)[shard]))
        for name in filter(self._stages.__contains__, stage.after_all):
            total = name == "round_total"
            inputs.append(self.fingerprint(name, before) if total else self.fingerprint_all(name))
        return [*inputs, *map(self.fingerprint_all, stage.more_inputs(self.settings))]

    def fingerprint_all(self, stage: str) -> str:
        """Return one fingerprint for all outputs of a stage, except of extra units."""
        if (key := (stage, -1)) not in self._known:
            units = self.units(stage) if STAGES[stage].units else ()
            first = self.num_units(stage) - sum(unit.is_extra for unit in units)
            self._known[key] = digest([self.fingerprint(stage, unit) for unit in range(first)])
        return self._known[key]

    def state(self, stage: str, unit: int = 0) -> str:
        """Return `done`, `stale` (made from something else) or `missing` (absent or unreadable)."""
        return self.states(stage, [unit])[0]

    def state_of(self, path: Path, fingerprint: str) -> str:
        """Return the state of any file of the run that should have this fingerprint."""
        return self._compared([path.relative_to(self.root).as_posix()], [fingerprint])[0]

    def states(self, stage: str, units: Iterable[int] | None = None) -> list[str]:
        """Return the current state of every unit (or of *units*)."""
        wanted = list(range(self.num_units(stage)) if units is None else units)
        if STAGES[stage].units:
            listed = self.units(stage)  # List the units once, not for each unit.
            names = [f"{listed[index].name}{STAGES[stage].suffix}" for index in wanted]
            expected = [self._unit_fingerprint(STAGES[stage], listed[index]) for index in wanted]
            return self._compared(names, expected)
        names = [self.name(stage, unit) for unit in wanted]
        return self._compared(names, (self.fingerprint(stage, unit) for unit in wanted))

    def _compared(self, names: list[str], due: Iterable[str]) -> list[str]:
        """Return the states of files that should have these fingerprints."""
        noted = self.storage.fingerprints(names)
        return [
            "done" if noted.get(name) == fingerprint else "stale" if noted.get(name) else "missing"
            for name, fingerprint in zip(names, due, strict=True)
        ]

    def remaining(
        self, stage: str, units: Iterable[int] | None = None, *, force: bool = False
    ) -> list[int]:
        """List the units of a stage (or of *units*) that are not done; with *force*, all of them.

        Raises:
            RunError: a unit does not exist.
        """
        count = self.num_units(stage)
        wanted = list(range(count)) if units is None else sorted(set(units))
        unknown = [unit for unit in wanted if not 0 <= unit < count]
        if unknown:
            raise RunError(f"{stage}: no shard {unknown[0]}; the plan has 0 to {count - 1}")
        if force:
            return wanted
        states = self.states(stage, wanted)
        return [unit for unit, state in zip(wanted, states, strict=True) if state != "done"]

    def receipt(self, stage: str, unit: int = 0) -> Receipt:
        """Read the receipt of an up-to-date output.

        Raises:
            RunError: the output is missing or stale.
        """
        path, state = self.path(stage, unit), "missing"
        with contextlib.suppress(FileNotFoundError, CorruptFileError):
            receipt = read_receipt(path)
            if receipt.fingerprint == self.fingerprint(stage, unit):
                return receipt
            state = "stale"
        command = f"datamask rerun-failed {shlex.quote(self.address)}"
        raise RunError(f"{path}: {state}; run stage `{stage}` first (`{command}`)")

    def make_receipt(
        self, stage: str, unit: int, rows: int, metrics: dict[str, Any] | None = None
    ) -> Receipt:
        """Make a receipt with the unit's current fingerprint."""
        return Receipt(stage, unit, self.fingerprint(stage, unit), rows, metrics or {})
