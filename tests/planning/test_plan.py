"""The cut, the checks before it, and what happens when the input changes."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.errors import InputError
from datamask.planning.plan import plan_run
from datamask.planning.preflight_folder import folder_problems
from datamask.planning.preflight_rows import check_rows
from datamask.planning.preview import cut
from datamask.runs.opening import run_storage
from datamask.runs.run import Run
from datamask.source.opening import list_files
from datamask.source.reading import SourceFile, read_footers


@pytest.fixture(autouse=True)
def _pin(monkeypatch: pytest.MonkeyPatch) -> None:
    pin = {"embeddings:model": "pinned"}
    monkeypatch.setattr("datamask.planning.preview.pin_model", lambda embedding: pin)


def write(folder: Path, sizes: list[int], *, group: int = 3, start: int = 0, **more: Any) -> Path:
    """One file per size, rows numbered through."""
    folder.mkdir(exist_ok=True)
    for number, size in enumerate(sizes):
        ids = [f"d{i:04d}" for i in range(start, start + size)]
        table = {"id": pa.array(ids, pa.string()), "text": pa.array(ids, pa.string()), **more}
        pq.write_table(pa.table(table), folder / f"{number:03d}.parquet", row_group_size=group)
        start += size
    return folder


def plan(tmp_path: Path, folder: Path, root: str = "run", **groups: Any) -> Run:
    """Plan a folder of files in shards of four rows, with more or other groups of settings."""
    data = {
        "source": {"path": str(folder)},
        "plan": {"rows_per_shard": 4},
        "embedding": {"method": "lexical"},
        **groups,
    }
    return plan_run(tmp_path / root, parse_settings(data))


@given(
    layout=st.lists(st.lists(st.integers(0, 30), max_size=4), min_size=1, max_size=6),
    width=st.integers(1, 50),
    rows_per_shard=st.integers(1, 25),
    bytes_per_shard=st.integers(1, 600),
)
@settings(max_examples=200, deadline=None)
def test_every_row_is_in_exactly_one_shard_in_order(layout, width, rows_per_shard, bytes_per_shard):
    """For any files and row groups the pieces list all rows once, within the limits."""
    files = [
        SourceFile(f"{i}", 0, "", tuple((rows, rows * width) for rows in groups), pa.schema([]))
        for i, groups in enumerate(layout)
    ]
    pieces = cut(files, rows_per_shard, bytes_per_shard)
    seen = []
    for piece in pieces:
        groups = layout[int(piece.path)]
        start = sum(groups[: piece.first_row_group]) + piece.skip_rows
        assert piece.skip_rows < max(groups[piece.first_row_group], 1)
        last = piece.first_row_group + piece.num_row_groups
        assert sum(groups[: last - 1]) < start + piece.rows <= sum(groups[:last])
        seen += [(int(piece.path), start + row) for row in range(piece.rows)]
    assert seen == [(i, row) for i, groups in enumerate(layout) for row in range(sum(groups))]
    shards = [piece.shard for piece in pieces]
    assert shards == sorted(shards) and set(shards) == set(range(len(set(shards))))
    for shard in set(shards):
        rows = sum(piece.rows for piece in pieces if piece.shard == shard)
        size = sum(piece.bytes for piece in pieces if piece.shard == shard)
        assert rows <= rows_per_shard
        assert size <= bytes_per_shard or rows == 1


def test_tiny_files_are_grouped_and_a_huge_row_group_is_split(tmp_path):
    """Shards fill up whatever the files' sizes."""
    tiny = plan(tmp_path, write(tmp_path / "tiny", [1] * 12), "r1")
    assert [tiny.shard_rows(shard) for shard in range(tiny.num_shards)] == [4, 4, 4]
    huge = plan(tmp_path, write(tmp_path / "huge", [14], group=14), "r2")
    assert [huge.shard_rows(shard) for shard in range(huge.num_shards)] == [3, 4, 3, 4]
    assert [p.skip_rows for p in huge.pieces] == [0, 3, 7, 10]


def test_a_second_plan_is_the_first_and_bytes_are_equal(tmp_path):
    """Planning again changes nothing; another folder gets the same bytes."""
    source = write(tmp_path / "in", [5, 5])
    first = plan(tmp_path, source)
    stamp = first.plan_path.stat().st_mtime_ns
    assert plan(tmp_path, source).pieces == first.pieces
    assert first.plan_path.stat().st_mtime_ns == stamp
    other = plan(tmp_path, source, "other")
    for name in ("plan.parquet", "run.json"):
        assert (other.root / name).read_bytes() == (first.root / name).read_bytes()


def test_the_first_repeated_ids_of_the_source_are_the_examples(tmp_path):
    """Whatever their order as text; they are read again from a later row group."""
    source = tmp_path / "in"
    source.mkdir()
    for name, found in {"0": list("zyxwvu"), "1": list("auxvby")}.items():
        texts = pa.array(found)
        table = pa.table({"id": texts, "text": texts})
        pq.write_table(table, source / f"{name}.parquet", row_group_size=2)
    with pytest.raises(InputError) as caught:
        plan(tmp_path, source)
    shown = [part.rpartition("'")[0][-1] for part in str(caught.value).split(" 2 times in ")[:-1]]
    assert "4 ids are not unique" in str(caught.value)
    assert shown == ["y", "x", "v"]


@pytest.mark.parametrize("workers", [1, 4])
def test_problems_are_in_the_order_of_files(tmp_path, workers):
    """Also if the first file takes longest; counts cover all files, the place is the first."""
    source = write(tmp_path / "in", [400_000, 5, 5, 5], group=100_000)
    for number, size in enumerate([400_000, 5, 5, 5]):
        path = source / f"{number:03d}.parquet"
        marks = [1.0 if row else None for row in range(size)]
        table = pq.read_table(path).add_column(0, "mark", pa.array(marks))
        if number < 3:
            names = [*table["id"].to_pylist()[:-1], None]
            if size > 200_000:  # one more, in an earlier batch: a file has one problem
                names[200_000] = None
            table = table.set_column(1, "id", pa.array(names, pa.string()))
        pq.write_table(table, path)
    settings = parse_settings(
        {
            "source": {"path": str(source)},
            "quality": {"scores": [{"name": "mark", "kind": "column", "column": "mark"}]},
        }
    )
    paths = sorted(map(str, source.iterdir()))
    pieces = cut(read_footers(paths)[0], 10**6, 2**30)
    problems, _ = check_rows(tmp_path, pieces, settings, Compute(workers=workers), [], {})
    rows = [200_000, 4, 4]
    expected = [f"file {path}, row {row}, " for path, row in zip(paths, rows, strict=False)]
    found = [str(problem) for problem in problems]
    assert [a.startswith(b) for a, b in zip(found, expected, strict=False)] == [True] * 3
    # The only batch of the small files ends with their problem.
    assert found[3].startswith(f"file {paths[0]}, row 0, column mark: score missing")
    assert "in 2 documents" in found[3] and len(found) == 4


def test_only_what_is_wrong_with_a_planned_source_is_named(tmp_path):
    """A file that was cut short has not been removed, and no other file is named."""
    source = write(tmp_path / "in", [5, 5])
    plan(tmp_path, source)
    (source / "001.parquet").write_bytes((source / "001.parquet").read_bytes()[:-9])
    with pytest.raises(InputError) as caught:
        plan(tmp_path, source)
    assert "001.parquet" in str(caught.value) and len(caught.value.problems) == 1


def test_a_file_whose_languages_are_not_text_is_named(tmp_path):
    """Rows of several files are checked together, and those of the other files counted once."""
    marks = pa.array([1.0, None, 2.0])
    source = write(tmp_path / "in", [3, 3], language=pa.array(["fi"] * 3), mark=marks)
    bytes_of_names = pa.array([b"fi", b"\xff", b"fi"])
    names = pa.Array.from_buffers(pa.string(), 3, bytes_of_names.buffers())
    path = write(tmp_path / "other", [3], start=6, language=names, mark=marks) / "000.parquet"
    path.rename(source / "001.parquet")
    limits = [{"column": "language", "value": "fi", "cap": 0.5}]
    scores = [{"name": "mark", "kind": "column", "column": "mark"}]
    with pytest.raises(InputError) as caught:
        plan(tmp_path, source, selection={"limits": limits}, quality={"scores": scores})
    assert f"file {source / '001.parquet'}: " in str(caught.value)
    assert "infinite in 1 documents" in str(caught.value)


def test_a_score_that_may_be_missing_is_no_problem_beside_one_that_may_not(tmp_path):
    """Both are of one column; the problem names the score whose policy it is."""
    source = write(tmp_path / "in", [3], mark=pa.array([1.0, None, 2.0]))
    scores = [
        {"name": "strict", "kind": "column", "column": "mark"},
        {"name": "lax", "kind": "column", "column": "mark", "missing": "drop"},
    ]
    with pytest.raises(InputError, match="row 1, column mark: score missing") as caught:
        plan(tmp_path, source, quality={"scores": scores})
    assert "score strict" in str(caught.value) and "score lax" not in str(caught.value)


def test_a_relative_folder_may_have_a_colon(tmp_path, monkeypatch):
    """It is not the scheme of a URL, for those who write and read the plan either."""
    source = write(tmp_path / "in", [4, 2])
    monkeypatch.chdir(tmp_path)
    run = plan(Path(), source, "a:b")
    assert run.num_shards == 2
    assert pq.read_table(tmp_path / "a:b" / "plan.parquet").num_rows == 2


def test_a_run_continues_from_another_folder(tmp_path, monkeypatch):
    """Relative paths are resolved once, so the recorded settings work from anywhere."""
    write(tmp_path / "in", [5])
    monkeypatch.chdir(tmp_path)
    first = plan(tmp_path, Path("in"))
    monkeypatch.chdir("/")
    assert plan_run(first.root, first.settings).pieces == first.pieces


OWN_FILES = [
    *("plan.parquet", "threshold.parquet", "scores/00000.parquet", "embeddings/00001.parquet"),
    *("subset/train-00000-of-00001.parquet", "totals/0.parquet", "report/sample.parquet"),
    "publication/data/default/train-00000-of-00001.parquet",
]


@pytest.mark.parametrize(
    ("pattern", "root"),
    [
        *(("**", "run"), ("g/**/*.parquet", "g/run"), ("g/*/*.parquet", "g/run")),
        *(("g/[a-z]*/*", "g/run"), ("**/embeddings/*.parquet", "g/run"), ("g", "g/a/deep/run")),
        *(("g/r*/subset/train-*", "g/run"), ("g/*/*/*/*/*", "g/run"), ("g/run/subset", "g/run")),
        *(("alias/**/*.parquet", "g/run"), ("g/**/*.parquet", "alias/run"), ("alias", "g/run")),
        *(("g/run/plan.parquet", "g/run"), ("g/?un/*", "g/run"), ("**/0.parquet", "g/run")),
        # Not covered: other names or depths, a link below a wildcard, the run around its source.
        *(("g/*/00?.parquet", "g/run"), ("g/[!r]*/*.parquet", "g/run"), ("g/a/*", "g/run")),
        *(("h/**/*.parquet", "g/run"), ("g/a", "g"), ("g/a/**", "g"), ("g/a[b]", "g/a/run")),
        *(("g/*/*", "run"), ("g/a/000.parquet", "g/a")),
    ],
)
def test_a_run_that_its_input_covers_is_refused(tmp_path, pattern, root):
    """Where a listing of the input would find what such a run writes, and in no other case here."""
    for folder in ("g/a", "g/a[b]", "h/b"):
        (tmp_path / folder).mkdir(parents=True)
        write(tmp_path / folder, [3])
    (tmp_path / "alias").symlink_to(tmp_path / "g")
    (tmp_path / "h" / "link").symlink_to(tmp_path / "g")
    for name in OWN_FILES:
        path = tmp_path / root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    own = {(tmp_path / root / name).resolve() for name in OWN_FILES}
    is_covered = bool(own & {Path(path).resolve() for path in list_files(f"{tmp_path}/{pattern}")})
    chosen = parse_settings({"source": {"path": f"{tmp_path}/{pattern}"}})
    refused = [str(problem) for problem in folder_problems(run_storage(tmp_path / root), chosen)]
    assert bool(refused) == is_covered, refused
