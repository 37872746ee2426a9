"""The order of training, its ledger and token files, against a computation from the documentation.

A token file is read by a reader of Megatron's layout that shares nothing with the writer, and by
megatron-core and OLMo-core themselves where these are installed.
"""

import gzip
import hashlib
import importlib.util
import json
import shutil
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamask.config.compute import Compute
from datamask.errors import CorruptFileError
from datamask.execution.pipeline import run_stage
from datamask.execution.verification import verify
from datamask.planning.plan import plan_run
from datamask.runs.opening import open_run
from datamask.runs.run import Run
from datamask.tokens import order
from datamask.tokens.order import first_exposures_first
from tests.conftest import nightly
from tests.finished import WORDS, corpus, finish, settings, word_tokenizer

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

REPEATED = {"tokens": 900, "max_repeat": 4, "training_tokens": 2000}
SEED = 4
"""With which a document would occur twice in the first total / max_repeat tokens by chance."""
PHASES = [{"share": 0.8}, {"share": 0.2, "where": "language = 'de'"}]


def tokens_of(folder: Path, **more: Any) -> dict[str, Any]:
    """Settings of tokens."""
    tokenizer = word_tokenizer(folder / "tokenizer.json", more.pop("more", 0))
    return {"tokenizer": tokenizer, **more}


@pytest.fixture(scope="module", autouse=True)
def _small_files() -> Iterator[None]:
    """A file has 300 tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "TOKENS_PER_FILE", 300)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with repeats, in the default order."""
    folder = tmp_path_factory.mktemp("order")
    tokens = tokens_of(folder)
    chosen = settings(corpus(folder / "source"), tokens=tokens, selection=REPEATED)
    chosen = chosen.model_copy(update={"seed": SEED})
    return finish(folder / "run", chosen, "tokens", Compute(workers=2))


def documents(run: Run) -> dict[str, dict[str, Any]]:
    """The subset's rows by id, with the tokens that Python splits their texts into."""
    rows = pq.read_table(run.root / "subset").to_pylist()
    for row in rows:
        words = row["text"].split()
        row["ids"] = [WORDS.index(w) + 2 if w in WORDS else 0 for w in words] + [1]
    return {row["id"]: row for row in rows}


def exposures(rows: dict[str, dict[str, Any]], seed: int = SEED) -> list[tuple[float, str, int]]:
    """Place, id and number of every exposure, in the order of places."""
    found = []
    for name, row in rows.items():
        low = hashlib.md5(f"{seed}/{name}".encode()).digest()[8:]
        for number in range(1, row.get("repeat", 1) + 1):
            key = (number - 1 + int.from_bytes(low, "little") / 2**64) / row.get("repeat", 1)
            found.append((key, name, number))
    return sorted(found)


def ledger(run: Run) -> list[dict[str, Any]]:
    """The rows of the ledger."""
    return list(pq.read_table(run.path("order")).to_pylist())


def test_the_order_is_the_documented_one(run):
    """Places by hash, first exposures ahead in the first total / max_repeat tokens, one is cut."""
    rows = documents(run)
    total = sum(row["repeat"] * len(row["ids"]) for row in rows.values())
    left, done, wanted = exposures(rows), 0, []
    ends = np.cumsum([len(rows[name]["ids"]) for _, name, _ in left])
    by_chance = [name for _, name, _ in left[: np.searchsorted(ends, 500) + 1]]
    assert len(set(by_chance)) < len(by_chance)
    while done < 2000 / 4:
        ahead = next(one for one in left if one[2] == 1)
        left.remove(ahead)
        wanted.append(ahead)
        done += len(rows[ahead[1]]["ids"])
    wanted += left
    found = ledger(run)
    assert [(row["id"], row["exposure"]) for row in found] == [one[1:] for one in wanted]
    lengths = [len(rows[name]["ids"]) for _, name, _ in wanted]
    short = [(row, full) for row, full in zip(found, lengths, strict=True) if row["tokens"] != full]
    [(cut, full)] = short
    assert cut["exposure"] == rows[cut["id"]]["repeat"] > 1
    assert full - cut["tokens"] == total - 2000 > 0
    starts = np.cumsum([0, *(row["tokens"] for row in found)])
    assert [row["first_token"] for row in found] == starts[:-1].tolist()
    assert starts[-1] == 2000


def test_an_exposure_that_exceeds_the_total_costs_no_other_document(tmp_path):
    """Training sees each document as often as `repeat` says: that exposure itself is cut."""
    rows = [
        {"id": f"{n:03d}", "text": f"{' '.join(WORDS[:6])} x{n}", "edu": n / 100}
        for n in range(100)
    ]
    rows[50] = {"id": "long", "text": " ".join(WORDS * 90), "edu": 9.0}
    (tmp_path / "source").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "source" / "a.parquet")
    budget = {"documents": 30, "max_repeat": 2, "training_tokens": 2000, "method": "top_quality"}
    chosen = settings(tmp_path / "source", tokens=tokens_of(tmp_path), selection=budget)
    run = finish(tmp_path / "run", chosen, "tokens")
    repeats = {name: row["repeat"] for name, row in documents(run).items()}
    found = ledger(run)
    assert Counter(row["id"] for row in found) == repeats
    assert len(repeats) == 30 and repeats["long"] == 2
    assert sum(row["tokens"] for row in found) == 2000


@given(
    st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=40),
    st.integers(0, 300),
    st.integers(1, 7),
)
def test_first_exposures_come_first_in_any_batches(rows, least, size):
    """Against a loop over rows: until *least* tokens only first exposures, all in their order."""
    numbered = [(place, *row) for place, row in enumerate(rows)]
    ahead, done = [], 0
    for row in numbered:
        if row[2] and done < least:
            ahead.append(row)
            done += row[1]
    wanted = ahead + [row for row in numbered if row not in ahead]
    columns = {
        "place": pa.array([row[0] for row in numbered], pa.int64()),
        "tokens": pa.array([row[1] for row in numbered], pa.int64()),
        "exposure": pa.array([1 if row[2] else 2 for row in numbered], pa.int32()),
    }
    table = pa.table(columns)
    tables = [table.slice(first, size) for first in range(0, len(rows), size)]
    found = [
        place
        for part in first_exposures_first(tables, least)
        for place in part["place"].to_pylist()
    ]
    assert found == [row[0] for row in wanted]


def megatron_documents(prefix: Path) -> list[np.ndarray]:
    """The documents of an indexed dataset, from its layout (indexed_dataset.py of Megatron-LM)."""
    data = prefix.with_suffix(".idx").read_bytes()
    assert data[:9] == b"MMIDIDX\0\0"
    version, code, sequences, ends = struct.unpack_from("<QBQQ", data, 9)
    lengths = np.frombuffer(data, "<i4", sequences, 34)
    pointers = np.frombuffer(data, "<i8", sequences, 34 + 4 * sequences)
    borders = np.frombuffer(data, "<i8", ends, 34 + 12 * sequences)
    assert version == 1 and len(data) == 34 + 12 * sequences + 8 * ends
    assert borders.tolist() == list(range(sequences + 1))
    kind, tokens = {8: "<u2", 4: "<i4"}[code], prefix.with_suffix(".bin").read_bytes()
    pairs = zip(lengths.tolist(), pointers.tolist(), strict=True)
    return [np.frombuffer(tokens, kind, length, start) for length, start in pairs]


@pytest.mark.parametrize("more", [0, *nightly(70_000)])
def test_token_files_hold_what_the_ledger_says(tmp_path, run, more):
    """As flat arrays and by Megatron's index; in 32 bits if the vocabulary needs them."""
    if more:
        chosen = settings(corpus(tmp_path / "source"), tokens=tokens_of(tmp_path, more=more))
        run = finish(tmp_path / "run", chosen, "tokens")
    rows, found = documents(run), ledger(run)
    assert len({row["file"] for row in found}) == run.num_units("tokens") > 1
    for unit in range(run.num_units("tokens")):
        header, prefix = (
            json.loads(run.path("tokens", unit).read_text()),
            run.root / f"tokens/{unit:05d}",
        )
        here = [row for row in found if row["file"] == unit]
        wanted = [[*rows[row["id"]]["ids"][: row["tokens"] - 1], 1] for row in here]
        assert [part.tolist() for part in megatron_documents(prefix)] == wanted
        flat = np.fromfile(prefix.with_suffix(".bin"), header["type"])
        assert flat.tolist() == [token for part in wanted for token in part]
        assert header["type"] == ("uint32" if more else "uint16")
        lines = gzip.decompress(prefix.with_suffix(".csv.gz").read_bytes()).decode().splitlines()
        borders = [tuple(map(int, line.split(","))) for line in lines]
        assert [flat[start:end].tolist() for start, end in borders] == wanted
        assert (header["tokens"], header["end_of_document"]) == (len(flat), 1)
        assert header["first_token"] == here[0]["first_token"]
        assert all(row["first_token"] // 300 == here[0]["first_token"] // 300 for row in here)
        if importlib.util.find_spec("megatron") is not None:
            from megatron.core.datasets.indexed_dataset import IndexedDataset

            read = IndexedDataset(str(prefix))
            assert [read[number].tolist() for number in range(len(read))] == wanted
        if importlib.util.find_spec("olmo_core") is not None:
            from olmo_core.data.utils import iter_document_indices

            named = tmp_path / f"{unit}.npy"  # as docs/tokens.md says
            named.symlink_to(prefix.with_suffix(".bin"))
            named.with_suffix(".csv.gz").symlink_to(prefix.with_suffix(".csv.gz"))
            read = iter_document_indices(named, use_array_if_local=False, dtype=flat.dtype.type)
            assert list(read) == borders


def test_the_same_bytes_for_any_workers_and_nothing_is_tokenised_again(tmp_path, run, monkeypatch):
    """Another order makes other files from the same tokens, and removes those left over."""
    source = Path(run.settings.source.path)
    again = finish(tmp_path / "run", run.settings, "tokens", Compute(workers=1))
    names = [f"tokens/{path.name}" for path in sorted((run.root / "tokens").iterdir())]
    names += ["tokenised/00000.bin", "tokenised/00001.parquet"]
    assert [(run.root / n).read_bytes() for n in names] == [
        (again.root / n).read_bytes() for n in names
    ]
    before = {path: path.stat().st_mtime_ns for path in (again.root / "tokenised").iterdir()}
    monkeypatch.setattr(order, "TOKENS_PER_FILE", 1500)
    more = {**run.settings.tokens.model_dump(), "order": "by_quality_then_shuffled"}
    chosen = settings(source, tokens=more, selection=REPEATED).model_copy(update={"seed": SEED})
    other = finish(again.root, chosen, "tokens")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    left = sorted(path.name for path in (again.root / "tokens").iterdir())
    assert left == [
        *(f"{n:05d}.{end}" for n in range(2) for end in ("bin", "csv.gz", "idx", "json")),
        "order.parquet",
    ]
    assert [row["id"] for row in ledger(other)] != [row["id"] for row in ledger(run)]


@pytest.mark.parametrize("finder", ["reader", "verify"])
def test_a_damaged_token_file_is_made_again(tmp_path, run, finder):
    """Its checksum shows it, whoever reads it first, and its header goes with it."""
    again = open_run(shutil.copytree(run.root, tmp_path / "run"))
    path = again.root / "tokens/00001.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    if finder == "verify":
        assert [name for name, _ in verify(again).corrupt] == ["tokens/00001.bin"]
    else:
        with pytest.raises(CorruptFileError):
            again.fetch("tokens/00001.bin")
    assert again.states("tokens").count("missing") == 1
    run_stage(again, "tokens", Compute())
    assert path.read_bytes() == whole


@pytest.mark.slow
def test_phases_have_their_shares(tmp_path):
    """Within a document, and all together exactly; conditions hold, numbers of exposures rise."""
    chosen = settings(
        corpus(tmp_path / "source"), tokens=tokens_of(tmp_path, phases=PHASES), selection=REPEATED
    )
    run = finish(tmp_path / "run", chosen, "tokens")
    found, phases = ledger(run), run.receipt("order").metrics["phases"]
    language = {name: row["language"] for name, row in documents(run).items()}
    longest = max(row["tokens"] for row in found)
    assert sum(phase["tokens"] for phase in phases) == 2000
    assert abs(phases[1]["tokens"] - 400) <= longest
    for number, phase in enumerate(phases, 1):
        assert sum(row["tokens"] for row in found if row["phase"] == number) == phase["tokens"]
    assert [row["phase"] for row in found] == sorted(row["phase"] for row in found)
    assert all(language[row["id"]] == "de" for row in found if row["phase"] == 2)
    seen: dict[str, int] = {}
    for row in found:
        seen[row["id"]] = seen.get(row["id"], 0) + 1
        assert row["exposure"] == seen[row["id"]]
    assert seen == {name: row["repeat"] for name, row in documents(run).items()}


@pytest.mark.slow
def test_epochs_go_from_the_least_to_the_best(tmp_path, run):
    """In bands of quality, each with a tenth of the documents, shuffled within a band."""
    tokens = {**run.settings.tokens.model_dump(), "order": "by_quality_then_shuffled"}
    source = Path(run.settings.source.path)
    other = finish(tmp_path / "run", settings(source, tokens=tokens, selection=REPEATED), "order")
    found, rows = ledger(other), documents(other)
    assert [row["exposure"] for row in found] == sorted(row["exposure"] for row in found)
    ends = np.quantile(
        [row["quality"] for row in rows.values()], np.arange(1, 10) / 10, method="inverted_cdf"
    )
    first = [row["id"] for row in found if row["exposure"] == 1]
    places = {
        name: key
        for key, name, number in exposures({n: {"repeat": 1} for n in rows}, other.settings.seed)
        if number == 1
    }
    band = {name: int(np.searchsorted(ends, row["quality"])) for name, row in rows.items()}
    assert first == sorted(first, key=lambda n: (band[n], places[n] / rows[n]["repeat"]))


@pytest.mark.slow
def test_tiny_groups_do_not_end_a_budget_early(tmp_path):
    """500 groups with caps, and repeats: what training sees is the total, within a document."""
    generator = np.random.default_rng(1)
    lengths = generator.integers(3, 30, 2000)
    table = {
        "id": [str(number) for number in range(2000)],
        "text": [" ".join(generator.choice(WORDS, length)) for length in lengths],
        "url": [f"https://site{number % 500}.org/" for number in range(2000)],
        "edu": generator.standard_normal(2000),
        "token_count": [1] * 2000,  # as another tokenizer counts
    }
    (tmp_path / "source").mkdir()
    pq.write_table(pa.table(table), tmp_path / "source" / "0.parquet")
    chosen = {"tokens": 12_000, "max_repeat": 4, "training_tokens": 30_000, "method": "random"}
    chosen |= {"limits": [{"column": "domain", "cap": 0.003}]}
    run = finish(
        tmp_path / "run",
        settings(
            tmp_path / "source",
            tokens=tokens_of(tmp_path),
            selection=chosen,
            plan={"rows_per_shard": 700},
        ),
        "order",
    )
    rows = documents(run)
    size = {name: len(row["ids"]) for name, row in rows.items()}
    kept = sum(size.values())
    seen = sum(row["repeat"] * size[name] for name, row in rows.items())
    assert 12_000 <= kept < 12_000 + max(size.values())
    assert 30_000 <= seen < 30_000 + max(size.values())
    assert sum(row["tokens"] for row in ledger(run)) == 30_000
    by_site: dict[str, int] = {}
    for name, row in rows.items():
        by_site[row["url"]] = by_site.get(row["url"], 0) + size[name]
    assert len(by_site) > 250 and max(by_site.values()) <= 36


def test_a_new_plan_keeps_tokens_of_a_finished_run(run):
    """Planning again changes nothing, though the tokenizer is read again."""
    again = plan_run(run.root, run.settings)
    assert set(again.states("tokens")) == set(again.states("tokenised")) == {"done"}
