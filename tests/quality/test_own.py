"""A score by a class of one's own: the example of docs/scores.md, and classes that are wrong."""

import re
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from datamask.errors import SettingsError
from datamask.execution.attempts import ShardsFailedError
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.quality import own
from datamask.runs.run import Run
from tests.finished import finish, settings, table_of, word_tokenizer
from tests.quality.test_classifier import ON_CPU, binary, probability

__all__ = ["binary"]

SECTION = (Path(__file__).parents[2] / "docs" / "scores.md").read_text(encoding="utf-8")
SECTION = SECTION.split("## A score of your own\n")[1]


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules that can be imported, and that no earlier test has imported."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("my_scores", "theirs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    own._imported.cache_clear()
    own._made.cache_clear()
    return tmp_path


def block(language: str) -> str:
    """The block of a language in the section."""
    match = re.search(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)
    assert match
    return match.group(1)


def test_the_example_scores_normalised_texts(modules, binary):
    """Accents and capitals are gone before the model sees words; its file is part of the pin."""
    (modules / "my_scores.py").write_text(block("python"))
    (modules / "models").mkdir()
    (modules / "models" / "ultra_fineweb_en.bin").write_bytes(binary.read_bytes())
    word_tokenizer(modules / "models" / "tokenizer.json")
    texts = ["River STÖNE\n\n\n\nmarket", "garden window", None]
    pq.write_table(pa.table({"id": ["a", "b", "c"], "text": texts}), modules / "three.parquet")
    [score] = yaml.safe_load(block("yaml"))["quality"]["scores"]
    score |= {"path": str(modules / "models"), "options": {"label": "__label__hq"}}
    chosen = settings(modules / "three.parquet", quality={"scores": [score]})
    run = finish(modules / "run", chosen, "scores", ON_CPU)
    expected = [probability(text) for text in ("river stone market", "garden window", "")]
    scores = table_of(run, "scores")["ultra"].to_numpy()
    assert np.abs(scores - expected).max() < 2e-5 and np.ptp(expected) > 0.01
    word_tokenizer(modules / "models" / "tokenizer.json", more=1)
    assert plan_run(modules / "run", chosen).remaining("scores") == [0]


def planned(modules: Path, source: Path, body: str, **more: object) -> Run:
    """Plan a run whose score is a class with this method `score`."""
    code = f"from datamask.quality.own import TextScore\nclass It(TextScore):\n{body}\n"
    (modules / "theirs.py").write_text(code)
    score = {"name": "mine", "kind": "theirs:It", **more}
    return plan_run(modules / "run", settings(source, quality={"scores": [score]}))


def method(line: str) -> str:
    """The source of a method `score` of one line."""
    return textwrap.indent(f"def score(self, texts):\n    {line}", "    ")


NAN = "return [float('nan') if len(text.split()) == 17 else 1.0 * len(text) for text in texts]"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("return [1.0]", r"made \(1,\) of 3 texts"),
        ("return [[1.0]] * len(texts)", r"made \(3, 1\) of 3 texts"),
        ("raise KeyError('oh')", r"failed \(KeyError: 'oh'\)"),
        ("return ['good'] * len(texts)", "failed"),
    ],
)
def test_a_class_that_is_wrong_is_refused_when_planned(line, message, modules, source):
    """It is tried on a few texts; each fault is one line."""
    with pytest.raises(SettingsError, match=message) as caught:
        planned(modules, source, method(line))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["nowhere:It", "os:system", "touching:touch", "os:nothing"])
def test_nothing_but_a_score_is_called(kind, modules, source):
    """No such module and functions are refused in one line."""
    (modules / "touching.py").write_text(
        "from pathlib import Path\n\n\ndef touch(path):\n    Path(path).touch()\n"
    )
    with pytest.raises(SettingsError, match=f"kind `{kind}`"):
        score = {"name": "mine", "kind": kind, "path": str(modules / "made")}
        plan_run(modules / "run", settings(source, quality={"scores": [score]}))
    assert not (modules / "made").exists()


def test_too_few_numbers_after_planning_are_refused(modules, source):
    """Three texts are tried when planning; the shard has more."""
    run = planned(modules, source, method("return [1.0] * min(len(texts), 3)"))
    with pytest.raises(ShardsFailedError, match=r"mine.*made \(3,\) of 30 texts"):
        run_stage(run, "scores", ON_CPU)


def test_numbers_that_are_missing_are_named_by_row(modules, source):
    """With shard and row, unless missing scores are allowed; changed code is refused."""
    words = [len(text.split()) for text in _texts(source)]
    row = words.index(17)
    run = planned(modules, source, method(NAN))
    with pytest.raises(ShardsFailedError, match=rf"row {row % 30}\b.*mine: NaN"):
        run_stage(run, "scores", ON_CPU)
    run = planned(modules, source, method(NAN), missing="drop")
    run_stage(run, "scores", ON_CPU)
    scores = table_of(run, "scores")["mine"].to_pylist()
    assert [value is None for value in scores] == [number == 17 for number in words]
    own._imported.cache_clear()
    sys.modules.pop("theirs")
    (modules / "theirs.py").write_text((modules / "theirs.py").read_text() + "# another\n")
    with pytest.raises(ShardsFailedError, match="has changed since the run was planned"):
        run_stage(run, "scores", ON_CPU, force=True)


def _texts(source: Path) -> list[str]:
    files = sorted(source.glob("*.parquet"))
    return [text for file in files for text in pq.read_table(file)["text"].to_pylist()]
