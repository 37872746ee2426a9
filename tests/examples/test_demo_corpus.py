"""The demo's corpus, from a small tree of packages."""

import json

import pyarrow.parquet as pq

from datamask.source.convert import source_files
from examples.demo_corpus import WANTED, write_corpus

LONG = " ".join(f"word{i}" for i in range(25))


def test_corpus(tmp_path):
    """Long docstrings of modules, classes and functions are found; unreadable files are passed."""
    package = tmp_path / "lib" / "pkg"
    (package / "tests").mkdir(parents=True)
    (package / "__init__.py").write_text(f'"""{LONG}"""\n')
    (package / "a.py").write_text(
        f'class A:\n    """{LONG}"""\n    def f(self):\n        """{LONG}"""\n'
        'def g():\n    """Too short."""\n'
    )
    (package / "bad.py").write_text("def (:\n")
    (package / "tests" / "b.py").write_text(f'"""{LONG}"""\n')
    for out in ("one", "two"):
        assert write_corpus(tmp_path / out, num_files=2, roots=(tmp_path / "lib",)) == 3
    files = sorted((tmp_path / "one").iterdir())
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert [r["url"].rpartition("/")[2] for r in rows] == ["pkg", "pkg.a.A", "pkg.a.A.f"]
    assert len({r["id"] for r in rows}) == 3
    assert {r["token_count"] for r in rows} == {25}
    assert not any(str(tmp_path) in r["file_path"] for r in rows)
    assert all(f.read_bytes() == (tmp_path / "two" / f.name).read_bytes() for f in files)


def test_examples_are_not_in_the_corpus(tmp_path):
    """Half of the different texts of the wanted packages at most, each in one place alone.

    A source that is the folder does not have them either.
    """
    folder = tmp_path / "lib"
    for name in (*WANTED, "other"):
        (folder / name).mkdir(parents=True)
        functions = (f'def f{n}():\n    """{LONG} {n % 8}"""\n' for n in range(16))
        (folder / name / "__init__.py").write_text("".join(functions))
    apart = {"a.jsonl": 3, "b.jsonl": 3}
    number = write_corpus(tmp_path / "out", num_files=1, roots=(folder,), apart=apart)
    texts = {}
    for name in apart:
        lines = (tmp_path / f"out-{name}").read_text().splitlines()
        texts[name] = {json.loads(line)["text"] for line in lines}
    rows = pq.read_table(tmp_path / "out" / "docstrings-00.parquet").to_pylist()
    assert [len(some) for some in texts.values()] == [3, 1]
    assert not texts["a.jsonl"] & texts["b.jsonl"]
    assert not {row["text"] for row in rows} & (texts["a.jsonl"] | texts["b.jsonl"])
    assert len(rows) == number == 4 * 16 * 4 // 8
    documents = str(tmp_path / "out" / "docstrings-00.parquet")
    assert source_files(str(tmp_path / "out")) == ([documents], [])
