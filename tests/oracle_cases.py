"""Odd corpora and settings drawn by Hypothesis, real runs of them, and the oracle's verdict."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import hypothesis
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from tests import oracle

FUZZ = int(os.environ.get("DATAMASK_FUZZ", 0))
"""Examples of `make fuzz`, half of them in each test; 0 for the 48 that CI always draws."""

drawn = hypothesis.settings(
    max_examples=FUZZ // 2 or 24,
    derandomize=not FUZZ,
    deadline=None,
    # Shrinking takes minutes; the corpora are small as they are.
    phases=[*Phase] if FUZZ else [Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)
DIMENSION = 8
WORDS = ("river", "Market", "fenêtre", "сад", "信", "music", "🌉", "winter", "paper", "engine")
BLANK = ("", " \n\t", "\u2003\u00a0")
SPECIAL_IDS = ("NA", "null", "nan", "true", "007", "7", "1e5", "-0", "2020-01-01T00:00:00Z")
DUMPS = ("CC-MAIN-2020-05", "b", "B", "", " ", None, "a'b")
LANGUAGES = ("en", "de", "", None)
URLS = (None, "", "https://www.a.org/x", "http://A.org:80/", "//c.net/p?q", "no address")
OURS = ("quality", "Logit", "shard", "SHARD", "Quality", "logit")
NUMBERS = st.integers(-16, 16).map(lambda n: n / 4) | st.sampled_from([0.1, 1 / 3, 1e6, -0.0])


@dataclass(frozen=True)
class Case:
    """A corpus with its score files (name, ids, values) and the settings, without any path."""

    settings: dict
    files: list[oracle.File]
    types: dict[str, pa.DataType]
    scores: dict[str, list[tuple[str, list, list]]]

    def __repr__(self) -> str:
        files = [(file.groups, file.rows.to_dict("list")) for file in self.files]
        return f"Case(settings={self.settings}\n files={files}\n scores={self.scores})"

    def _repr_pretty_(self, printer, cycle: bool) -> None:
        # Hypothesis would print a frame as pandas does, with most of it left out.
        printer.text(repr(self))


def texts(draw, rows: int) -> list:
    """Texts of some words; some are equal, blank or null."""
    codes = draw(st.lists(st.integers(0, 2 * rows), min_size=rows, max_size=rows))
    made = []
    for code in codes:
        chosen = np.random.default_rng(code).choice(WORDS, 3 + code % 9)
        made.append(" ".join(chosen))
    for place in draw(st.lists(st.integers(0, rows - 1), max_size=3)):
        made[place] = draw(st.sampled_from([*BLANK, None]))
    return made


def ids(draw, rows: int) -> tuple[list, pa.DataType]:
    """Unique ids: numbers, also beyond 2^63, dates, or any text."""
    kind = draw(st.sampled_from(["number", "large", "date", "text", "special"]))
    order = draw(st.permutations(range(rows)))
    if kind == "number":
        return [7 * place - 20 for place in order], pa.int64()
    if kind == "large":
        return [2**63 + place for place in order], pa.uint64()
    if kind == "date":
        return [f"2020-{1 + place // 28:02d}-{1 + place % 28:02d}" for place in order], pa.string()
    if kind == "special":
        extra = [f"d{place}" for place in order]
        return [*SPECIAL_IDS, *extra][:rows], pa.string()
    alphabet = st.characters(exclude_categories=["Cs", "Cc"])
    found = st.text(alphabet, min_size=1, max_size=5)
    return draw(st.lists(found, min_size=rows, max_size=rows, unique=True)), pa.large_string()


def with_gaps(draw, values: list, gaps: tuple) -> list:
    """The values, a few of them replaced."""
    values = list(values)
    for place in draw(st.lists(st.integers(0, len(values) - 1), max_size=3)):
        values[place] = draw(st.sampled_from(gaps))
    return values


def column_of(draw, choices, rows: int) -> list:
    """So many values of some."""
    few = draw(st.lists(choices, min_size=1, max_size=rows))
    return [few[place % len(few)] for place in range(rows)]


@st.composite
def score(draw, number: int, is_text_id: bool) -> dict:
    """Settings of one score."""
    return {
        "name": f"s{number}",
        "kind": draw(st.sampled_from(["column", "file"])),
        "column": draw(st.sampled_from(["score", "Ünïcode score"])),
        "normalisation": draw(st.sampled_from(["rank", "z-score", "min-max", "none"])),
        "weight": draw(st.sampled_from([1.0, 0.5, -2.0, 0.0])),
        "missing": draw(st.sampled_from(["error", "drop", "fill", "fill"])),
        "fill_value": draw(st.sampled_from([0.0, -3.5, 2.0])),
    }


@st.composite
def limits(draw) -> list[dict]:
    """Floors and caps of one column, of groups that are in the corpus or not."""
    column, names = draw(
        st.sampled_from(
            [("language", ["en", "de", "fr"]), ("dump", ["b", "B"]), ("domain", ["a.org"])]
        )
    )
    made = []
    for name in draw(st.lists(st.sampled_from([*names, None, "(none)"]), unique=True, max_size=3)):
        floor = draw(st.sampled_from([0.0, 0.05, 0.2])) if name else 0.0
        cap = draw(st.sampled_from([0.2, 0.34, 0.5, 0.9, 1.0]))
        made.append({"column": column, "value": name, "floor": floor, "cap": max(floor, cap)})
    return made


@st.composite
def selections(draw, rows: int, tokens: int, has_caps: bool) -> dict:
    """Settings of the selection; the learner takes few steps."""
    made = {
        "scope": draw(st.sampled_from(["shard", "shard", "corpus"])),
        "rounds": 1,
        "method": draw(st.sampled_from(["mask", "mask", "top_quality", "random"])),
        "metric": draw(st.sampled_from(["disf", "pairwise"])),
        "quality_weight": draw(st.sampled_from([0.0, 0.3, 1.0])),
        "steps": 2,
        "swap_refinement": draw(st.sampled_from([0, 3])),
    }
    budget = draw(st.sampled_from(["ratio", "documents", "tokens", "tokens"][has_caps:]))
    if budget == "ratio":
        made["ratio"] = draw(st.sampled_from([0.05, 0.1, 0.25, 0.3, 0.5, 1.0]))
    elif budget == "documents":
        made["documents"] = draw(st.integers(1, max(1, rows // 2)))
    else:
        made["tokens"] = draw(st.integers(1, max(1, tokens // 3)))
    if budget != "tokens" and draw(st.booleans()):
        epoch = oracle.budget({"selection": made}, rows)
        made["max_repeat"] = draw(st.integers(2, 4))
        made["training_documents"] = draw(st.integers(epoch, epoch * made["max_repeat"]))
    if made["scope"] == "shard" and made["method"] == "mask" and draw(st.booleans()):
        made["metric"] = "facility_location"
    if has_caps or draw(st.booleans()):
        made["limits"] = draw(limits())
    return made


@st.composite
def cases(draw, layout: str = "documents") -> Case:
    """A corpus of 5 to 40 documents in up to four shards, and settings for it."""
    groups = draw(
        st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=3)
    )
    rows = sum(map(sum, groups))
    keys, id_type = ids(draw, rows)
    tokens = column_of(draw, st.integers(0, 30) | st.just(400), rows)
    columns = {
        "id" if layout == "documents" else "chunk_id": (keys, id_type),
        "dump": (column_of(draw, st.sampled_from(DUMPS), rows), pa.string()),
        "language": (column_of(draw, st.sampled_from(LANGUAGES), rows), pa.string()),
        "url": (column_of(draw, st.sampled_from(URLS), rows), pa.string()),
    }
    token_type = draw(st.sampled_from([pa.int64(), pa.float64()]))
    if draw(st.integers(0, 9)) == 7:
        tokens = with_gaps(draw, tokens, (None,))
    columns["token_count"] = (tokens, token_type)
    names = [f"s{n}" for n in range(draw(st.integers(1, 2)))]
    scores = [draw(score(n, id_type == pa.string())) for n in range(len(names))]
    if layout == "documents":
        columns["text"] = (texts(draw, rows), pa.string())
    else:
        vectors = np.random.default_rng(draw(st.integers(0, 99))).normal(size=(rows, DIMENSION))
        columns["feature_arr"] = (vectors.astype(np.float32).tolist(), pa.list_(pa.float32()))
        columns["quality_score"] = (column_of(draw, NUMBERS, rows), pa.float64())
        scores = scores[: draw(st.integers(0, 1))]
    made: dict[str, list[tuple[str, list, list]]] = {}
    for one in scores:
        values = column_of(draw, NUMBERS, rows)
        if one["missing"] != "error" or draw(st.integers(0, 9)) == 7:
            values = with_gaps(draw, values, (None, math.nan, math.inf))
        if one["kind"] == "column":
            columns[one["column"]] = (values, pa.float64())
        else:
            suffix = draw(st.sampled_from(["parquet", "csv", "jsonl"]))
            made[one["name"]] = score_files(draw, suffix, keys, values)
    subset = {}
    if draw(st.integers(0, 9)) == 7:
        for name in draw(st.lists(st.sampled_from(OURS), min_size=1, max_size=2, unique=True)):
            columns[name] = (list(range(rows)), pa.int32())
        subset = draw(st.sampled_from([{}, {"column_prefix": "datamask_"}]))
    frame = pd.DataFrame({name: pd.Series(v, dtype=object) for name, (v, _) in columns.items()})
    bounds = np.cumsum([0, *map(sum, groups)])
    files = [
        oracle.File(frame.iloc[start:stop].reset_index(drop=True), tuple(sizes))
        for start, stop, sizes in zip(bounds, bounds[1:], groups, strict=False)
    ]
    quality = {"duplicates": draw(st.sampled_from(["drop", "drop", "keep"]))}
    prune_fraction = draw(st.sampled_from([None, 0.0, 0.1, 0.3]))
    quality |= {} if prune_fraction is None else {"prune_fraction": prune_fraction}
    quality |= {"scores": scores} if scores else {}
    chosen = {
        "seed": draw(st.integers(0, 3)),
        "source": {"layout": layout},
        "plan": {"rows_per_shard": draw(st.integers(max(3, rows // 3), rows + 5))},
        "quality": quality,
        "embedding": {"method": "lexical", "dimension": DIMENSION},
        "subset": subset,
        "selection": draw(selections(rows, sum(n or 0 for n in tokens), layout == "features")),
    }
    return Case(chosen, files, {name: kind for name, (_, kind) in columns.items()}, made)


def score_files(draw, suffix: str, keys: list, values: list) -> list[tuple[str, list, list]]:
    """The scores in one or two files, in another order, with ids of no document among them."""
    pairs = [pair for pair in zip(keys, values, strict=True) if pair[1] is not None]
    other = -1 if isinstance(keys[0], int) and keys[0] < 2**62 else "of no document"
    if isinstance(keys[0], int) and keys[0] > 2**62:
        other = 2**63 + 999
    pairs = [*reversed(pairs), (other, 1.0)]
    if draw(st.integers(0, 19)) == 17:
        pairs.append(pairs[0])
    half = draw(st.sampled_from([len(pairs), len(pairs) // 2]))
    parts = [pairs[:half], pairs[half:]]
    return [
        (f"{n}.{suffix}", [key for key, _ in part], [number for _, number in part])
        for n, part in enumerate(parts)
        if part
    ]


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


SAID = {
    "score-missing": "score missing",
    "score-twice": "more than once",
    "id-twice": "not unique",
    "column-taken": "column",
    "budget": "to be kept",
    "nothing-left": "no document is left",
    "tokens-missing": "no number of tokens",
    "floor": "floor",
    "cap": "cap",
}
"""What the command says of each kind of refusal."""


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
            run_stage(run, stage, Compute(duckdb_threads=1, duckdb_memory="500MB"))
    except DatamaskError as error:
        return exit_status(error), "\n".join(lines(error))
    return 0, ""


def check_refusal(refused: oracle.Refused, status: int, errors: str) -> None:
    """Whether the command stopped with status 2 and a line for every reason."""
    said = [line for line in errors.splitlines() if line.startswith("datamask: ")]
    assert (status, bool(said)) == (2, True), f"expected refusal {refused}, got {status}: {errors}"
    for kind in refused.args:
        assert any(SAID[kind] in line for line in said), f"{kind} is not said: {errors}"


_count = itertools.count(1)


def check(case: Case, last: str = "composition") -> None:
    """Run a case up to a stage (`masks` or `composition`) and compare everything with the oracle.

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


def judge(settings: dict, documents: pd.DataFrame) -> None:
    """Add `quality` and `dropped` as the oracle has them."""
    documents["quality"] = oracle.combine(settings, documents)
    documents["dropped"] = pd.Series(oracle.drop(settings, documents), dtype=object)


def same(what: str, found: Iterable, expected: Iterable) -> None:
    """Whether two columns are equal (NaN to itself); else their first difference."""
    pairs = [*itertools.zip_longest(found, expected, fillvalue="nothing")]
    for place, (one, other) in enumerate(pairs):
        both_nan = one != one and other != other
        assert both_nan or one == other, f"{what}, row {place}: {one!r}, the oracle says {other!r}"


def close(what: str, found, expected, relative: float, absolute: float) -> None:
    """Whether numbers are equal but for rounding."""
    np.testing.assert_allclose(found, expected, relative, absolute, err_msg=what)


def read(root: Path, stage: str) -> pd.DataFrame:
    """The files of a stage below each other."""
    tables = []
    for path in sorted((root / stage).glob("*.parquet")):
        table = pq.read_table(path)
        tables.append(plain(table))
    assert tables, f"stage {stage} has made nothing"
    return pd.concat(tables, ignore_index=True)


def check_quality(settings: dict, documents: pd.DataFrame, root: Path) -> None:
    """Quality to 1e-12, and every reason for dropping; from then on quality is the published."""
    found = read(root, "quality")
    same("id", found["id"], documents["id"])
    same("row", found["row"], documents["row"])
    published = found["quality"].astype(float).to_numpy()
    close("quality", published, documents["quality"].astype(float).to_numpy(), 1e-12, 1e-12)
    # Sums of equal value may differ in their last bit; the order must be that of the files.
    documents["quality"] = published
    documents["dropped"] = pd.Series(oracle.drop(settings, documents), dtype=object)
    same("dropped", found["dropped"], documents["dropped"])


def check_selection(
    settings: dict, documents: pd.DataFrame, root: Path, is_done: bool = True
) -> None:
    """Which documents the cut keeps, given the logits; adds `logit` and `selected`.

    Raises:
        Refused: caps leave less than the budget; only the logits of an undone run are read.
    """
    # Where shards are compared the logits have a stage of their own, before anything is cut.
    logits = read(root, "learning" if (root / "learning").exists() else "selection").set_index(
        "chunk_id"
    )
    left = documents[documents["dropped"].isna()]
    same("ids of logits", logits.index, left["id"])
    documents["logit"] = documents["id"].map(logits["logit"])
    kept = oracle.keep(settings, documents)
    if not is_done:
        return
    masks = read(root, "selection").set_index("chunk_id")
    documents["logit"] = documents["id"].map(masks["logit"])
    assert masks["selected"].any(), "nothing is selected"
    same("selected", sorted(masks.index[masks["selected"].astype(bool)]), sorted(kept))
    documents["selected"] = documents["id"].isin(kept)


def plain(table: pa.Table) -> pd.DataFrame:
    """A table in object columns, None for null."""
    columns = {n: pd.Series(table[n].to_pylist(), dtype=object) for n in table.column_names}
    return pd.DataFrame(columns)


def composition(root: Path) -> dict[str, pd.DataFrame]:
    """The tables of a run's DuckDB file."""
    import duckdb

    names = ("documents", "totals", "score_summary", "groups", "terms", "shards")
    with duckdb.connect(str(root / "composition.duckdb"), read_only=True) as connection:
        connection.execute(f"SET file_search_path = '{root}'")
        return {name: plain(connection.table(name).to_arrow_table()) for name in names}


def check_terms(settings: dict, documents: pd.DataFrame, tables: dict, root: Path) -> None:
    """Values of the terms and of the objective, from their formulas; float32 sums to 1e-4."""
    embedded = read(root, "embeddings")
    vectors = np.array(embedded["feature_arr"].tolist(), np.float64)
    left = documents[documents["dropped"].isna()].reset_index(drop=True)
    same("ids of embeddings", embedded["chunk_id"], left["id"])
    close("length of vectors", np.linalg.norm(vectors, axis=1), 1.0, 0, 2e-3)
    documents["top_quality"] = documents["id"].isin(oracle.top_quality(settings, documents))
    left = left.assign(top_quality=left["id"].isin(documents["id"][documents["top_quality"]]))
    quality = left["quality"].astype(float).to_numpy()
    is_corpus = oracle.value(settings, "selection.scope") == "corpus"
    parts = [left] if is_corpus else [part for _, part in left.groupby("shard")]
    parts = [part.index.to_numpy() for part in parts if part["selected"].any()]
    weight = oracle.value(settings, "selection.quality_weight", 0.5)
    metric = oracle.value(settings, "selection.metric", "disf")
    signs = {"quality": weight, metric: weight - 1 if metric != "facility_location" else 1 - weight}
    terms = tables["terms"].set_index("term")
    shards = tables["shards"].set_index("shard")
    same("terms", sorted(terms.index), sorted([*signs, "objective"]))
    rounding = 1e-6 * max(1.0, np.abs(quality).max())
    for kind, column in (("selected", "objective"), ("top_quality", "objective_top_quality")):
        masks = left[kind].to_numpy(bool)
        values = [oracle.term_values(vectors[p], quality[p], masks[p]) for p in parts]
        if metric == "disf" and not all(has_spread(vectors[p][masks[p]]) for p in parts):
            continue
        counts = [int(masks[p].sum()) for p in parts]
        for name in signs:
            expected = np.average([value[name] for value in values], weights=counts)
            close(f"{name} of {kind}", float(terms[kind][name]), expected, 1e-4, rounding)
        for value, place in zip(values, parts, strict=True):
            if is_corpus:
                scales, found = terms["scale"], terms[kind]["objective"]
            else:
                shard = int(left["shard"][place[0]])
                footer = pq.read_metadata(root / "selection" / f"{shard:05d}.parquet").metadata
                scales = json.loads(footer[b"datamask"])["metrics"]["scales"]
                found = shards[column][shard]
            expected = sum(sign * value[name] / scales[name] for name, sign in signs.items())
            allowed = 1e-4 + sum(rounding / scales[name] for name in signs)
            close(f"objective of {kind}", float(found), expected, 1e-3, allowed)


def has_spread(vectors: np.ndarray) -> bool:
    """Whether every dimension varies by more than rounding, so that correlations are defined."""
    return len(vectors) < 2 or bool((vectors.std(0) > 1e-2 * np.abs(vectors).max(0)).all())


def check_composition(settings: dict, documents: pd.DataFrame, tables: dict) -> None:
    """Every document and every count of the DuckDB file."""
    found = tables["documents"].sort_values(["shard", "row"])
    scores = [one["name"] for one in oracle.scores_in_force(settings)]
    expected = documents.rename(columns={f"score:{name}": name for name in scores})
    facts = ["id", "shard", "row", "characters", "tokens", "dump", "language", "domain", "dropped"]
    for name in [*facts, *scores, "selected", "top_quality"]:
        same(name, found[name], expected[name])
    sets = {
        "source": documents["id"].notna(),
        "candidates": documents["dropped"].isna(),
        "selected": documents["selected"],
        "top_quality": documents["top_quality"],
    }
    totals = tables["totals"].set_index("selection")
    summary = tables["score_summary"].set_index(["score", "selection"])
    for name, members in sets.items():
        some = expected[members.to_numpy(bool)]
        same(f"documents of {name}", [totals["documents"][name]], [len(some)])
        for unit in ("characters", "tokens"):
            there = [number for number in some[unit] if number is not None]
            same(f"{unit} of {name}", [totals[unit][name]], [sum(there) if there else None])
        for score in ("quality", *scores):
            there = some[score].astype(float).dropna()
            row = summary.loc[(score, name)]
            same(f"missing of {score}", [row["missing"]], [len(some) - len(there)])
            if len(there):
                same(score, [row["least"], row["largest"]], [there.min(), there.max()])
                close(f"mean of {score}", row["mean"], there.mean(), 1e-9, 1e-12)
    groups = tables["groups"]
    for kind in ("dump", "language", "domain"):
        before = documents[kind].value_counts()
        after = documents[kind][documents["selected"]].value_counts()
        rows = {
            name: (
                int(n),
                int(after.get(name, 0)),
                n / before.sum(),
                after.get(name, 0) / sum(after),
            )
            for name, n in before.items()
            if set(before.index) != {oracle.NO_GROUP}
        }
        some = groups[groups["kind"] == kind].drop(columns="kind").to_numpy().tolist()
        found_rows = [(name, *row) for name, *row in sorted(some)]
        same(f"groups of {kind}", found_rows, [(name, *rows[name]) for name in sorted(rows)])


def check_subset(case: Case, documents: pd.DataFrame, root: Path) -> None:
    """The source's columns of every selected document as they were, and ours after them."""
    found = read(root, "subset")
    source = pd.concat([file.rows for file in case.files], ignore_index=True)
    chosen = documents["selected"].to_numpy(bool)
    names = oracle.added(case.settings)
    same("columns", found.columns, [*source.columns, *names])
    key = "id" if "id" in source else "chunk_id"
    same("rows of the subset", [len(found)], [chosen.sum()])
    found = found.assign(order=found[key].map(dict(zip(source[key], source.index, strict=True))))
    found = found.sort_values("order").drop(columns="order").reset_index(drop=True)
    documents = documents.assign(repeat=oracle.repeats(case.settings, documents))
    prefix = len(oracle.value(case.settings, "subset.column_prefix", ""))
    ours = documents[[name[prefix:] for name in names]].set_axis(names, axis=1)
    expected = pd.concat([source, ours], axis=1)[chosen].reset_index(drop=True)
    for name in expected.columns:
        same(f"{name} of the subset", found[name], expected[name])
