"""Public benchmarks: a small file of each published layout becomes questions by the page's SQL."""

import json
import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.evaluation import HeldOutSet
from datamask.evaluation.questions import answers_of

PAGE = (Path(__file__).parents[2] / "docs" / "multiple-choice.md").read_text(encoding="utf-8")
STATEMENTS = dict(re.findall(r"^### (\w+)\n.*?```sql\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))
OPTIONS = ["red", "green", "blue"]
LABELLED = {"choices": {"text": OPTIONS, "label": ["A", "B", "C"]}, "answerKey": "C"}
Row = dict[str, Any]
LAYOUTS: dict[str, tuple[Row, list[str], int]] = {
    "RACE": (
        {"example_id": "h1", "article": "A.", "question": "Q?", "options": OPTIONS, "answer": "B"},
        OPTIONS,
        1,
    ),
    "ARC": ({"id": "M1", "question": "Q?", **LABELLED}, OPTIONS, 2),
    "HellaSwag": (
        {"ind": 1, "activity_label": "W", "ctx": "A man", "endings": OPTIONS, "label": "2"},
        OPTIONS,
        2,
    ),
    "PIQA": ({"goal": "G", "sol1": "red", "sol2": "green", "label": 1}, OPTIONS[:2], 1),
    "SIQA": (
        {"context": "C.", "question": "Q?", "label": "3"}
        | dict(zip(("answerA", "answerB", "answerC"), OPTIONS, strict=True)),
        OPTIONS,
        2,
    ),
    "WinoGrande": (
        {"sentence": "The _ was tall.", "option1": "red", "option2": "green", "answer": "2"},
        ["red was tall.", "green was tall."],
        1,
    ),
    "MMLU": ({"question": "Q?", "subject": "law", "choices": OPTIONS, "answer": 0}, OPTIONS, 0),
    "OpenBookQA": ({"id": "7", "question_stem": "The sky is", **LABELLED}, OPTIONS, 2),
    "CommonsenseQA": (
        {"id": "1", "question": "Q?", "question_concept": "c", **LABELLED},
        OPTIONS,
        2,
    ),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_the_questions_of_a_benchmark(name, tmp_path, monkeypatch):
    """Every row is a question, its answers are the published ones, and the right one is right."""
    monkeypatch.chdir(tmp_path)
    row, answers, right = LAYOUTS[name]
    path = Path(name.lower())
    path.mkdir()
    pq.write_table(pa.Table.from_pylist([row] * 3), path / "0.parquet")
    duckdb.execute(STATEMENTS[name])
    own = {"name": "q", "path": f"{path}.jsonl", "prompt": "query", "column": "choices"}
    of_set = HeldOutSet(**own, gold="gold")
    read = [json.loads(line) for line in Path(f"{path}.jsonl").read_text().splitlines()]
    assert len(read) == 3
    for number, question in enumerate(read):
        shown = [*answers_of(of_set, number, question)]
        assert [answer["text"] for answer in shown] == [f" {answer}" for answer in answers]
        assert [answer["right"] for answer in shown] == [n == right for n in range(len(answers))]
