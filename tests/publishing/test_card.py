"""The dataset card: a header the Hub accepts, and nothing that names the machine."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from huggingface_hub import DatasetCard

from datamask.config.loading import load_settings
from datamask.errors import RunError
from datamask.evaluation.pinning import pin_evaluation
from datamask.publishing.card import card_text, is_our_card, shown_path, size_category
from datamask.publishing.configurations import configurations
from datamask.report.answer import Answer
from datamask.runs.run import Run
from tests.finished import publish_locally
from tests.hub.runs import compose_all

pytestmark = pytest.mark.usefixtures("roughly")


def text_of(run: Run) -> str:
    """The card of a run as it is published."""
    return (publish_locally(run) / "README.md").read_text()


def test_the_header_is_what_the_hub_indexes(make_run):
    """License, languages, size, tags and data files; the source's citation is below it."""
    asked = {"citation": "@misc{mine}"}
    path = {"source": {"path": "hf://datasets/a/b/data"}}
    run = make_run(path, **asked)
    text = text_of(run)
    assert "@misc{mine}" in text
    assert text == text_of(make_run(path, **asked)), "nothing in it depends on time or folder"
    data = DatasetCard(text).data.to_dict()
    assert data["license"] == "odc-by"
    assert data["size_categories"] == ["n<1K"]
    assert data["task_categories"] == ["text-generation"]
    assert data["source_datasets"] == ["a/b"]
    assert data["tags"] == ["data-selection", "datamask", "arxiv:2512.24265"]
    assert data["pretty_name"] == run.settings.publication.repository.rpartition("/")[2]
    config, sample = data["configs"]
    assert (config["config_name"], config["default"]) == ("default", True)
    assert config["data_files"] == [{"split": "train", "path": "data/default/train-*.parquet"}]
    assert (sample["config_name"], "default" in sample) == ("sample", False)


@pytest.mark.slow
def test_languages_are_not_guessed(make_run):
    """Languages of the source's column with their shares, else none."""
    run = make_run()
    languages = [*["de"] * 110, *["en"] * 8, "en", "Klingon_Latn"]

    def relabel(values: list[str | None]) -> str:
        """Give the documents these languages, as another source would."""
        for shard in range(run.num_shards):
            path = run.path("scores", shard)
            table = pq.read_table(path)
            part = pa.array(values[shard * len(table) : (shard + 1) * len(table)], pa.string())
            place = table.column_names.index("language")
            table = table.set_column(place, table.schema.field("language"), part)
            pq.write_table(table, path)
        compose_all(run)
        return text_of(run)

    # Every tenth of the 120 documents is kept: 11 German ones and the one in place 110.
    kept = languages[::10]
    text = relabel(languages)
    assert set(DatasetCard(text).data.to_dict()["language"]) == set(kept)
    for name in set(kept):
        assert f"{name} {kept.count(name) / len(kept):.1%}" in text
    mixed = [*["Klingon_Latn"] * 100, *["en"] * 20]
    assert DatasetCard(relabel(mixed)).data.to_dict()["language"] == ["en"]
    none = relabel([None] * 120)
    assert "language" not in DatasetCard(none).data.to_dict()
    assert "Languages" not in none


@pytest.mark.slow
def test_the_body_tells_the_recipe(make_run):
    """Counts, objective, seed, scorer and versions are the run's own."""
    run = make_run({"seed": 17})
    text = text_of(run)
    for part in ("12 of 120 documents", "facility_location", "| Seed | 17 |", "heuristic"):
        assert part in text
    assert run.settings.explained()[0] in text
    assert "compete within their shard" in text
    diversity = "(1 − λ) · facility_location / range(facility_location)"
    assert f"| Objective | λ · quality / range(quality) + {diversity}, λ = 0; " in text
    assert "pyarrow" in text
    assert "selected by `random`" in text_of(make_run({"selection": {"method": "random"}}))
    assert "hf://datasets/ada/subset@v1/data/default/train-*.parquet" in text
    assert "2512.24265" in text


def test_paths_of_this_machine_do_not_appear(make_run, tmp_path):
    """Files and folders of this machine are shown by their last component."""
    score = {"name": "s", "kind": "file", "path": "/home/ada/secret/scores.csv"}
    run = make_run(
        {
            "quality": {"scores": [score]},
            "embedding": {"method": "sentence-transformer", "model": "/home/ada/models/e5"},
            "source": {"path": "/home/ada/secret/corpus", "tokenizer": "/home/ada/own.json"},
        }
    )
    text = text_of(run)
    assert "/home" not in text
    assert "secret" not in text
    assert str(tmp_path) not in text
    assert "`corpus`" in text
    assert "scores.csv" in text


def test_the_configuration_in_the_card_is_valid(make_run, tmp_path):
    """The YAML block loads as settings equal to the run's, but for paths and publication."""
    run = make_run({"seed": 5, "selection": {"ratio": 0.1, "steps": 3}})
    block = text_of(run).split("```yaml\n")[1].split("```")[0]
    path = tmp_path / "config.yaml"
    path.write_text(block)
    loaded, _ = load_settings(path)
    expected = run.settings.model_copy(
        update={
            "publication": None,
            "source": run.settings.source.model_copy(update={"path": "corpus"}),
        }
    )
    assert loaded == expected


def test_the_command_that_judges_others_is_accepted(make_run, tmp_path, monkeypatch):
    """With the settings of the card it asks for nothing that a mask model has no place for."""
    # Nothing is trained here.
    monkeypatch.setattr("datamask.publishing.card.evaluation_markdown", lambda _: "")
    monkeypatch.setattr("datamask.publishing.card.answer", lambda _: Answer("", []))
    evaluation = {"arms": ["ours", "semdedup"], "hold_out": 0.01, "model": "tiny"}
    run = make_run({"evaluation": evaluation, "selection": {"documents": 12}})
    assert run.settings.publication is not None
    publication = run.settings.publication.model_copy(update={"include": ("mask_model",)})
    configs = configurations(run, publication, run.root / "publication")
    text = card_text(run, publication, configs)
    path = tmp_path / "config.yaml"
    path.write_text(text.split("```yaml\n")[1].split("```")[0])
    command = next(line for line in text.splitlines() if "selection.mask_model=" in line)
    loaded, _ = load_settings(path, tuple(command.split(" --set ")[1:]))
    assert loaded.selection.mask_model and loaded.selection.documents is None
    pin_evaluation(loaded)


@pytest.mark.parametrize("revision", ["", "@refs/convert/parquet"])
def test_a_hub_source_is_told_at_its_commit(make_run, revision):
    """Who reproduces the run reads what was read, whatever has become of the branch."""
    path = f"hf://datasets/org/corpus{revision}/data/*.parquet"
    run = make_run(
        {"source": {"path": path}},
        pinned_revisions={"scores:source": "c0ffee"},
    )
    text = text_of(run)
    assert f"| Source | `{path}` at `c0ffee` |" in text
    assert "[org/corpus](https://huggingface.co/datasets/org/corpus)" in text
    block = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    assert block["source"]["path"] == "hf://datasets/org/corpus@c0ffee/data/*.parquet"


def test_a_card_needs_the_composition(make_run):
    """Without figures no card is written, and the stage to run is named."""
    run = make_run()
    run.path("composition").unlink()
    with pytest.raises(RunError, match="run stage `composition` first"):
        text_of(run)


def test_only_our_cards_are_ours(make_run):
    """The mark is the tag in the header, not a word in the text."""
    assert is_our_card(text_of(make_run()))
    for other in ("", "datamask", "---\ntags: datamask-like\n---\n", "---\n- datamask\n---\n"):
        assert not is_our_card(other)
    assert not is_our_card("---\n: [broken\n---\n")


@pytest.mark.parametrize(
    ("documents", "name"),
    [
        (0, "n<1K"),
        (999, "n<1K"),
        (1000, "1K<n<10K"),
        (99_999, "10K<n<100K"),
        (5_000_000, "1M<n<10M"),
        (10**9, "1B<n<10B"),
        (10**12 - 1, "100B<n<1T"),
        (10**12, "n>1T"),
    ],
)
def test_size_categories_have_the_hubs_names(documents, name):
    """The bounds are powers of ten from a thousand to a trillion."""
    assert size_category(documents) == name


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("", ""),
        ("/data/fineweb/", "fineweb"),
        ("data/*.parquet", "*.parquet"),
        ("hf://datasets/org/name@abc/data/*.parquet", "hf://datasets/org/name@abc/data/*.parquet"),
        ("s3://key:secret@bucket/a?token=1", "s3://bucket/a"),
        ("file:///home/ada/corpus", "corpus"),
    ],
)
def test_shown_paths(path, shown):
    """URLs lose credentials; local paths keep their last component."""
    assert shown_path(path) == shown
