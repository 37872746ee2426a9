"""A headless Chromium, and finished runs: one with hostile documents, one for the figures."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from datamask.analysis.compare import compare
from datamask.execution.sweep import sweep_rows, tradeoff, write_sweep
from datamask.report import sample
from datamask.report.compare_page import compare_page
from datamask.runs.run import Run
from tests.conftest import leave_out_charts, measure_roughly
from tests.finished import corpus, finish, settings, word_tokenizer
from tests.report.figures import SIZES, documents_of

HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> "
    "</script><!-- <b>bold</b> "
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Debian's Chromium; tests that need it skip by name where there is none.

    Playwright keeps an event loop running in this thread, which changes how Prefect's calls behave:
    it must be over before other files' tests begin.
    """
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium on this machine: `make browser` installs it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass(frozen=True, slots=True)
class Made:
    """A run and its pages by name."""

    run: Run
    pages: dict[str, Path]


def make(folder: Path) -> Made:
    """The run and its pages."""
    source = corpus(folder / "source")
    for path in sorted(source.iterdir()):
        table = pq.read_table(path)
        texts = table["text"].to_pylist()
        texts[::4] = [HOSTILE + text for text in texts[::4]]
        texts[2::4] = [text + " river" for text in texts[1:-1:4]]  # near-copies
        table = table.set_column(table.schema.get_field_index("text"), "text", [texts])
        pq.write_table(table, path, row_group_size=12)
    tokens = {"tokenizer": word_tokenizer(folder / "tokenizer.json")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample, "SAMPLED_DOCUMENTS", 100)
        run = finish(folder / "run", settings(source, tokens=tokens))
    other = finish(
        folder / "other", settings(source, selection={"quality_weight": 1.0}), "composition"
    )
    comparison = folder / "comparison.html"
    comparison.write_text(compare_page(compare([run, other])), encoding="utf-8")
    rows = sweep_rows({"the run": run, "quality_weight=1.0": other}, None)
    chart = tradeoff(rows, {"quality_weight=1.0": {"quality_weight": 1.0}})
    (folder / "sweep").mkdir()
    return Made(
        run,
        {
            "report": run.path("report"),
            "comparison": comparison,
            "sweep": write_sweep(folder / "sweep", "run", rows, [chart]),
        },
    )


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run whose report looks at a part of the documents; its charts are not drawn."""
    folder = tmp_path_factory.mktemp("metrics")
    with pytest.MonkeyPatch.context() as patch:
        leave_out_charts(patch)
        measure_roughly(patch)
        for name, size in SIZES.items():
            patch.setattr(sample, name, size)
        return finish(folder / "run", settings(corpus(folder / "source")))


@pytest.fixture(scope="session")
def documents(run: Run) -> list[dict[str, Any]]:
    """The documents of that run."""
    return documents_of(run)
