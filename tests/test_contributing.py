"""The examples of docs/own-objective.md work as they are, and CONTRIBUTING's map is the tree."""

import re
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.errors import SettingsError
from datamask.execution.pipeline import run_stage
from datamask.learning.learner import learn_mask
from datamask.planning.plan import plan_run
from tests.finished import corpus, embedded, settings, up_to
from tests.test_layers import ROOMS

pytestmark = pytest.mark.usefixtures("roughly")

GUIDE = Path(__file__).parent.parent / "CONTRIBUTING.md"
EXAMPLES = GUIDE.parent / "docs" / "own-objective.md"


def code_block(language: str, section: str = "Add an objective") -> str:
    """The first block of a language in a section."""
    section = EXAMPLES.read_text(encoding="utf-8").split(f"## {section}\n")[1]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found
    return found.group(1)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["expected", "policy_gradient"])
def test_the_toxicity_term_keeps_toxicity_low(estimator, tmp_path, monkeypatch):
    """With the third term the selection is less toxic than without, by either estimator."""
    (tmp_path / "my_terms.py").write_text(code_block("python"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_terms", raising=False)
    written = yaml.safe_load(code_block("yaml"))
    generator = np.random.default_rng(3)
    features = generator.standard_normal((400, 32), dtype=np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    quality = generator.standard_normal(400)
    toxic = quality + generator.standard_normal(400)

    def toxicity(terms: list) -> float:
        data = {**written, "selection": {"more_terms": terms, "estimator": estimator, "steps": 300}}
        settings = parse_settings(data)
        learned = learn_mask(
            features, quality, settings.selection, 40, seed=1, scores={"toxic": toxic}
        )
        return float(toxic[learned.selected].mean())

    assert toxicity(written["selection"]["more_terms"]) < toxicity([]) - 0.2


def test_the_metric_of_the_example_is_the_vendi_score(tmp_path, monkeypatch):
    """Its value follows from the eigenvalues of all cosines, and a mask by it raises it."""
    section = "A metric of your own: the Vendi score"
    (tmp_path / "my_metric.py").write_text(code_block("python", section))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_metric", raising=False)
    written = yaml.safe_load(code_block("yaml", section))["selection"]
    generator = np.random.default_rng(3)
    features = generator.standard_normal((300, 8), dtype=np.float32)
    features *= np.arange(1, 9)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    selection = parse_settings({"selection": written | {"quality_weight": 0, "steps": 100}})
    learned = learn_mask(features, features[:, 0], selection.selection, 30, seed=1)
    rows = features[learned.selected].astype(np.float64)
    eigenvalues = np.linalg.eigvalsh(rows @ rows.T / 30)
    eigenvalues = eigenvalues[eigenvalues > 1e-9]
    vendi = learned.metrics["terms"]["vendi"]
    assert vendi["selected"] == pytest.approx(-(eigenvalues * np.log(eigenvalues)).sum(), abs=1e-4)
    assert vendi["selected"] > vendi["random"] + 0.9 * (vendi["best"] - vendi["random"])
    assert learned.metrics["optimality_gap"] is not None


def test_the_embedder_of_the_example_makes_a_runs_vectors(tmp_path, monkeypatch):
    """Counts of letters, worked out again for each text, are the run's embeddings."""
    (tmp_path / "my_embedder.py").write_text(code_block("python", "Add an embedder"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_embedder", raising=False)
    given = yaml.safe_load(code_block("yaml", "Add an embedder"))
    source = corpus(tmp_path / "source")
    run = plan_run(tmp_path / "run", settings(source, **given))
    for stage in up_to(run, "embeddings"):
        run_stage(run, stage, Compute())
    texts = {
        row["id"]: row["text"]
        for path in sorted(source.iterdir())
        for row in pq.read_table(path, columns=["id", "text"]).to_pylist()
    }
    ids, vectors = embedded(run.path("embeddings", 0), 64)
    wanted = np.zeros((len(ids), 64))
    for row, name in enumerate(ids):
        for code in texts[name].encode():
            wanted[row, code % 64] += 1
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, wanted, atol=1e-3)


@pytest.mark.parametrize("name", ["subprocess:run", "os:system", "pathlib:Path", "nowhere:It"])
def test_settings_call_nothing_but_embedders(name, source, tmp_path):
    """A name that leads to something else is refused in one line, before it is called."""
    with pytest.raises(SettingsError, match=r"embedding\.method"):
        plan_run(tmp_path / "run", settings(source, embedding={"method": name, "dimension": 8}))


def test_the_map_is_the_tree_in_the_order_of_the_layers():
    """Each room of the library stands in the map, in the order that the test of layers states."""
    named = re.findall(r"^  (\w+)(?:/|\.py) ", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert named == [room.partition(".")[2] for room in ROOMS if room.startswith("datamask.")]
    folders = {path.parent.name for path in (GUIDE.parent / "datamask").glob("*/__init__.py")}
    assert {*named} == folders | {"errors", "showing"}
