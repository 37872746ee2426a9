"""Near-duplicates and benchmarks through real runs, against sets of n-grams in plain Python."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.analysis.composition import query
from datamask.config.compute import Compute
from datamask.errors import DatamaskError, InputError, RunError
from datamask.execution.pipeline import run_stage
from datamask.execution.status import run_status, shard_table
from datamask.execution.verification import verify
from datamask.planning.plan import plan_run
from datamask.publishing.folder import write_folder
from datamask.report.warnings import warnings
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from tests.finished import finish, settings
from tests.hygiene.test_minhash import VOCABULARY, edited, jaccard
from tests.hygiene.test_words import words_of

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

SIMILARITY = 0.7


def write(path: Path, texts: list[str], **columns: list[Any]) -> Path:
    """A Parquet file of documents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = columns.pop("id", [f"{path.stem}-{row:03d}" for row in range(len(texts))])
    scores = columns.pop("edu", [random.Random(text).random() for text in texts])
    pq.write_table(pa.table({"id": names, "text": texts, "edu": scores}), path)
    return path


def prose(generator: random.Random, length: int = 60) -> str:
    """Words in no order."""
    return " ".join(generator.choices(VOCABULARY, k=length))


def screened(root: Path, source: Path, last: str = "quality", **quality: object) -> Run:
    """A run without pruning, up to a stage."""
    chosen = settings(source, quality={"prune_fraction": 0.0, **quality}, selection={"ratio": 0.1})
    return finish(root, chosen, last)


def judged(run: Run) -> dict[str, dict[str, Any]]:
    """The rows of `quality/` by id."""
    tables = [pq.read_table(run.path("quality", shard)) for shard in range(run.num_shards)]
    return {row["id"]: row for table in tables for row in table.to_pylist()}


@pytest.fixture
def copies(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """Four files with copies of each other's documents, and every document's text by id."""
    generator = random.Random(11)
    texts: dict[str, str] = {}
    originals = [prose(generator) for _ in range(60)]
    for file in range(4):
        for row in range(40):
            kept = originals[generator.randrange(60)]
            text = prose(generator) if row % 2 else edited(generator, kept, generator.randrange(3))
            texts[f"{file}-{row:03d}"] = text
    for file in range(4):
        names = [name for name in texts if name.startswith(f"{file}-")]
        write(tmp_path / "source" / f"{file}.parquet", [texts[name] for name in names], id=names)
    return tmp_path / "source", texts


def clusters(texts: dict[str, str]) -> list[set[str]]:
    """Connected components of pairs with an exact similarity of at least `SIMILARITY`."""
    left, found = dict(texts), []
    while left:
        cluster, waiting = set(), [next(iter(left))]
        while waiting:
            name = waiting.pop()
            cluster.add(name)
            text = left.pop(name, None)
            if text is not None:
                near = (other for other in left if jaccard(text, texts[other]) >= SIMILARITY)
                waiting += [other for other in near if other not in cluster]
        found.append(cluster)
    return found


def test_the_best_of_each_cluster_is_kept(tmp_path: Path, copies: Any) -> None:
    """Over all shards, as exact similarities tell, but for pairs that lie at the threshold."""
    source, texts = copies
    run = screened(tmp_path / "run", source, near_duplicates={"similarity": SIMILARITY})
    rows = judged(run)
    assert run.num_shards == 4
    dropped = {name for name, row in rows.items() if row["dropped"] == "near_duplicate"}
    right = total = 0
    for cluster in clusters({n: t for n, t in texts.items() if rows[n]["dropped"] != "duplicate"}):
        best = max(cluster, key=lambda name: rows[name]["quality"])
        expected = {name: best for name in cluster if name != best}
        found = {name: rows[name]["near_duplicate_of"] for name in cluster if name in dropped}
        right, total = right + (found == expected), total + 1
    assert len(dropped) > 20
    assert right >= 0.95 * total
    counts = [run.receipt("quality", s).metrics["dropped"]["near_duplicate"] for s in range(4)]
    assert sum(counts) == len(dropped)
    for name in dropped:
        other = rows[rows[name]["near_duplicate_of"]]
        assert other["dropped"] is None
        assert (other["quality"], name) >= (rows[name]["quality"], other["id"])


def test_ties_go_to_the_smaller_id_and_the_unfit_are_never_kept(tmp_path: Path) -> None:
    """A contaminated copy, an empty text and one without words; the same quality everywhere."""
    text = prose(random.Random(0), 100)
    leaked = "one two three four five six seven"
    texts = [f"{text} b", f"{text} a", f"{text} {leaked}", "", "?!", "...", text.upper()]
    write(tmp_path / "source" / "a.parquet", texts, id=list("zycbdea"), edu=[1.0] * 7)
    (tmp_path / "set.txt").write_text(f"What is {leaked}?")
    run = screened(
        tmp_path / "run",
        tmp_path / "source",
        near_duplicates={},
        contamination={"sets": [str(tmp_path / "set.txt")], "ngram": 7},
    )
    rows = judged(run)
    why = {name: rows[name]["dropped"] for name in rows}
    near = "near_duplicate"
    assert why == dict(z=near, y=near, c="contaminated", b="empty", d=None, e=None, a=None)
    assert {rows[name]["near_duplicate_of"] for name in "zy"} == {"a"}
    assert rows["c"]["near_duplicate_of"] is None


SETS = [
    {"name": "questions", "columns": ["question", "choices"]},
    {"name": "<b>|table", "columns": ["text"]},
    {"name": "prose", "columns": ["text"]},
]


@pytest.fixture
def benchmarks(tmp_path: Path) -> list[dict[str, Any]]:
    """A set of JSON lines, one of Parquet and one of plain text, with names that are hostile."""
    generator = random.Random(2)
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    rows = [
        {"question": prose(generator, 9), "choices": {"text": ["Yes, it is", "no"], "n": [1, 2]}}
        for _ in range(20)
    ]
    lines = [json.dumps(row) for row in [*rows, {"question": "too short"}, {"question": None}]]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    texts = [prose(generator, 30) for _ in range(10)]
    pq.write_table(pa.table({"text": pa.array(texts).dictionary_encode()}), folder / "b.parquet")
    (folder / "c.txt").write_text(f"{prose(generator, 20)}\n{prose(generator, 20)}\n")
    names = ("a.jsonl", "b.parquet", "c.txt")
    return [{**one, "path": str(folder / name)} for one, name in zip(SETS, names, strict=True)]


def texts_of(one: dict[str, Any]) -> Iterator[str]:
    """The texts of a set, by what the documentation says."""
    path = Path(one["path"])
    if path.suffix == ".jsonl":
        for line in path.read_text().splitlines():
            row = json.loads(line)
            choices = row.get("choices") or {"text": [], "n": []}
            yield " ".join([row["question"] or "", *choices["text"], *map(str, choices["n"])])
    elif path.suffix == ".parquet":
        yield from pq.read_table(path)["text"].to_pylist()
    else:
        yield path.read_text()


@pytest.mark.parametrize("action", ["drop", "flag"])
@pytest.mark.parametrize("ngram", [4, 13])
def test_shared_ngrams_are_found_exactly(
    tmp_path: Path, benchmarks: list[dict[str, Any]], ngram: int, action: str
) -> None:
    """The first n-gram of each document that a set has, the set and its place, and no other."""
    generator = random.Random(ngram)
    known = [" ".join(words_of(text)) for one in benchmarks for text in texts_of(one)]
    documents = []
    for _ in range(120):
        words = prose(generator, generator.randrange(1, 80)).split()
        leak = generator.choice(known).split()
        start = generator.randrange(max(len(leak), 1))
        part = leak[start : start + generator.choice([ngram - 1, ngram, ngram + 3])]
        place = generator.randrange(len(words))
        words[place:place] = [word.title() + generator.choice(",.- ") for word in part]
        documents.append(" ".join(words))
    write(tmp_path / "source" / "a.parquet", documents)
    chosen = {"sets": benchmarks, "ngram": ngram, "action": action}
    run = screened(tmp_path / "run", tmp_path / "source", contamination=chosen)
    sets = {
        one["name"]: {
            tuple(words[i : i + ngram])
            for text in texts_of(one)
            for words in [words_of(text)]
            for i in range(len(words) - ngram + 1)
        }
        for one in benchmarks
    }
    hits = 0
    for row, text in zip(judged(run).values(), documents, strict=True):
        words = words_of(text)
        expected: tuple[Any, ...] = (None, None, None)
        for place in range(len(words) - ngram + 1):
            shared = tuple(words[place : place + ngram])
            of = [name for name in sets if shared in sets[name]]
            if of:
                expected = (of[0], place, " ".join(shared))
                break
        found = (row["contaminated_by"], row["contaminated_at"], row["contaminated_ngram"])
        assert found == expected
        is_dropped = expected[0] is not None and action == "drop"
        assert row["dropped"] == ("contaminated" if is_dropped else None)
        hits += expected[0] is not None
    assert 20 < hits < 110
    metrics = run.receipt("benchmark_ngrams").metrics
    for one in benchmarks:
        lengths = [len(words_of(text)) for text in texts_of(one)]
        assert metrics[one["name"]]["texts"] == len(lengths)
        assert metrics[one["name"]]["short"] == sum(length < ngram for length in lengths)


@pytest.mark.parametrize("is_run", [True, False])
def test_what_nearly_repeats_an_earlier_dataset_is_dropped(tmp_path: Path, is_run: bool) -> None:
    """Of a run folder the subset counts; the earlier one's own copies do not matter."""
    generator = random.Random(5)
    old = [prose(generator) for _ in range(30)]
    place = write(tmp_path / "old" / "old.parquet", old)
    against, repeated = str(place), set(range(0, 30, 3))
    if is_run:
        earlier = screened(tmp_path / "earlier", tmp_path / "old", "subset")
        against = str(earlier.root)
        chosen = pq.read_table(earlier.path("subset"))["id"].to_pylist()
        repeated = {int(name[-3:]) for name in chosen}
        assert 0 < len(repeated) < 30
    new = [edited(generator, text, 1) for text in old] + [prose(generator) for _ in range(30)]
    new += [edited(generator, new[40], 1), edited(generator, new[min(repeated)], 1)]
    write(tmp_path / "new" / "new.parquet", new)
    near = {"near_duplicates": {"similarity": SIMILARITY, "against": [against]}}
    run = screened(tmp_path / "run", tmp_path / "new", **near)
    rows = judged(run)
    dropped = {
        name: row["near_duplicate_of"]
        for name, row in rows.items()
        if row["dropped"] == "near_duplicate"
    }
    if not is_run:
        repeated = set(range(30))
    first, second = sorted(["new-040", "new-060"], key=lambda name: rows[name]["quality"])
    expected = {f"new-{row:03d}": f"earlier:old-{row:03d}" for row in repeated}
    expected |= {first: second, "new-061": f"earlier:old-{min(repeated):03d}"}
    assert dropped == expected
    write(tmp_path / "old" / "old.parquet", old[:20])
    if not is_run:
        run.local_path("earlier_signatures").unlink()
        with pytest.raises(InputError, match="changed since planning"):
            run_stage(run, "earlier_signatures", Compute())
        again = plan_run(run.root, None)
        assert again.state("quality") == "stale"
        assert set(again.states("screening")) == {"done"}


def test_workers_order_and_lost_files_change_no_byte(
    tmp_path: Path, copies: Any, benchmarks: list[dict[str, Any]]
) -> None:
    """Four workers, shards in reverse, and a folder that lost files, have the same files."""
    source, _ = copies
    write(tmp_path / "old.parquet", [prose(random.Random(1))] * 3)
    quality = {
        "prune_fraction": 0.2,
        "near_duplicates": {"against": [str(tmp_path / "old.parquet")]},
        "contamination": {"sets": benchmarks},
    }
    made = []
    for way in ("one", "four", "reverse", "lost"):
        run = plan_run(tmp_path / way, settings(source, quality=quality))
        for stage in stages_of(run.settings)[:5]:
            if stage == "screening" and way == "reverse":
                for shard in reversed(range(run.num_shards)):
                    run_stage(run, stage, Compute(), shards=[shard])
            workers = 4 if way == "four" else 1
            run_stage(run, stage, Compute(workers=workers, duckdb_threads=workers))
        if way == "lost":
            run.local_path("screening", 1).unlink()
            shutil.rmtree(run.root / "quality")
            run.local_path("benchmark_ngrams").write_bytes(b"")
            for stage in stages_of(run.settings)[:5]:
                run_stage(run, stage, Compute())
        names = [run.name(s, unit) for s in stages_of(run.settings)[:5] for unit in range(4)]
        made.append({name: (run.root / name).read_bytes() for name in names})
    assert len(made[0]) == 14
    assert made[1:] == [made[0]] * 3


def test_all_problems_are_reported_before_any_work(
    tmp_path: Path, benchmarks: list[dict[str, Any]]
) -> None:
    """Files and columns that are missing, and files that cannot be read; nothing is left behind."""
    source = write(tmp_path / "source" / "a.parquet", ["a", "b"]).parent
    (tmp_path / "broken.jsonl").write_text('{"text": "a"}\nnot json\n')
    (tmp_path / "table.csv").write_text("text\na\n")
    (tmp_path / "image.jsonl").write_text('{"picture": 1}\n')
    pq.write_table(pa.table({"id": ["1"]}), tmp_path / "earlier.parquet")
    names = ("absent.jsonl", "broken.jsonl", "table.csv", "image.jsonl")
    sets = [str(tmp_path / name) for name in names]
    sets.append({**benchmarks[1], "name": "b", "columns": ["questions"]})
    quality = {
        "contamination": {"sets": sets},
        "near_duplicates": {"against": [str(tmp_path / "earlier.parquet"), "/nowhere/*.parquet"]},
    }
    with pytest.raises(DatamaskError) as caught:
        plan_run(tmp_path / "run", settings(source, quality=quality))
    told = str(caught.value)
    for part in (
        "absent.jsonl: no .parquet, .jsonl, .ndjson, .txt files found",
        "broken.jsonl, row 1: not JSON",
        "table.csv: unknown kind of file; use .parquet, .jsonl, .ndjson, .txt",
        "image.jsonl, column text: absent; needed is one of: picture",
        "b.parquet, column questions: absent; needed is one of: text",
        "earlier.parquet, column text: absent; needed is one of: id",
        "/nowhere/*.parquet: no .parquet, .jsonl, .ndjson, .txt files found",
    ):
        assert part in told, told
    assert not (tmp_path / "run").exists()


def test_layout_features_has_no_text_to_screen(tmp_path: Path) -> None:
    """Said with the other problems of the settings."""
    source = write(tmp_path / "source" / "a.parquet", ["a"]).parent
    quality = {"near_duplicates": {}, "scores": []}
    chosen = settings(source, quality=quality, source={"layout": "features"})
    with pytest.raises(DatamaskError, match=r"quality\.near_duplicates: needs text; layout"):
        plan_run(tmp_path / "run", chosen)


def test_settings_change_no_more_than_they_must(
    tmp_path: Path, benchmarks: list[dict[str, Any]]
) -> None:
    """Similarity, action and scores leave the screening; n-grams and sets do not."""
    source = write(tmp_path / "source" / "a.parquet", [prose(random.Random(0))] * 3).parent
    quality = {"near_duplicates": {}, "contamination": {"sets": benchmarks}}
    run = plan_run(tmp_path / "run", settings(source, quality=quality))

    def changed(**groups: object) -> set[str]:
        other = plan_run(tmp_path / "run", settings(source, quality={**quality, **groups}))
        return {
            stage
            for stage in stages_of(other.settings)
            if stage not in stages_of(run.settings)
            or other.fingerprint(stage) != run.fingerprint(stage)
        } & {"scores", "benchmark_ngrams", "earlier_signatures", "screening", "quality"}

    assert changed(near_duplicates={"similarity": 0.9}) == {"quality"}
    assert changed(contamination={"sets": benchmarks, "action": "flag"}) == {"quality"}
    assert changed(near_duplicates={"ngram": 4}) == {"screening", "quality"}
    every = {"benchmark_ngrams", "screening", "quality"}
    assert changed(contamination={"sets": benchmarks[:2]}) == every
    assert changed(scores=[{"name": "edu", "kind": "column", "column": "edu"}]) == set()
    assert changed(scores=[{"kind": "heuristic"}]) == {"scores", "quality"}
    earlier = {"against": [str(source / "a.parquet")]}
    assert changed(near_duplicates=earlier) == {"earlier_signatures", "quality"}


def test_counts_are_shown_wherever_results_are(
    tmp_path: Path, benchmarks: list[dict[str, Any]], copies: Any
) -> None:
    """Report, warnings, card, status and verification; no path of this machine is published."""
    source, _ = copies
    leak = next(texts_of(benchmarks[1]))
    write(source / "leak.parquet", [f"{prose(random.Random(n))} {leak}" for n in range(40)])
    quality = {
        "near_duplicates": {"similarity": SIMILARITY, "against": [benchmarks[1]["path"]]},
        "contamination": {"sets": benchmarks, "action": "flag"},
    }
    pq.write_table(pa.table({"id": ["x"], "text": [leak]}), benchmarks[1]["path"])
    to = {"license": "mit", "dry_run": True, "scores": True}
    chosen = settings(source, quality=quality, selection={"ratio": 0.4}, publication=to)
    run = finish(tmp_path / "run", chosen)
    [counts] = query(
        run,
        "SELECT count(*) FILTER (dropped = 'near_duplicate') AS near, "
        "count(*) FILTER (contaminated_by = '<b>|table') AS shared, "
        "count(*) FILTER (contaminated_by = '<b>|table' AND selected) AS kept FROM documents",
    )
    assert counts["near"] and counts["shared"] == 40 and counts["kept"]
    page = run.path("report").read_text()
    assert f"{counts['near']} documents dropped" in page
    assert "<td>&lt;b&gt;|table</td><td>1</td><td>0</td><td>40</td><td>0</td>" in page
    assert "<b>|table" not in page
    told = "\n".join(warnings(run))
    assert f"{counts['kept']} of the documents kept share 13 consecutive words" in told
    assert "2 of the 22 texts of benchmark questions have fewer than 13 words" in told
    assert run.settings.publication is not None
    write_folder(run, run.settings.publication)
    card = (run.root / "publication" / "README.md").read_text()
    assert f"| Near-duplicates | {counts['near']} dropped, of which " in card
    assert "documents that share 13 consecutive words are flagged, not dropped" in card
    assert str(tmp_path) not in card and "path: c.txt" in card
    published = pq.read_table(next((run.root / "publication" / "scores").glob("*.parquet")))
    assert sum(name == "<b>|table" for name in published["contaminated_by"].to_pylist()) == 40
    states = run_status(run)
    assert {stage.stage for stage in states} >= {"benchmark_ngrams", "earlier_signatures"}
    assert shard_table(states)[0]["screening"] == "done"
    path = run.local_path("screening", 2)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    assert [name for name, _ in verify(run).corrupt] == ["screening/00002.parquet"]
    with pytest.raises(RunError, match=r"screening/00002\.parquet: missing"):
        run_stage(run, "quality", Compute(), force=True)
