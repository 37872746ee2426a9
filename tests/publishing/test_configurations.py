"""Content of the published folder: its configurations, and every reader's view of them."""

import json
import re
import shutil
from collections.abc import Iterator
from urllib.parse import unquote

import datasets
import duckdb
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import yaml
from huggingface_hub import DatasetCard

from datamask.config.compute import Compute
from datamask.config.outputs import Publication
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.publishing.configurations import configurations
from datamask.publishing.folder import write_folder
from datamask.runs.opening import open_run, run_storage
from datamask.runs.run import Run
from tests.docs.pages import ROOT, blocks
from tests.finished import corpus, finish, publish_locally, rows_of, settings, table_of

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

TO = {"repository": "ada/subset", "license": "odc-by", "include": ["scores"]}
DUMPS = {"plain", "other"}


@pytest.fixture(scope="module", autouse=True)
def _a_fifth() -> Iterator[None]:
    """Configuration `sample` is a fifth of these few documents."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datamask.publishing.configurations.SAMPLE", 0.2)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A real run in small files, with its folder as it would be published."""
    folder = tmp_path_factory.mktemp("configs")
    chosen = settings(corpus(folder / "source"), subset={"file_bytes": 4096}, publication=TO)
    made = finish(folder / "run", chosen.model_copy(update={"publication": None}), "composition")
    made = Run(made.storage, chosen, made.pinned_revisions)
    (made.root / "pictures").mkdir()
    for name in ("curve-objective", "map", "lengths of documents"):
        (made.root / "pictures" / f"{name}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + name.encode())
    (made.root / "report").mkdir()
    caption = {"map": ["map of the embedding space", "Near is *similar*."]}
    (made.root / "report" / "captions.json").write_text(json.dumps(caption))
    publish_locally(made)
    return made


def card_of(run: Run) -> DatasetCard:
    """The folder's card."""
    return DatasetCard.load(run.root / "publication" / "README.md")


def patterns(run: Run) -> dict[str, str]:
    """The glob of each configuration, from the card."""
    return {
        config["config_name"]: config["data_files"][0]["path"]
        for config in card_of(run).data["configs"]
    }


def table(run: Run, name: str) -> pa.Table:
    """A configuration as pyarrow reads it, files in order."""
    root = run.root / "publication"
    paths = sorted(root.glob(patterns(run)[name]))
    assert all(re.fullmatch(r"train-\d{5}-of-\d{5}\.parquet", path.name) for path in paths)
    return pa.concat_tables(pq.read_table(path) for path in paths)


def test_every_file_belongs_to_its_configurations(run):
    """`default` is all of data/ and nothing else; dumps divide it; numbers begin at 0."""
    root = run.root / "publication"
    found = {name: set(root.glob(pattern)) for name, pattern in patterns(run).items()}
    assert set(found) == {"default", *DUMPS, "sample", "scores"}
    assert found["default"] == set(root.glob("data/**/*.parquet"))
    assert found["plain"] | found["other"] == found["default"]
    assert not found["plain"] & found["other"]
    assert set().union(*found.values()) == set(root.rglob("*.parquet"))
    for name in (*DUMPS, "sample", "scores"):
        count = len(found[name])
        expected = {f"train-{number:05d}-of-{count:05d}.parquet" for number in range(count)}
        assert {path.name for path in found[name]} == expected
    assert len(found["plain"]) > 1, "the test wants more than one file"


def test_default_is_the_subset_and_dumps_are_its_parts(run):
    """By id, against the run's own files and the source's column."""
    subset = table_of(run, "subset")
    assert sorted(table(run, "default")["id"].to_pylist()) == sorted(subset["id"].to_pylist())
    plain = [row["id"] for row in subset.to_pylist() if row["dump"] == "plain"]
    assert table(run, "plain")["id"].to_pylist() == plain


def test_the_sample_is_a_seeded_part(run, tmp_path):
    """A fifth of the rows, whole, other ones for another seed, the same in files of any size."""
    sample = table(run, "sample").to_pylist()
    rows = {row["id"]: row for row in table(run, "default").to_pylist()}
    assert len(sample) == 6 == round(0.2 * len(rows))
    assert all(rows[row["id"]] == row for row in sample)
    assert len({row["id"] for row in sample}) == 6

    larger = run.settings.subset.model_copy(update={"file_bytes": 2**20})
    shutil.copytree(run.root, tmp_path / "large")
    copy = plan_run(
        tmp_path / "large", run.settings.model_copy(update={"subset": larger}), publishing=False
    )
    run_stage(copy, "subset", Compute())
    publish_locally(copy)
    assert {path.name for path in (copy.root / "subset").iterdir()} != {
        path.name for path in (run.root / "subset").iterdir()
    }
    assert table(copy, "sample").to_pylist() == sample

    assert run.settings.publication is not None
    other = Run(run.storage, run.settings.model_copy(update={"seed": 1}), run.pinned_revisions)
    made = configurations(other, run.settings.publication, run.root / "again")
    [config] = [config for config in made if config.name == "sample"]
    drawn = [pq.read_table(path)["id"].to_pylist() for path in config.files.values()]
    assert sorted(key for part in drawn for key in part) != sorted(row["id"] for row in sample)


def test_scores_let_others_redo_the_cut(run):
    """Every document of the source with what the run's own files say of it."""
    rows = {row["id"]: row for row in table(run, "scores").to_pylist()}
    assert len(rows) == run.num_documents == 120
    selected = {key for key, row in rows.items() if row["selected"]}
    assert selected == set(table(run, "default")["id"].to_pylist())
    for shard in range(run.num_shards):
        masks = {row["id"]: row for row in rows_of(run, shard)}
        for row in pq.read_table(run.path("quality", shard)).to_pylist():
            found = rows[row["id"]]
            assert (found["quality"], found["dropped"]) == (row["quality"], row["dropped"])
            assert found["shard"] == shard
            assert found["logit"] == masks.get(row["id"], {"logit": None})["logit"]
        # The cut can be redone: the selected are those with the largest logits.
        logits = sorted((row["logit"] for row in masks.values()), reverse=True)
        chosen = [row["logit"] for row in masks.values() if row["selected"]]
        assert sorted(chosen, reverse=True) == logits[: len(chosen)]
    edu = pq.read_table(run.settings.source.path, columns=["id", "edu"]).to_pylist()
    assert {row["id"]: row["edu"] for row in edu} == {key: row["edu"] for key, row in rows.items()}


@pytest.mark.parametrize("name", ["default", *sorted(DUMPS), "sample", "scores"])
def test_every_reader_sees_the_same_rows(run, name, tmp_path, monkeypatch):
    """`datasets` by the configuration's name; DuckDB, polars and pyarrow by its glob."""
    import polars

    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    root = run.root / "publication"
    expected = table(run, name).sort_by("id").to_pylist()
    loaded = datasets.load_dataset(str(root), name, split="train", cache_dir=str(tmp_path))
    assert sorted(loaded.to_list(), key=lambda row: row["id"]) == expected
    place = f"{root}/{patterns(run)[name]}"
    columns = ", ".join(f'"{column}"' for column in expected[0])
    found = duckdb.sql(f"SELECT {columns} FROM read_parquet('{place}') ORDER BY id")
    assert found.to_arrow_table().to_pylist() == expected
    assert polars.scan_parquet(place).sort("id").collect().to_dicts() == expected
    paths = [str(path) for path in root.glob(patterns(run)[name])]
    assert pyarrow.dataset.dataset(paths).to_table().sort_by("id").to_pylist() == expected


def test_dataset_info_is_what_datasets_itself_would_say(run, tmp_path, monkeypatch):
    """Rows and sizes of every configuration; it takes the columns from the files."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    root = run.root / "publication"
    infos = {info["config_name"]: info for info in card_of(run).data["dataset_info"]}
    assert set(infos) == set(patterns(run))
    for name, info in infos.items():
        paths = list(root.glob(patterns(run)[name]))
        builder = datasets.load_dataset_builder(str(root), name, cache_dir=str(tmp_path))
        assert builder.info.splits["train"].num_examples == table(run, name).num_rows
        loaded = datasets.load_dataset(str(root), name, split="train", cache_dir=str(tmp_path))
        assert loaded.features == datasets.Features.from_arrow_schema(table(run, name).schema)
        assert info["splits"][0]["num_examples"] == table(run, name).num_rows
        assert info["download_size"] == sum(path.stat().st_size for path in paths)


def test_links_and_pictures_of_the_card_are_in_the_repository(run):
    """Every relative link names a file of the folder; every other one is an address."""
    root = run.root / "publication"
    pictures = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", card_of(run).text)
    shown = [unquote(path) for _, path in pictures]
    assert sorted(shown) == sorted(f"pictures/{path.name}" for path in root.glob("pictures/*"))
    names = ("map", "curve-objective", "lengths of documents")
    assert shown == [f"pictures/{name}.png" for name in names]
    text = card_of(run).text
    assert "![Map of the embedding space](pictures/map.png)\n\n" in text
    assert "\n*Map of the embedding space. Near is \\*similar\\*.*\n" in text
    assert "no configurations of their own" not in text
    for target in re.findall(r"\]\(([^)]+)\)", card_of(run).text):
        assert " " not in target, "markdown ends a link at a space"
        assert target.startswith("https://") or (root / unquote(target)).is_file(), target


def test_the_folder_is_the_same_whoever_writes_it(run, tmp_path):
    """From nothing and from what is there already: the same bytes."""
    root = run.root / "publication"
    before = {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    shutil.copytree(run.root, tmp_path / "run", ignore=shutil.ignore_patterns("publication"))
    copy = Run(run_storage(tmp_path / "run"), run.settings, run.pinned_revisions)
    again = publish_locally(copy)
    assert {p.relative_to(again): p.read_bytes() for p in again.rglob("*") if p.is_file()} == before
    times = {path: path.stat().st_mtime_ns for path in again.rglob("*.parquet")}
    publish_locally(copy)
    assert {path: path.stat().st_mtime_ns for path in again.rglob("*.parquet")} == times


def test_without_scores_there_are_subset_and_sample(run, tmp_path):
    """Files of an earlier publication are removed, and the card does not name them."""
    shutil.copytree(run.root, tmp_path / "run")
    copy = open_run(tmp_path / "run")
    write_folder(copy, Publication(license="mit", dry_run=True))
    header = yaml.safe_load((copy.root / "publication/README.md").read_text().split("---")[1])
    assert {config["config_name"] for config in header["configs"]} == {"default", *DUMPS, "sample"}
    assert {path.name for path in (copy.root / "publication").iterdir()} == {
        "README.md",
        "data",
        "pictures",
        "sample",
    }


def test_what_docs_say_loads_it(run, tmp_path, monkeypatch):
    """The blocks of docs/publish.md, with a folder in place of the repository."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path))
    page = ROOT / "docs" / "publish.md"
    root = str(run.root / "publication")
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        text = block.text.replace("me/fineweb-mask", root)
        exec(text.replace("CC-MAIN-2013-20", sorted(DUMPS)[0]), names)
    everything = table(run, "default").num_rows
    assert len(names["everything"]) == everything  # type: ignore[arg-type]
    assert 0 < len(names["one_dump"]) < everything  # type: ignore[arg-type]
    for block in blocks(page, "sql"):
        found = duckdb.sql(block.text.replace("hf://datasets/me/fineweb-mask@v1", root))
        assert len(found.fetchall()) == everything
