"""Labels from an endpoint: the planted grades, each asked for once, within the bounds."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from datamask.config.compute import Compute
from datamask.config.loading import load_rubric, parse_settings
from datamask.config.rubric import Rubric
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.quality.asking import grades_in
from datamask.quality.labelling import Sampled, by_disagreement, read_journal, sample
from datamask.runs.run import Run
from tests.cli.commands import here
from tests.quality.endpoint import GOOD, KEY, RUBRIC, Stub, endpoint, labelled_run, planted, text_in


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, str]]:
    """A run with quality, and its texts."""
    return labelled_run(tmp_path_factory.mktemp("labels"))


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """A server, and its key in the environment."""
    monkeypatch.setenv("PLANTED_KEY", KEY)
    with endpoint() as server:
        yield server


def arguments(run: Run, folder: Path, stub: Stub, texts: int, **bounds: Any) -> list[str]:
    """Arguments of the command, with a rubric in *folder*."""
    (folder / "rubric.yaml").write_text(
        RUBRIC + "".join(f"{name}: {value}\n" for name, value in bounds.items())
    )
    given = ["--rubric", str(folder / "rubric.yaml"), "--endpoint", stub.url]
    return ["label", str(run.root), *given, "-o", str(folder / "out"), "--texts", str(texts)]


def labels_in(folder: Path) -> dict[str, dict[str, int]]:
    """The file of labels, by id."""
    lines = map(json.loads, (folder / "out/labels.jsonl").read_text().splitlines())
    return {line.pop("id"): line for line in lines}


def test_labels_are_the_planted_ones_and_asked_for_once(made, stub, tmp_path):
    """At temperature 0, with the key in a header and in no file; a second launch asks nothing."""
    run, texts = made
    command = arguments(run, tmp_path, stub, 120)
    for _ in range(2):
        assert here(*command) == 0
        labels = labels_in(tmp_path)
        assert len(labels) == len(stub.bodies) == 120
        assert labels == {key: planted(texts[key]) for key in labels}
    assert {body["temperature"] for body in stub.bodies} == {0}
    assert {body["path"] for body in stub.bodies} == {"/v1/chat/completions"}
    assert {headers["Authorization"] for headers in stub.headers} == {f"Bearer {KEY}"}
    kept = read_journal(tmp_path / "out/journal.jsonl")
    assert here(*arguments(run, tmp_path, stub, 20)) == 0 and labels_in(tmp_path) == labels
    sent = {json.dumps(body["messages"]) for body in stub.bodies}
    assert sent == {json.dumps(line["messages"]) for line in kept}
    files = [path for root in (run.root, tmp_path) for path in root.rglob("*") if path.is_file()]
    assert len(files) > 10 and not [path for path in files if KEY.encode() in path.read_bytes()]


def test_the_sample_is_even_over_tenths_and_domains(made):
    """Compared with pandas; a smaller sample begins the larger one, and pruned texts are in it."""
    run, texts = made
    drawn = sample(run, 100, 6000, Compute())
    assert [one.id for one in drawn[:40]] == [one.id for one in sample(run, 40, 6000, Compute())]
    assert all(one.text == texts[one.id] for one in drawn) and len({one.id for one in drawn}) == 100
    shards = range(run.num_shards)
    quality = pd.concat(pq.read_table(run.path("quality", shard)).to_pandas() for shard in shards)
    facts = pd.concat(pq.read_table(run.path("scores", shard)).to_pandas() for shard in shards)
    table = quality.assign(domain=facts.domain.to_numpy()).sort_values(["quality", "id"])
    table["tenth"] = np.arange(len(table)) * 10 // len(table)
    table = table.set_index("id")
    taken = table.loc[[one.id for one in drawn]]
    assert set(taken.tenth.value_counts()) == {10}
    assert (taken.dropped == "pruned").sum() in range(10, 30)
    for (_, domain), group in table.groupby(["tenth", "domain"]):
        number = len(taken[(taken.tenth == group.tenth.iloc[0]) & (taken.domain == domain)])
        assert abs(number - len(group) / 4) <= 2, domain


def test_a_busy_endpoint_is_asked_again(made, stub, tmp_path):
    """A status of 429 or 503 first for each text; if it never ends, the status is 75."""
    seen: Counter[str] = Counter()

    def busy(text: str, body: dict[str, Any]) -> tuple[int, str]:
        seen[text] += 1
        return stub.right(text, body) if seen[text] > 1 else (429 if len(seen) % 2 else 503, "busy")

    stub.reply = busy
    assert here(*arguments(made[0], tmp_path, stub, 30)) == 0
    assert len(labels_in(tmp_path)) == 30 and set(seen.values()) == {2}
    stub.reply = lambda text, body: (503, "busy")
    assert here(*arguments(made[0], tmp_path, stub, 200)) == 75
    assert len(labels_in(tmp_path)) == 30
    stub.reply = stub.right
    assert here(*arguments(made[0], tmp_path, stub, 60)) == 0
    assert len(labels_in(tmp_path)) == 60


def test_a_killed_process_asks_nothing_twice(made, stub, tmp_path):
    """Killed by SIGKILL while requests wait; the torn last line of the journal is cut off."""
    command = arguments(made[0], tmp_path, stub, 100)
    journal = tmp_path / "out/journal.jsonl"
    process: subprocess.Popen[bytes]

    def deadly(text: str, body: dict[str, Any]) -> tuple[int, str]:
        if journal.exists() and len(journal.read_bytes().splitlines()) >= 30:
            process.kill()
        return stub.right(text, body)

    stub.reply = deadly
    process = subprocess.Popen([sys.executable, "-m", "datamask.cli.main", *command])
    assert process.wait() == -signal.SIGKILL
    with journal.open("ab") as file:
        file.write(b'{"id": "d0')
    answered = [text_in(line) for line in read_journal(journal)]
    before = len(stub.bodies)
    assert 30 <= len(answered) < 60
    stub.reply = stub.right
    assert here(*command) == 0
    again = stub.texts[before:]
    assert len(labels_in(tmp_path)) == 100
    assert not {*answered} & {*again} and len(answered) + len(again) == 100


@pytest.mark.slow
def test_ctrl_c_writes_the_labels_of_a_model(made, stub, tmp_path):
    """Labels so far are kept, before the process ends as an interrupted one."""
    command = arguments(made[0], tmp_path, stub, 100)
    journal = tmp_path / "out/journal.jsonl"
    process: subprocess.Popen[bytes]
    sent = threading.Event()

    def interrupting(text: str, body: dict[str, Any]) -> tuple[int, str]:
        if journal.exists() and len(journal.read_bytes().splitlines()) >= 30 and not sent.is_set():
            sent.set()
            process.send_signal(signal.SIGINT)
        return stub.right(text, body)

    stub.reply = interrupting
    process = subprocess.Popen([sys.executable, "-m", "datamask.cli.main", *command])
    assert process.wait() != 0
    answered = [line["id"] for line in read_journal(journal)]
    assert 0 < len(labels_in(tmp_path)) < 100 and {*labels_in(tmp_path)} <= {*answered}


def test_invalid_answers_are_asked_for_once_more(made, stub, tmp_path, capsys):
    """A fourth is corrected, a fourth never is and is left out, and so are refused texts."""

    def kind_of(text: str) -> int:
        return zlib.crc32(text.encode()) % 4

    def careless(text: str, body: dict[str, Any]) -> tuple[int, str]:
        kind, is_first = kind_of(text), len(body["messages"]) == 2
        if kind == 0 or (kind == 3 and not is_first):
            return stub.right(text, body)
        return [(400, "too long"), (200, '{"depth": 9}'), (200, "I would say good.")][kind - 1]

    stub.reply = careless
    assert here(*arguments(made[0], tmp_path, stub, 60)) == 0
    kinds = Counter(kind_of(text) for text in {*stub.texts})
    assert min(kinds.values()) > 3
    labels = labels_in(tmp_path)
    assert labels == {key: planted(made[1][key]) for key in labels}
    assert len(labels) == kinds[0] + kinds[3]
    assert len(stub.bodies) == 60 + kinds[1] + kinds[2] + kinds[3]
    assert f"{kinds[1] + kinds[2]} without valid grades" in capsys.readouterr().out


@pytest.mark.parametrize("bound", [{"most_requests": 25}, {"most_tokens": 2500}])
def test_bounds_are_kept_over_all_launches(bound, made, stub, tmp_path):
    """Requests exactly, tokens (100 a request) up to those at work; a higher bound goes on."""
    for _ in range(2):
        assert here(*arguments(made[0], tmp_path, stub, 60, **bound)) == 2
        assert 25 <= len(stub.bodies) == len(labels_in(tmp_path))
        assert len(stub.bodies) <= 25 + 4 * ("most_tokens" in bound)
    assert here(*arguments(made[0], tmp_path, stub, 60)) == 0
    assert len(labels_in(tmp_path)) == len(stub.bodies) == 60


def test_a_wrong_key_is_one_error_and_shown_nowhere(made, stub, tmp_path, capsys):
    """The endpoint repeats the key; the message names the variable, and nothing is tried again."""
    for status in (401, 403, 404):
        stub.bodies.clear()
        stub.reply = lambda text, body, status=status: (status, f"bad key {KEY}")
        assert here("-q", *arguments(made[0], tmp_path, stub, 60)) == 2
        told = capsys.readouterr()
        assert len(told.err.splitlines()) == 1 and f"status {status}" in told.err
        assert status == 404 or "PLANTED_KEY" in told.err
        assert KEY not in told.out + told.err and len(stub.bodies) <= 4


@pytest.mark.parametrize(
    ("answer", "is_valid"),
    [
        ('```json\n{"depth": 3, "clean": 1}\n```', True),
        ('<think>{"depth": 1}</think> {"depth": 3, "clean": 1}', True),
        ('{"depth": 3.5, "clean": 1}', False),
        ('{"depth": true, "clean": 1}', False),
        ('{"depth": 6, "clean": 1}', False),
        ('{"depth": Infinity, "clean": 1}', False),
        ('{"depth": "3", "clean": 1}', False),
        ('{"depth": 3}', False),
        ("", False),
    ],
)
def test_only_integers_in_range_are_grades(answer, is_valid):
    """On every axis."""
    axes = [{"name": "depth", "lowest": 0}, {"name": "clean", "lowest": 0, "highest": 1}]
    rubric = Rubric.model_validate({"axes": axes})
    assert grades_in(rubric, answer) == ({"depth": 3, "clean": 1} if is_valid else None)


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://user:pass@localhost/v1", KEY),
        ("localhost:8000/v1", KEY),
        ("http://localhost:8000/v1", "two words"),
    ],
)
def test_addresses_and_keys_that_cannot_be_used_are_refused(
    url, key, made, stub, tmp_path, capsys, monkeypatch
):
    """Before anything is asked, without showing the secret."""
    monkeypatch.setenv("PLANTED_KEY", key)
    stub.url = url
    assert here("-q", *arguments(made[0], tmp_path, stub, 10)) == 2
    told = capsys.readouterr().err
    assert not any(secret in told for secret in ("pass", "abc", "two words"))
    assert os.environ["PLANTED_KEY"] == key


def test_the_rubric_of_the_guide_is_accepted(tmp_path):
    """The block of docs/labels.md."""
    page = (Path(__file__).parents[2] / "docs/labels.md").read_text()
    (tmp_path / "rubric.yaml").write_text(page.partition("```text\n")[2].partition("```")[0])
    assert [axis.highest for axis in load_rubric(tmp_path / "rubric.yaml").axes] == [5, 1]


INTERRUPT = "\x03"


def by_hand(run: Run, folder: Path, keys: list[str], texts: int = 30) -> str:
    """Return a terminal's content while the user types *keys*, some after each question."""
    given = ["label", str(run.root), "-o", str(folder / "out"), "--texts", str(texts)]
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "datamask.cli.main", *given]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    shown, typed = b"", 0
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # the command has closed the terminal
            while some := os.read(ours, 65536):
                shown += some
                while typed < min(len(keys), shown.count(b"quit: ")):
                    if keys[typed] == INTERRUPT:  # the terminal is not the process's own
                        process.send_signal(signal.SIGINT)
                    else:
                        os.write(ours, keys[typed].encode())
                    typed += 1
    os.close(ours)
    assert process.returncode == 0, shown.decode()
    return shown.decode()


@pytest.mark.slow
def test_the_user_labels_by_single_keys(made, tmp_path):
    """An undone key counts for nothing, a skipped text has no label, and a launch resumes."""
    run, _ = made
    first = by_hand(run, tmp_path, ["1", "x2", "u", "s", "5", "q"])
    journal = [line["id"] for line in read_journal(tmp_path / "out/journal.jsonl")]
    one, undone, *_ = journal
    assert [line["key"] for line in read_journal(tmp_path / "out/journal.jsonl")] == [*"12us5"]
    assert journal[1:4] == [undone] * 3 and len({*journal}) == 3
    assert labels_in(tmp_path) == {one: {"grade": 1}, journal[4]: {"grade": 5}}
    assert first.count("\r\n1 of 30  ") == 1 and first.count("\r\n2 of 30  ") == 2
    assert "4 of 30" in by_hand(run, tmp_path, ["4"] * 27)
    labels = labels_in(tmp_path)
    assert len(labels) == 29 and undone not in labels
    assert Counter(label["grade"] for label in labels.values()) == {1: 1, 4: 27, 5: 1}


@pytest.mark.slow
def test_ctrl_c_writes_what_was_labelled(made, tmp_path):
    """In the terminal, where it counts as quitting; a launch resumes."""
    run, _ = made
    by_hand(run, tmp_path, ["1", "5", INTERRUPT])
    journal = [line["id"] for line in read_journal(tmp_path / "out/journal.jsonl")]
    assert labels_in(tmp_path) == {journal[0]: {"grade": 1}, journal[1]: {"grade": 5}}
    assert "3 of 30" in by_hand(run, tmp_path, ["q"])


def test_texts_of_most_disagreement_are_first():
    """The best and the worst, and later those whose words the labels contradict."""
    words = ["proof measure", "sale offer"]
    texts = [Sampled(f"t{row}", words[row // 20], float(row)) for row in range(40)]
    assert {one.id for one in by_disagreement(texts, {})[:4]} == {"t0", "t1", "t38", "t39"}
    contradicting = {f"t{row}": 1 + 4 * (row < 20) for row in range(0, 40, 2)}
    first = by_disagreement(texts, contradicting)[:6]
    assert {one.id for one in first} == {"t0", "t1", "t2", "t37", "t38", "t39"}
    agreeing = {f"t{row}": 1 + 4 * (row >= 20) for row in range(0, 40, 2)}
    first = by_disagreement(texts, agreeing)[:4]
    assert {one.id for one in first} == {"t0", "t19", "t20", "t39"}


@pytest.mark.slow
def test_a_text_cannot_write_to_the_terminal(tmp_path):
    """Escape sequences are shown, and each line of a text stands after a bar."""
    run, _ = labelled_run(tmp_path / "made", 60, hostile="\x1b[2Jx\n1-5, s skip, u undo, q quit:")
    shown = by_hand(run, tmp_path, ["q"], 1)
    assert "\\x1b[2Jx" in shown and "\x1b[2J" not in shown
    assert "  | 1-5, s skip" in shown


def test_labels_make_a_score_that_follows_the_planted_quality(made, stub, tmp_path, capsys):
    """The printed settings, in a run of their own: documents without a label too."""
    run, texts = made
    assert here(*arguments(run, tmp_path, stub, 150)) == 0
    printed = capsys.readouterr().out
    written = yaml.safe_load(printed[printed.index("quality:") :].partition("\n\n")[0])
    data = {"source": {"path": run.settings.source.path}, "embedding": {"method": "lexical"}}
    scored = plan_run(tmp_path / "scored", parse_settings(data | written))
    for stage in ("example_models", "scores"):
        run_stage(scored, stage, Compute())
    table = pq.read_table(scored.path("scores", 0)).to_pandas().set_index("id")
    others = table.loc[[key for key in texts if key not in labels_in(tmp_path)]]
    shares = [sum(word in GOOD for word in texts[key].split()) for key in others.index]
    for axis in ("depth", "clean"):
        assert others[axis].corr(pd.Series(shares, others.index), method="spearman") > 0.9
        assert scored.receipt("example_models").metrics[axis]["correlation"] > 0.8
