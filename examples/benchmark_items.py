"""Make the sets of `quality.contamination` from a folder of public benchmarks.

The folder has a folder of Parquet files per benchmark, under the names in `TEXTS` and, for multiple
choice, in docs/multiple-choice.md (race, arc, ...). Each question with its right answer becomes an
item, once as it is and once with the word "Answer" between them, because documents have both forms.
The settings are printed as YAML.

    hf download --repo-type dataset allenai/ai2_arc --local-dir benchmarks/arc
    python examples/benchmark_items.py benchmarks
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import duckdb
import yaml

TEXTS = {
    "aime": ("problem", "answer"),
    "bbh": ("input", "target"),
    "boolq": ("passage", "question"),
    "drop": ("passage", "question"),
    "gpqa": ("Question", "Correct Answer"),
    "gsm8k": ("question", "answer"),
    "humaneval": ("prompt", "canonical_solution"),
    "ifeval": ("prompt",),
    "lambada": ("text",),
    "math": ("problem", "solution"),
    "mbpp": ("text", "code"),
    "sciq": ("question", "correct_answer"),
    "squad": ("context", "question"),
    "truthfulqa": ("question", "best_answer"),
}
"""Columns of question and answer, as lm-evaluation-harness and lighteval read them on the Hub."""

PAGE = Path(__file__).parents[1] / "docs" / "multiple-choice.md"

ITEMS = """
COPY (
    SELECT regexp_replace(query, '(^|\\n)Question: |\\nAnswer:$', '\\1', 'g') AS question,
        unnest(['', 'Answer: ']) || choices[gold + 1] AS answer
    FROM read_json('{0}.jsonl', format = 'newline_delimited',
        columns = {{query: 'VARCHAR', choices: 'VARCHAR[]', gold: 'INTEGER'}})
) TO 'items/{0}.jsonl' (FORMAT json)
"""

COLUMNS = """
COPY (
    SELECT "{1}" AS question, unnest(['', 'Answer: ']) || "{2}" AS answer FROM '{0}/**/*.parquet'
) TO 'items/{0}.jsonl' (FORMAT json)
"""


def main(folder: str) -> None:
    """Write `items/` into the folder, and print the settings."""
    statements = re.findall(r"^### (\w+)\n.*?```sql\n(.*?)```", PAGE.read_text(), re.S | re.M)
    choices = {name.lower(): statement for name, statement in statements}
    os.chdir(folder)
    Path("items").mkdir(exist_ok=True)
    sets = []
    for name in sorted(path.name for path in Path().iterdir() if path.is_dir()):
        path, columns = Path("items", f"{name}.jsonl").absolute(), ["question", "answer"]
        if name in choices:
            duckdb.execute(choices[name].replace(f"'{name}/*.parquet'", f"'{name}/**/*.parquet'"))
            duckdb.execute(ITEMS.format(name))
        elif len(TEXTS.get(name, ())) == 2:
            duckdb.execute(COLUMNS.format(name, *TEXTS[name]))
        elif name in TEXTS:
            path, columns = Path(name).absolute(), [*TEXTS[name]]
        elif name != "items":
            print(f"# {name}: unknown; name its path and columns yourself")
            continue
        if name != "items":
            sets.append({"name": name, "path": str(path), "columns": columns})
    print(yaml.safe_dump({"quality": {"contamination": {"sets": sets}}}, sort_keys=False))


if __name__ == "__main__":
    main(sys.argv[1])
