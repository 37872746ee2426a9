"""Files of scores that are absent, incomplete or malformed are refused in one line."""

import json

import pytest

from tests.malformed.commands import assert_refused
from tests.malformed.inputs import IDS, LINES, WITHOUT, Cases, score_file, setting

BAD = b"caf\xe9"
JSON_LINES = "".join(json.dumps({"id": key, "score": 0.5}) + "\n" for key in IDS)
SCORE_FILES: Cases = {
    "no such file of scores": (
        setting(quality__scores="[{name: a, kind: file, path: /nowhere.csv}]"),
        "/nowhere.csv: no .parquet, .csv, .jsonl, .ndjson files found; check",
    ),
    "unknown kind of file": (score_file("s.tsv", "id\tscore\n"), "s.tsv: unknown kind of file;"),
    "Parquet of scores without ids": (
        score_file("s.parquet", {"key": IDS, "score": [0.5] * len(IDS)}),
        "s.parquet, column id: absent; set column and id_column of score edu to two of: key,",
    ),
    "CSV with the score twice": (
        score_file("s.csv", "id,score,score\n" + LINES.replace(",", ",1,")),
        "s.csv, column score: occurs more than once; give every column its own name",
    ),
    **{
        f"{name.split('.')[1]} in {encoding}": (
            score_file(name, text.encode(encoding)),
            f"{name}: encoded in UTF-16 or UTF-32; convert it to UTF-8",
        )
        for name, text in (("s.csv", "id,score\n" + LINES), ("s.jsonl", JSON_LINES))
        for encoding in ("utf-16", "utf-16-be", "utf-16-le", "utf-32")
    },
    "CSV without the score": (score_file("s.csv", "id,grade\n" + LINES), "s.csv, column score:"),
    "CSV that is not UTF-8": (
        score_file("s.csv", b"id,score\n" + LINES.encode() + BAD + b",1\n"),
        "s.csv: cannot be read",
    ),
    "empty CSV": (score_file("s.csv", ""), "s.csv: cannot be read"),
    "document without a line in the CSV": (
        score_file("s.csv", "id,score\n" + LINES.replace("1-6,", "9-9,")),
        "1.parquet, row 6, column edu: score missing",
        WITHOUT,
    ),
    "id twice in a CSV": (
        score_file("s.csv", "id,score\n" + LINES + "0-0,0.2\n"),
        "s.csv, column id: ids occur more than once, '0-0' 2 times; keep one score of each",
    ),
    "JSONL without the score in one line": (
        score_file("s.jsonl", JSON_LINES.replace('"0-3", "score"', '"0-3", "grade"')),
        "0.parquet, row 3, column edu: score missing",
        WITHOUT,
    ),
}


@pytest.mark.parametrize("name", SCORE_FILES)
def test_bad_input_gets_one_line(name, tmp_path, capsys):
    """Parquet, CSV and JSONL that are absent, malformed, or lack ids or scores."""
    assert_refused(SCORE_FILES[name], tmp_path, capsys)
