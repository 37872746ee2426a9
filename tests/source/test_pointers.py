"""A pointer that git checks out in place of a file where git-lfs is not installed."""

import pytest

from tests.malformed.commands import problems, run_main

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.csv", "a.arrow"])
def test_a_pointer_is_named(name, tmp_path, capsys):
    """The only line names the file and git-lfs, for every format of a source."""
    (tmp_path / "source").mkdir()
    path = tmp_path / "source" / name
    path.write_text(POINTER)
    given = ["--set", f"source.path={tmp_path}/source", "--set", "embedding.method=lexical"]
    assert run_main(["plan", str(tmp_path / "run"), *given]) != 0
    [line] = problems(capsys)
    assert str(path) in line and "git lfs pull" in line


@pytest.mark.parametrize("name", ["s.parquet", "s.csv", "s.jsonl"])
def test_a_pointer_in_place_of_scores_is_named(name, tmp_path, capsys):
    """Of a score file, too."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source/a.jsonl").write_text('{"id": "x", "text": "a text"}\n')
    path = tmp_path / name
    path.write_text(POINTER)
    score = f"quality.scores=[{{name: edu, kind: file, path: {path}}}]"
    given = ["--set", f"source.path={tmp_path}/source", "--set", "embedding.method=lexical"]
    assert run_main(["plan", str(tmp_path / "run"), *given, "--set", score]) != 0
    assert any(str(path) in line and "git lfs pull" in line for line in problems(capsys))
