"""Scores from examples and the domains of the texts: what they learn, and where they are right."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.compute import Compute
from datamask.execution.pipeline import run_stage
from datamask.quality.examples import example_scorer
from datamask.quality.in_groups import rows_in_groups
from datamask.source.reading import read_ids
from tests.quality.test_examples import planned

SITES = ("cook", "shop", "code")
JARGON = {"cook": "oven flour whisk", "shop": "price cart sale", "code": "loop class import"}
GOOD, BAD = "because therefore however although explains", "click here login menu next"


def site_text(site: str, good: float, row: int) -> str:
    """Three words of a site, forty of which a fraction *good* are of good texts, and rare ones."""
    generator = np.random.default_rng([SITES.index(site), row])
    words = [*generator.choice(JARGON[site].split(), 3)]
    for is_good in generator.random(40) < good:
        words.append(generator.choice((GOOD if is_good else BAD).split()))
        words.append(f"rare{generator.integers(5000)}")
    return " ".join(words)


def sites_corpus(tmp_path: Path) -> dict[str, bool]:
    """A source of 750 texts of three sites; True for the ids of the good half of each."""
    rows = [(f"{site}-{row}", site, row % 2 == 0) for site in SITES for row in range(250)]
    texts = [site_text(site, 0.6 if good else 0.4, at) for at, (_, site, good) in enumerate(rows)]
    (tmp_path / "source").mkdir()
    table = {"id": [row[0] for row in rows], "text": texts}
    table["url"] = [f"https://www.{site}.org/{key}" for key, site, _ in rows]
    pq.write_table(pa.table(table), tmp_path / "source" / "a.parquet")
    return {key: good for key, _, good in rows}


def pairs_won(values: dict[str, float], good: dict[str, bool]) -> float:
    """The fraction of pairs of a good and a bad text that the values order rightly."""
    pairs = [(values[a], values[b]) for a in values if good[a] for b in values if not good[b]]
    return float(np.mean([(a > b) + (a == b) / 2 for a, b in pairs]))


def test_examples_of_one_site_do_not_teach_the_site(tmp_path):
    """With their address, they are compared with documents of that site; the score knows all sites.

    Without, the site decides. Examples that are like any text of their site are compared with all.
    """
    good, figures, best = sites_corpus(tmp_path), {}, {}
    texts = pq.read_table(tmp_path / "source" / "a.parquet")["text"].to_pylist()
    fractions = {"with": 0.6, "without": 0.6, "alike": 0.5}
    for name, of_good in fractions.items():
        table = {"text": [site_text("cook", of_good, 5000 + row) for row in range(200)]}
        if name != "without":
            table["url"] = ["http://cook.org/x"] * 198 + ["http://blog.net/x", None]
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
        run = planned(tmp_path, {"path": str(tmp_path / f"{name}.parquet")}, [], name)
        run_stage(run, "example_models", Compute())
        figures[name] = run.receipt("example_models").metrics["taste"]
        values, _ = example_scorer(run, run.settings.scores[0])(texts)
        best[name] = np.array([*good])[np.argsort(-values)[:375]]
    assert [figures[name]["matched"] for name in fractions] == ["domain", "", ""]
    assert [figures[name]["others"] for name in ("without", "alike")] == [750, 750]
    assert 250 <= figures["with"]["others"] < 260  # and one of a hundred from elsewhere
    of_cook = {name: sum(key.startswith("cook") for key in best[name]) for name in fractions}
    right = {name: sum(good[key] for key in best[name]) for name in fractions}
    assert of_cook["with"] < 160 and of_cook["without"] == of_cook["alike"] == 250
    assert right["with"] > 270 > 250 > right["without"]


def test_a_score_is_judged_inside_each_group(tmp_path, caplog):
    """The labels of site `code` are random: it is named, and no other. Figures are those of pairs.

    Groups of the user's own that have fewer than 50 texts of a kind have no row.
    """
    good = sites_corpus(tmp_path)
    chance = np.random.default_rng(0).integers(0, 2, 750)
    labels = {
        key: int(chance[at] if key.startswith("code") else good[key]) for at, key in enumerate(good)
    }
    path = tmp_path / "labels.csv"
    path.write_text("id,score\n" + "".join(f"{key},{label}\n" for key, label in labels.items()))
    run = planned(tmp_path, {"labels": str(path)}, [], groups={"few": "id LIKE '%-1_'"})
    for stage in ("example_models", "scores_in_groups"):
        caplog.clear()
        run_stage(run, stage, Compute())
    rows = {(row["kind"], row["name"]): row for row in rows_in_groups(run)}
    names = [("all", "all"), *(("domain", f"{site}.org") for site in SITES), ("few", "false")]
    assert sorted(rows) == sorted(names)
    model = pq.read_table(run.path("example_models")).to_pylist()[0]
    ids = [read_ids(run, shard).to_pylist() for shard in range(run.num_shards)]
    places = zip(model["shards"], model["rows"], model["tested"], strict=True)
    tested = {ids[shard][row]: value for shard, row, value in places}
    for site in SITES:
        of_site = {key: value for key, value in tested.items() if key.startswith(site)}
        row = rows["domain", f"{site}.org"]
        won = pairs_won(of_site, {key: bool(labels[key]) for key in of_site})
        assert row["auc"] == pytest.approx(won, abs=1e-6) and row["texts"] == 250
        assert (row["low"] <= 0.5) == (site == "code")
    [warned] = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [site in warned for site in SITES] == [False, False, True]
    assert "normalise_within: domain" in warned


def test_examples_are_judged_inside_their_own_groups(tmp_path):
    """By the columns that their file has, among documents of the same groups."""
    sites_corpus(tmp_path)
    rows = [(site, row) for site in SITES[:2] for row in range(80)]
    path = tmp_path / "examples.jsonl"
    lines = [{"text": site_text(site, 0.9, 5000 + row), "id": site} for site, row in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = planned(tmp_path, {"path": str(path)}, [], groups={"site": "id[:4]"})
    for stage in ("example_models", "scores_in_groups"):
        run_stage(run, stage, Compute())
    found = {(row["kind"], row["name"]): row["texts"] for row in rows_in_groups(run)}
    assert found == {("all", "all"): 910, ("site", "cook"): 330, ("site", "shop"): 330}
