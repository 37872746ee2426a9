"""`datamask evaluate` as a user meets it, and where its findings are shown."""

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from datamask.analysis.summary import run_query
from datamask.publishing.card import _settings
from datamask.runs.opening import open_run
from tests.cli.commands import here
from tests.evaluation import small

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn", "roughly")]

BUDGET = ("model=tiny", "tokens=1500", "seeds=2", "learning_rates=[0.004]")
SETTINGS = [part for item in BUDGET for part in ("--set", f"evaluation.{item}")]


@pytest.fixture(scope="module")
def evaluated(
    selected_run: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Path, str]:
    """The folder of a run after `datamask evaluate`, and what it printed."""
    root = tmp_path_factory.mktemp("command") / "run"
    shutil.copytree(selected_run, root)
    capture = request.config.pluginmanager.getplugin("capturemanager")
    capture.read_global_capture()
    assert here("evaluate", root, *SETTINGS) == 0
    return root, capture.read_global_capture()[0]


def test_verdicts_and_table_are_printed(evaluated):
    """A line per pair of the five usual arms, the conditions, and a row per arm."""
    root, printed = evaluated
    verdicts = [line for line in printed.splitlines() if line.startswith("- ")]
    assert len(verdicts) == 10
    assert all(" than " in line or ": undecided. " in line for line in verdicts)
    for arm in ("ours", "random", "top_quality", "filtered_random", "semdedup"):
        assert f"| {arm} | " in printed.replace("\\_", "_")
    assert "1,500 tokens in 1 epoch, 2 seeds" in printed
    assert "it decides nothing about large models" in printed
    assert f"{root}/report.html#evaluation" in printed


def test_arms_and_verdicts_can_be_queried(evaluated):
    """Their documents join the others; tokens are those of the files; a verdict per pair."""
    run = open_run(evaluated[0])
    sql = "SELECT arm, count(*), sum(a.tokens) FROM arms a JOIN documents USING (id) GROUP BY 1"
    with run_query(run, sql) as (_, rows):
        counted = {arm: (documents, tokens) for arm, documents, tokens in rows}
    for unit, arm in enumerate(run.settings.evaluation.arms):
        table = pq.read_table(run.path("arms", unit))
        tokens = sum(map(len, table["tokens"].to_pylist()))
        assert counted.pop(arm.name) == (len(table), tokens)
    assert not counted
    with run_query(run, "SELECT count(*), count(verdict) FROM verdicts") as (_, rows):
        assert next(rows) == (len(pq.read_table(run.path("evaluation"))), 10)


def test_the_page_of_the_evaluation_has_every_model(evaluated):
    """Verdicts, curves, and bits per byte of each model, as its file has them."""
    root, printed = evaluated
    page = (root / "evaluation.html").read_text()
    assert "evaluation-curves-0-004" in page
    for line in printed.splitlines():
        assert not line.startswith("- ") or line.removeprefix("- ").replace("\\", "") in page
    for name, value in small.bits_per_byte(root).items():
        arm, seed = name.removesuffix("-rate0.004").split("-seed")
        assert f"<td>{arm}</td><td>{seed}</td><td>0.004</td><td>{value:.4f}</td>" in page


def test_the_card_names_no_folder_of_this_machine(source, root):
    """Of paths of arms and of their terms, the card has the last component."""
    mine = {"name": "mine", "kind": "ids"}
    term = {"name": "target", "path": "/home/ada/vectors.npy"}
    target = {"name": "target", "change": {"more_terms": [term]}}
    run = open_run(root)
    arms = [{**mine, "path": "/home/ada/ids.txt"}, target]
    run = replace(run, settings=small.settings(source, arms=arms))
    text = _settings(run)
    assert "ids.txt" in text and "vectors.npy" in text
    assert "/home/ada" not in text


def test_a_second_call_does_nothing_new(evaluated, capsys):
    """No file is written again; what was found is printed again."""
    root, printed = evaluated

    def written() -> dict[Path, int]:
        paths = (*root.rglob("*.parquet"), *root.rglob("*.html"), root / "run.json")
        return {path: path.stat().st_mtime_ns for path in paths}

    before = written()
    assert here("evaluate", root) == 0
    assert capsys.readouterr().out == printed
    assert written() == before


def test_models_are_exported_once(evaluated, tmp_path):
    """A folder for each of five arms and two seeds; what is there already is not replaced."""
    folder = tmp_path / "models"
    assert here("evaluate", evaluated[0], "--export", folder) == 0
    names = {path.name for path in folder.iterdir()}
    assert len(names) == 10 and "ours-seed1-rate0.004" in names
    assert all((folder / name / "config.json").is_file() for name in names)
    assert here("evaluate", evaluated[0], "--export", folder) == 2


def test_status_and_verify_know_the_stages(evaluated, capsys):
    """All units are done and listed; a damaged model is found, and trained again."""
    root, printed = evaluated
    assert here("status", root) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    counts = {row[0]: row[1:4] for row in rows if len(row) == 4}
    units = {"tokenizer": 1, "held_out": 1, "arms": 5, "training": 10, "evaluation": 1}
    for stage, number in units.items():
        assert counts[stage] == [str(number), "0", "0"], stage
    assert here("verify", root) == 0
    path = root / "evaluation" / "training" / "random-seed1-rate0.004.parquet"
    kept = path.read_bytes()
    path.write_bytes(kept[:60] + bytes([kept[60] ^ 1]) + kept[61:])
    assert here("verify", root) != 0
    assert f"{path}" in capsys.readouterr().out
    assert here("status", root) == 0
    assert "datamask rerun-failed" in capsys.readouterr().out
    assert here("evaluate", root) == 0
    assert path.read_bytes() == kept
    assert capsys.readouterr().out == printed
