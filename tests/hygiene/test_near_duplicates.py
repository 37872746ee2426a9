"""Near-duplicates through real runs, against exact similarities in plain Python."""

import itertools
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.compute import Compute
from datamask.errors import InputError, SettingsError
from datamask.execution.pipeline import run_stage
from datamask.hygiene import similar_pairs
from datamask.hygiene.minhash import bands_of
from datamask.planning.plan import plan_run
from datamask.report.group_findings import copied_groups
from datamask.report.redundancy import compared_copies
from datamask.runs import schemas
from datamask.runs.output import write_output
from datamask.storage import duckdb_scratch
from tests.conftest import nightly
from tests.finished import finish, settings, table_of
from tests.hygiene.screened import SIMILARITY, judged, prose, screened, write
from tests.hygiene.test_minhash import components, edited, jaccard

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


ERROR = 0.037
"""Standard error of an estimated similarity of 0.8; it is less above."""


def check(rows: dict[str, Any], texts: dict[str, str], similarity: float) -> set[str]:
    """Compute what the documentation promises of each document, by exact similarities of pairs.

    A document that is dropped names a better one that is kept, and how similar it is; of those that
    are kept, no two are clearly similar. Returns the dropped documents.
    """
    dropped = {name for name, row in rows.items() if row["dropped"] == "near_duplicate"}
    for name in dropped:
        other = rows[rows[name]["near_duplicate_of"]]
        assert other["dropped"] is None
        assert (-other["quality"], other["id"]) < (-rows[name]["quality"], name)
        stated = rows[name]["near_duplicate_similarity"]
        assert stated >= similarity
        assert stated == jaccard(texts[name], texts[other["id"]])
    kept = [texts[name] for name, row in rows.items() if row["dropped"] is None]
    for first, second in itertools.combinations(kept, 2):
        assert jaccard(first, second) < similarity + 4 * ERROR
    assert all(
        row["near_duplicate_of"] is None for name, row in rows.items() if name not in dropped
    )
    return dropped


def ngrams_of(text: str) -> set[tuple[str, ...]]:
    """The word 5-grams of a text."""
    words = text.split()
    return {tuple(words[start : start + 5]) for start in range(len(words) - 4)}


@pytest.mark.parametrize("rule", ["jaccard", "containment"])
def test_pairs_are_judged_by_their_exact_ngrams(tmp_path, rule):
    """Near the threshold, longer versions, a template: as one by one in plain Python, exactly.

    By containment no text of the template is lost, and nothing that the kept document lacks.
    """
    generator, texts = random.Random(12), dict[str, str]()
    shared = prose(generator, 100)
    for number in range(20):
        text = prose(generator, 100)
        texts |= {f"{number:02d}-a": text, f"{number:02d}-b": f"{text} {prose(generator, 12)}"}
        texts[f"{number:02d}-c"] = edited(generator, text, 2)
        texts[f"{number:02d}-d"] = edited(generator, text, 3)
        texts[f"template-{number:02d}"] = f"{shared} {prose(generator, 8)}"
    write(tmp_path / "source" / "a.parquet", list(texts.values()), id=list(texts))
    run = screened(tmp_path / "run", tmp_path / "source", near_duplicates={"rule": rule})
    rows, expected, kept = judged(run), dict[str, str](), list[str]()
    sets = {name: ngrams_of(text) for name, text in texts.items()}

    def is_copy(name: str, other: str) -> bool:
        holds = rule == "jaccard" or sets[name] <= sets[other]
        return holds and jaccard(texts[name], texts[other]) >= 0.8

    for name in sorted(rows, key=lambda name: (-rows[name]["quality"], name)):
        if copied := next((other for other in kept if is_copy(name, other)), None):
            expected[name] = copied
        else:
            kept.append(name)
    stated = {name: row["near_duplicate_of"] for name, row in rows.items()}
    assert {name: other for name, other in stated.items() if other} == expected
    assert run.num_shards > 1 and 5 < len(expected) < 50
    compared = compared_copies(run)
    assert compared["dropped"] == len(expected) and compared["kept"] > 10
    assert set(Counter(pair["dropped"] for pair in compared["pairs"]).values()) <= {9, 10}
    for pair in compared["pairs"]:
        name, other = pair["id"], pair["other_id"]
        assert pair["dropped"] == (name in expected)
        assert pair["similarity"] == jaccard(texts[name], texts[other])
        assert pair["held"] == len(sets[name] & sets[other]) / len(sets[name])
        assert (pair["text"], pair["other_text"]) == (texts[name], texts[other])


def test_groups_are_exempt_or_preferred(tmp_path, caplog):
    """As a greedy search over all pairs in plain Python: who is kept, and which copy is named."""
    generator = random.Random(8)
    rows = []
    for family in range(30):
        text = prose(generator)
        for origin in generator.choices(["web", "books", "law", "wiki"], k=6):
            copy = generator.choice([text, edited(generator, text, 1), edited(generator, text, 1)])
            rows.append({"text": copy, "origin": origin, "family": family})
    generator.shuffle(rows)
    for row, document in enumerate(rows):
        document |= {"id": f"d{row:03d}", "edu": generator.random(), "place": row}
    columns = {key: [row[key] for row in rows] for key in ("id", "edu", "origin")}
    texts = [row["text"] for row in rows]
    write(tmp_path / "s" / "a.parquet", texts[:90], **{k: v[:90] for k, v in columns.items()})
    write(tmp_path / "s" / "b.parquet", texts[90:], **{k: v[90:] for k, v in columns.items()})
    near = {
        "similarity": SIMILARITY,
        "exempt": [{"column": "origin", "value": "law"}],
        "prefer": [{"column": "origin", "value": name} for name in ("o'r", "wiki", "books")],
    }
    standing = {"law": 0, "wiki": 1, "books": 2, "web": 3}
    first = {}
    for row in sorted(rows, key=lambda row: (standing[row["origin"]], row["place"])):
        first.setdefault(row["text"], row["id"])
    expected = {row["id"]: "duplicate" for row in rows if first[row["text"]] != row["id"]}
    kept = []
    order = sorted(rows, key=lambda row: (standing[row["origin"]], -row["edu"], row["id"]))
    for row in order:
        if row["id"] in expected:
            continue
        if row["origin"] != "law" and any(
            jaccard(row["text"], other["text"]) >= SIMILARITY for other in kept
        ):
            expected[row["id"]] = "near_duplicate"
        else:
            kept.append(row)
            expected[row["id"]] = None
    source = {"path": str(tmp_path / "s"), "groups": {"origin": "origin"}}
    chosen = settings(
        tmp_path / "s", source=source, quality={"near_duplicates": near, "prune_fraction": 0}
    )
    run = finish(tmp_path / "run", chosen, "quality")
    assert {name: row["dropped"] for name, row in judged(run).items()} == expected
    assert "origin `o'r`" in caplog.text and "origin `wiki`" not in caplog.text
    near["exempt"] = [{"column": "domain", "value": "a.org"}]
    chosen = settings(tmp_path / "s", source=source, quality={"near_duplicates": near})
    with pytest.raises(InputError) as caught:
        plan_run(tmp_path / "other", chosen)
    assert caught.value.column == "url"
    with pytest.raises(SettingsError, match=r"quality.near_duplicates: no group `origin`"):
        settings(tmp_path / "s", quality={"near_duplicates": near})


def test_windows_of_a_log_stay_unless_their_text_is_kept(tmp_path):
    """A chain of 200 windows of 60 words, each two words after the one before."""
    log = prose(random.Random(3), 460).split()
    texts = {f"a-{start:03d}": " ".join(log[2 * start : 2 * start + 60]) for start in range(200)}
    write(tmp_path / "source" / "a.parquet", list(texts.values()))
    run = screened(tmp_path / "run", tmp_path / "source", near_duplicates={})
    rows = judged(run)
    dropped = check(rows, texts, 0.8)
    kept = sorted(int(name[2:]) for name in rows.keys() - dropped)
    assert 35 < len(kept) < 70
    assert max(b - a for a, b in itertools.pairwise([-1, *kept, 200])) <= 2 * 3 + 1


@pytest.mark.slow
def test_any_number_of_units_finds_the_same(tmp_path, copies, monkeypatch):
    """One unit with all bands, some with a few, one for each band or for half of its hashes."""
    source, texts = copies
    old = [edited(random.Random(1), text, 2) for text in list(texts.values())[:20]]
    near = {"similarity": SIMILARITY, "against": [str(write(tmp_path / "old.parquet", old))]}
    found, bands = [], len(bands_of(SIMILARITY))
    for number in (1, 5, bands, 2 * bands):
        monkeypatch.setattr(similar_pairs, "HASHES_AT_ONCE", -(-160 * bands // number))
        monkeypatch.setattr(similar_pairs, "DOCUMENTS_AT_ONCE", 160 * bands // number)
        run = screened(tmp_path / str(number), source, near_duplicates=near)
        assert run.num_units("similar_pairs") == number
        found.append({name: row["near_duplicate_of"] for name, row in judged(run).items()})
    pairs = [pq.read_table(run.path("similar_pairs", unit)).num_rows for unit in range(number)]
    assert min(pairs) < max(pairs), "some pairs agree in a few bands only"
    assert len(set(found[0].values())) > 20
    assert all(other == found[0] for other in found)


@pytest.mark.slow
def test_large_buckets_give_the_same_in_any_batches(tmp_path, monkeypatch):
    """Many copies and near-copies of one text, read by single rows, threes, or all at once."""
    generator = random.Random(2)
    text, others = prose(generator, 200), [prose(generator, 200) for _ in range(20)]
    alike = [edited(generator, text, place % 3) + " ." * place for place in range(90)]
    mixed = alike + others
    generator.shuffle(mixed)
    write(tmp_path / "source" / "a.parquet", mixed)
    near, pairs, found = {"near_duplicates": {}, "duplicates": "keep"}, set(), []
    for at_once in (1, 3, 2**16):
        monkeypatch.setattr(duckdb_scratch, "ROWS_AT_ONCE", at_once)
        monkeypatch.setattr(similar_pairs, "CLUSTERED_AT_ONCE", at_once)
        run = screened(tmp_path / str(at_once), tmp_path / "source", **near)
        pairs.add(pq.read_table(run.path("similar_pairs", 0)).num_rows)
        found.append(judged(run))
    assert len(pairs) > 1, "batches of one size only"
    assert found[1:] == found[:1] * 2
    texts = {f"a-{row:03d}": text.replace(" .", "") for row, text in enumerate(mixed)}
    assert 80 < len(check(found[0], texts, 0.8)) < 90


@pytest.mark.parametrize("seed", [0, *nightly(1, 2)])
def test_clusters_are_joined_across_units(tmp_path, monkeypatch, seed):
    """Long chains, whose links are in several units and any order; by plain passes over pairs."""
    generator = random.Random(seed)
    texts = [f"the same words {'. ' * place}" for place in range(300)]
    scores = [generator.choice([0.1, 0.2, 0.3]) for _ in range(300)]
    write(tmp_path / "source" / "a.parquet", texts, edu=scores)
    monkeypatch.setattr(similar_pairs, "HASHES_AT_ONCE", 300 * 7)
    run = screened(
        tmp_path / "run", tmp_path / "source", "combined", near_duplicates={}, duplicates="keep"
    )
    order, pairs = generator.sample(range(300), 300), []
    for start, end in ((0, 1), (1, 3), (3, 123), (123, 183), (183, 188)):
        pairs += itertools.pairwise(order[start:end])
    pairs += [tuple(generator.sample(order[183:], 2)) for _ in range(60)]
    generator.shuffle(pairs)
    places = [(s, row) for s in range(run.num_shards) for row in range(run.shard_rows(s))]
    for unit in range(number := run.num_units("similar_pairs")):
        links = [(max(pair), min(pair)) for pair in pairs[unit::number]]
        links += sorted({(first, first) for _, first in links})
        of_unit = [(*places[last], *places[first]) for last, first in links]
        names = schemas.SIMILAR_PAIRS.names
        rows = [dict(zip(names, pair, strict=True)) for pair in of_unit]
        table = pa.Table.from_pylist(rows, schema=schemas.SIMILAR_PAIRS)
        write_output(run, "similar_pairs", unit, table.schema, [table], {})
    for stage in ("cluster_ngrams", "quality"):
        run_stage(run, stage, Compute())
    quality = table_of(run, "combined")["quality"].to_pylist()
    least = components(pairs, 300)
    best: dict[int, int] = {}
    for place in sorted(range(300), key=lambda place: (-quality[place], place)):
        best.setdefault(least[place], place)
    expected = {
        f"a-{place:03d}": f"a-{best[least[place]]:03d}"
        for place in range(300)
        if best[least[place]] != place
    }
    assert number == 3 and run.num_shards > 3 and len(expected) > 200
    found = {name: row["near_duplicate_of"] for name, row in judged(run).items()}
    assert {name: kept for name, kept in found.items() if kept is not None} == expected


def test_ties_go_to_the_smaller_id_and_the_unfit_are_never_kept(tmp_path):
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
        contamination={"sets": [str(tmp_path / "set.txt")], "ngram": 7, "action": "drop"},
    )
    rows = judged(run)
    why = {name: rows[name]["dropped"] for name in rows}
    near = "near_duplicate"
    assert why == dict(z=near, y=near, c="contaminated", b="empty", d=None, e=None, a=None)
    assert {rows[name]["near_duplicate_of"] for name in "zy"} == {"a"}
    assert rows["c"]["near_duplicate_of"] is None


@pytest.mark.parametrize("is_run", [True, *nightly(False)])
def test_what_nearly_repeats_an_earlier_dataset_is_dropped(tmp_path, is_run):
    """Of a run folder the subset counts; the earlier one's own copies do not matter."""
    generator = random.Random(5)
    old = [prose(generator, 120) for _ in range(30)]
    place = write(tmp_path / "old" / "old.parquet", old)
    against, repeated = str(place), set(range(0, 30, 3))
    if is_run:
        earlier = screened(tmp_path / "earlier", tmp_path / "old", "subset")
        against = str(earlier.root)
        chosen = pq.read_table(earlier.path("subset"))["id"].to_pylist()
        repeated = {int(name[-3:]) for name in chosen}
        assert 0 < len(repeated) < 30
    new = [edited(generator, text, 1) for text in old] + [prose(generator, 120) for _ in range(30)]
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
        with pytest.raises(InputError, match="has changed since"):
            run_stage(run, "earlier_signatures", Compute())
        again = plan_run(run.root, None)
        assert again.state("quality") == "stale"
        assert set(again.states("screening")) == {"done"}


@pytest.mark.slow
def test_groups_that_lose_more_than_half_are_told(tmp_path):
    """A dump with 30 windows of two texts; not the one that loses half, nor one of 10 documents."""
    generator = random.Random(8)
    texts = [prose(generator, 60) for _ in range(2)]
    wiped = [edited(generator, texts[row % 2], 1) for row in range(30)]
    half = [prose(generator) for _ in range(20)]
    half += [edited(generator, text, 1) for text in half]
    small = [edited(generator, texts[0], 1) for _ in range(10)]
    dumps = ["wiped"] * 30 + ["half"] * 40 + ["small"] * 10
    write(tmp_path / "source" / "a.parquet", wiped + half + small, dump=dumps)
    near = {"similarity": 0.5}
    run = screened(tmp_path / "run", tmp_path / "source", "composition", near_duplicates=near)
    dropped = [row["dropped"] for row in judged(run).values()]
    lost = dropped[:30].count("near_duplicate")
    assert lost >= 25 and dropped[30:70].count(None) == 20
    (told,) = copied_groups(run)
    assert told.grade == "warning"
    assert told.text.count("%") == 1 and f"dump wiped ({lost / 30:.0%})" in told.text
