"""Documents with an untypical beginning: 3 KB of one kind of text before 40 KB of another."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.analysis.summary import query
from datamask.report.findings import findings_of
from datamask.runs.run import Run
from tests import windows
from tests.finished import WORDS, finish, settings, table_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn", "roughly")]

PLANTED = ("prose first", "noise first", "noise, then prose")
HELD = (3000, 20_000, 4000)
"""Characters that a score from examples, the heuristic and the lexical embedder hold at once."""


def prose(generator: np.random.Generator, characters: int) -> str:
    """Words and stop words."""
    words = generator.choice([*WORDS, "the", "of", "and", "in"], characters)
    return " ".join(words)[: characters - 1] + " "


def noise(generator: np.random.Generator, characters: int) -> str:
    """Groups of eight hexadecimal digits."""
    digits = generator.choice([*"0123456789abcdef"], (characters, 8))
    return " ".join(map("".join, digits))[: characters - 1] + " "


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Short documents of both kinds, and the planted ones."""
    generator = np.random.default_rng(3)
    found = {f"prose {row}": prose(generator, 900) for row in range(110)}
    found |= {f"noise {row}": noise(generator, 900) for row in range(110)}
    planted = (
        prose(generator, 3000) + noise(generator, 40_000),
        noise(generator, 3000) + prose(generator, 40_000),
        noise(generator, 40_000) + prose(generator, 3000),
    )
    return found | dict(zip(PLANTED, planted, strict=True))


@pytest.fixture(scope="module")
def made(texts: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Run]:
    """Runs of one and of three windows."""
    folder = tmp_path_factory.mktemp("long")
    generator = np.random.default_rng(4)
    wanted = [prose(generator, 900) for _ in range(120)]
    pq.write_table(pa.table({"text": wanted}), folder / "wanted.parquet")
    table = pa.table({"id": [*texts], "text": [*texts.values()], "edu": np.zeros(len(texts))})
    (folder / "source").mkdir()
    pq.write_table(table, folder / "source" / "a.parquet", row_group_size=75)
    examples = {"name": "wanted", "kind": "examples", "path": str(folder / "wanted.parquet")}
    scores = {"scores": [examples, {"name": "form"}], "prune_fraction": 0.0}
    runs = {}
    for most in (1, 3):
        source = {"windows": most}
        chosen = settings(folder / "source", source=source, quality=scores)
        runs[most] = finish(folder / str(most), chosen, "composition")
    return runs


def judged(run: Run) -> tuple[dict[str, dict[str, Any]], dict[str, np.ndarray]]:
    """The documents and vectors of a run, by id."""
    rows = {row["id"]: row for row in query(run, "SELECT * FROM documents")}
    vectors = table_of(run, "embeddings").to_pydict()
    named = zip(vectors["chunk_id"], vectors["feature_arr"], strict=True)
    return rows, {name: np.asarray(vector, np.float64) for name, vector in named}


def test_long_documents_are_judged_by_all_of_their_text(made):
    """Text that is mostly noise scores below mostly prose, wherever the other part is."""
    for most in (1, 3):
        rows, vectors = judged(made[most])
        centre = np.mean([vectors[f"prose {row}"] for row in range(110)], 0)
        noisy, good, reversed_ = (rows[name] for name in PLANTED)
        near = [vectors[name] @ centre / np.linalg.norm(centre) for name in PLANTED]
        if most == 1:
            assert noisy["wanted"] > good["wanted"] + 1 and near[0] > near[1] > near[2]
        else:
            assert good["wanted"] > noisy["wanted"] + 1 and good["form"] > noisy["form"]
            assert near[1] > 0.9 and max(near[0], near[2]) < 0.5
            assert vectors[PLANTED[0]] @ vectors[PLANTED[1]] < 0.5
            apart = good["wanted"] - noisy["wanted"]
            assert abs(reversed_["wanted"] - noisy["wanted"]) < 0.1 * apart


def test_the_share_of_text_read_is_told(made, texts):
    """The least over all readers, by character; below half of it is a warning with a remedy."""
    for most in (1, 3):
        run = made[most]
        rows, _ = judged(run)
        expected = {
            name: min(
                windows.read(windows.by_hand(text, held, most), len(text))
                for held in HELD[: 3 if rows[name]["dropped"] is None else 2]
            )
            for name, text in texts.items()
        }
        assert {name: row["text_read"] for name, row in rows.items()} == pytest.approx(expected)
        [told] = [finding for finding in findings_of(run) if finding.name == "text read"]
        figures = (np.mean([*expected.values()]), min(expected.values()))
        assert all(f"{figure:.1%}" in told.text for figure in figures)
        assert "3 documents" in told.text and told.grade == "warning"
        assert told.command.endswith(f"source.windows={3 * most}")
