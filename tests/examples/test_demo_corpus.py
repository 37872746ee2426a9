"""The demo's corpus, from a small tree of packages."""

from __future__ import annotations

import pyarrow.parquet as pq

from examples.demo_corpus import write_corpus

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
