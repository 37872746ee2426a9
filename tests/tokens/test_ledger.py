"""The ledger: which documents are behind tokens, by command, SQL, report and published data set."""

import copy
import itertools
import json
from dataclasses import replace
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner

from datamask.cli.main import cli
from datamask.config.outputs import Publication
from datamask.publishing.folder import write_folder
from datamask.report.chart_data import training_windows
from datamask.runs.run import Run
from examples.stream_tokens import Tokens
from tests.finished import corpus, finish, settings, table_of, word_tokenizer

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run with repeats."""
    folder = tmp_path_factory.mktemp("ledger")
    tokens = {"tokenizer": word_tokenizer(folder / "tokenizer.json")}
    selection = {"tokens": 900, "max_repeat": 4, "training_tokens": 2000}
    chosen = settings(corpus(folder / "source"), tokens=tokens, selection=selection)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datamask.tokens.order.TOKENS_PER_FILE", 700)
        return finish(folder / "run", chosen)


def stream(run: Run) -> np.ndarray:
    """The id of the document behind every token, from the ledger's order and lengths alone."""
    rows = pq.read_table(run.path("order"), columns=["id", "tokens"]).to_pylist()
    return np.repeat([row["id"] for row in rows], [row["tokens"] for row in rows])


def seen(run: Run, *arguments: str) -> list[dict[str, Any]]:
    """Return what the command prints."""
    command = ["seen", str(run.root), *arguments, "--format", "json"]
    result = CliRunner().invoke(cli, command, catch_exceptions=False)
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_seen_lists_the_documents_of_a_range(run):
    """Also those that begin before it; the last token is left out."""
    behind = stream(run)
    facts = {row["id"]: row for row in table_of(run, "documents").to_pylist()}
    begins = pq.read_table(run.path("order"))["first_token"].to_pylist()
    for first, last in ((0, 1), (begins[3], begins[5]), (333, 777), (1999, 5000)):
        found = seen(run, "--tokens", f"{first}:{last}")
        assert [row["id"] for row in found] == list(dict.fromkeys(behind[first:last]))
        for row in found:
            assert row["quality"] == facts[row["id"]]["quality"]
            assert row["domain"] == facts[row["id"]]["domain"]


def test_seen_says_when_and_how_often(run):
    """Every exposure of a document, and only in the range if there is one."""
    behind = stream(run)
    name, count = max(
        zip(*np.unique(behind, return_counts=True), strict=True), key=lambda one: one[1]
    )
    found = seen(run, "--id", str(name))
    assert [row["exposure"] for row in found] == list(range(1, len(found) + 1))
    assert sum(row["tokens"] for row in found) == count
    assert all((behind[row["first_token"] :][: row["tokens"]] == name).all() for row in found)
    assert seen(run, "--id", str(name), "--tokens", "0:1") in ([], found[:1])


def test_the_chart_has_the_shares_of_parts(run):
    """Of twenty parts of the training, against counts of tokens by the document behind each."""
    rows = pq.read_table(run.path("order")).to_pylist()
    part = np.array([min(row["first_token"] * 20 // 2000, 19) for row in rows])
    size = np.array([row["tokens"] for row in rows])
    dumps = {row["id"]: row["dump"] for row in pq.read_table(run.root / "subset").to_pylist()}
    (chart,) = training_windows(run)
    assert {series.name for series in chart.series} == {*dumps.values(), "seen before"}
    for series in chart.series:
        is_in = np.array(
            [
                row["exposure"] > 1
                if series.name == "seen before"
                else dumps[row["id"]] == series.name
                for row in rows
            ]
        )
        whole = size[is_in].sum() / 2000
        shares = [size[is_in & (part == n)].sum() / size[part == n].sum() for n in np.unique(part)]
        assert series.y == pytest.approx(np.array(shares) / whole, abs=1e-4)


def test_tokens_are_published_in_order(run):
    """A configuration that streams, goes on from a state, and is described in the card."""
    to = Publication(license="mit", dry_run=True, include=("tokens",))
    run = replace(run, settings=run.settings.model_copy(update={"publication": to}))
    write_folder(run, to)
    folder = str(run.root / "publication")
    published = datasets.load_dataset(folder, "tokens", split="train", streaming=True)
    flat = [np.fromfile(path, np.uint16) for path in sorted((run.root / "tokens").glob("*.bin"))]
    rows = list(published)
    assert [row["id"] for row in rows] == pq.read_table(run.path("order"))["id"].to_pylist()
    assert [token for row in rows for token in row["tokens"]] == np.concatenate(flat).tolist()
    again = iter(published)
    for _ in range(7):
        next(again)
    published.load_state_dict(published.state_dict())
    assert next(iter(published)) == rows[7]
    sequences = [torch.cat([inputs, targets[-1:]]) for inputs, targets in Tokens(folder, 16)]
    wanted = np.lib.stride_tricks.sliding_window_view(np.concatenate(flat), 17)[::16]
    assert torch.stack(sequences).tolist() == wanted.tolist()
    begun = Tokens(folder, 16)
    first = list(itertools.islice(begun, 40))
    resumed = Tokens(folder, 16)
    resumed.load_state_dict(copy.deepcopy(begun.state_dict()))
    assert [inputs.tolist() for inputs, _ in resumed] == wanted[len(first) :, :-1].tolist()
    card = (run.root / "publication" / "README.md").read_text()
    assert "`tokenizer.json`" in card and run.pinned_revisions["tokenised:tokenizer"] in card
    assert "2,000 tokens" in card
