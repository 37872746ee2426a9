"""The sets of contamination that `benchmark_items.py` makes from a folder of public layouts."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from datamask.config.screening import Contamination
from datamask.hygiene.references import first_rows
from tests.evaluation.test_benchmarks import LAYOUTS

SCRIPT = Path(__file__).parents[2] / "examples" / "benchmark_items.py"

PLAIN = {
    "gsm8k": {"question": "Q?", "answer": "blue"},
    "lambada": {"text": "the last word is blue"},
}


def test_one_command_makes_the_sets_of_a_folder(tmp_path):
    """Each question with its right answer, in two forms; a folder of another name is named."""
    rows = {name.lower(): row for name, (row, *_) in LAYOUTS.items()} | PLAIN | {"mine": {"x": 1}}
    for name, row in rows.items():
        (tmp_path / name / "data").mkdir(parents=True)
        table = pa.Table.from_pylist([row])
        pq.write_table(table, tmp_path / name / "data" / "test-0.parquet")
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    made = Contamination.model_validate(yaml.safe_load(printed)["quality"]["contamination"])
    assert {known.name for known in made.sets} == rows.keys() - {"mine"} and "# mine" in printed
    for known in made.sets:
        items = [*first_rows(known.path, known.columns, None)]
        if known.name == "lambada":
            assert items == [PLAIN["lambada"]]
            continue
        _, answers, right = {**LAYOUTS, "gsm8k": (0, ["blue"], 0)}[
            next((name for name in LAYOUTS if name.lower() == known.name), known.name)
        ]
        assert [item["answer"] for item in items] == [answers[right], f"Answer: {answers[right]}"]
        assert all("Question:" not in i["question"] and i["question"] for i in items)
