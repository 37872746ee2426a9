"""Drawn cases on disk, real runs of them, and the oracle's verdict on runs and refusals."""

import contextlib
import csv
import io
import itertools
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests import oracle
from tests.oracle_cases import FUZZ, Case
from tests.oracle_comparison import (
    check_composition,
    check_quality,
    check_selection,
    check_subset,
    check_terms,
    composition,
)

SAID = {
    "score-missing": "score missing",
    "score-twice": "more than once",
    "id-twice": "not unique",
    "column-taken": "column",
    "budget": "to be kept",
    "nothing-left": "no document is left",
    "tokens-missing": "no number of tokens",
    "no-such-topic": "there is no topic",
    "floor": "floor",
    "cap": "cap",
}
"""What the command says of each kind of refusal."""

_count = itertools.count(1)


def check(case: Case, last: str = "composition") -> None:
    """Run a case up to `selection` or `composition` and compare everything with the oracle.

    Raises:
        AssertionError: the run or a refusal differs from what the oracle says.
    """
    number = next(_count)
    if FUZZ and number % 50 == 0:
        print(f"{number} examples", file=sys.__stderr__, flush=True)
        check_command(case)
    with written(case) as (settings, config, root):
        planned = command("plan", str(root), "--config", str(config))
        try:
            documents = oracle.read_source(settings, case.files)
        except oracle.Refused as refused:
            check_refusal(refused, *planned)
            return
        assert planned[0] == 0, planned[1]
        judge(settings, documents)
        done = stages(root, "quality")
        try:
            oracle.check_left(settings, documents)
        except oracle.Refused as refused:
            check_refusal(refused, *done)
            return
        assert done[0] == 0, done[1]
        check_quality(settings, documents, root)
        done = stages(root, last)
        try:
            check_selection(settings, documents, root, is_done=done[0] == 0)
        except oracle.Refused as refused:
            check_refusal(refused, *done)
            return
        assert done[0] == 0, done[1]
        if last != "selection":
            tables = composition(root)
            check_terms(settings, documents, tables, root)
            check_composition(settings, documents, tables)
            check_subset(case, documents, root)


def check_command(case: Case) -> None:
    """`datamask rebuild` from text to report in a process of its own: refusal or selection."""
    with written(case) as (settings, config, root):
        arguments = [sys.executable, "-m", "datamask.cli.main", "rebuild", root, "--config", config]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        try:
            documents = oracle.read_source(settings, case.files)
            judge(settings, documents)
            oracle.check_left(settings, documents)
            check_quality(settings, documents, root)
            check_selection(settings, documents, root, is_done=done.returncode == 0)
        except oracle.Refused as refused:
            check_refusal(refused, done.returncode, done.stderr)
            return
        assert done.returncode == 0, done.stderr
        check_subset(case, documents, root)
        assert (root / "report.html").exists()


def check_refusal(refused: oracle.Refused, status: int, errors: str) -> None:
    """Return True if the command stopped with status 2 and a line for every reason."""
    said = [line for line in errors.splitlines() if line.startswith("datamask: ")]
    assert (status, bool(said)) == (2, True), f"expected refusal {refused}, got {status}: {errors}"
    for kind in refused.args:
        assert any(SAID[kind] in line for line in said), f"{kind} is not said: {errors}"


def judge(settings: dict, documents: pd.DataFrame) -> None:
    """Add `quality` and `dropped` as the oracle has them."""
    documents["quality"] = oracle.combine(settings, documents)
    documents["dropped"] = pd.Series(oracle.drop(settings, documents), dtype=object)


@contextlib.contextmanager
def written(case: Case) -> Iterator[tuple[dict, Path, Path]]:
    """A case on disk: its settings with their paths, the file they are in, and the run's folder."""
    # Each of the many small files is synced; in memory that costs nothing.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as name:
        folder = Path(name)
        settings = write(case, folder)
        config = folder / "settings.yaml"
        config.write_text(yaml.safe_dump(settings, allow_unicode=True), "utf-8")
        yield settings, config, folder / "run"


def write(case: Case, folder: Path) -> dict:
    """Write source and score files; the settings with their paths."""
    kind = case.types["id" if "id" in case.types else "chunk_id"]
    source = folder / "source"
    source.mkdir()
    for number, file in enumerate(case.files):
        arrays = {
            name: pa.array(file.rows[name].tolist(), kind, from_pandas=False)
            for name, kind in case.types.items()
        }
        table = pa.table(arrays)
        with pq.ParquetWriter(source / f"{number}.parquet", table.schema) as writer:
            start = 0
            for size in file.groups:
                writer.write_table(table.slice(start, size))
                start += size
    settings = json.loads(json.dumps(case.settings))
    settings["source"]["path"] = str(source)
    for one in settings["quality"].get("scores", []):
        if one["kind"] == "file":
            one["path"] = str(folder / one["name"])
            Path(one["path"]).mkdir()
            for name, keys, values in case.scores[one["name"]]:
                write_scores(
                    Path(one["path"]) / name,
                    one.get("column", "score"),
                    pa.array(keys, kind),
                    values,
                )
    return settings


def write_scores(path: Path, column: str, ids: pa.Array, values: list) -> None:
    """One file of scores, of the kind that its name says."""
    keys = ids.to_pylist()
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"id": ids, column: pa.array(values, pa.float64())}), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["id", column])
            writer.writerows(zip(keys, values, strict=True))
    else:
        numbers = [value if math.isfinite(value) else None for value in values]
        lines = [json.dumps({"id": k, column: v}) for k, v in zip(keys, numbers, strict=True)]
        path.write_text("\n".join(lines) + "\n", "utf-8")


def command(*arguments: str) -> tuple[int, str]:
    """The real command in this process: exit status and standard error."""
    from datamask.cli.main import main

    errors = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["datamask", *arguments]),
        contextlib.redirect_stderr(errors),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0), errors.getvalue()
    return 0, errors.getvalue()


def stages(root: Path, last: str) -> tuple[int, str]:
    """Do the stages up to one; as `command`."""
    from datamask.config.compute import Compute
    from datamask.errors import DatamaskError, exit_status, lines
    from datamask.execution.pipeline import run_stage
    from datamask.runs.opening import open_run
    from datamask.runs.stages import stages_of

    run = open_run(root)
    names = stages_of(run.settings)
    try:
        for stage in names[: names.index(last) + 1]:
            run_stage(run, stage, Compute(duckdb_memory="500MB"))
    except DatamaskError as error:
        return exit_status(error), "\n".join(lines(error))
    return 0, ""
