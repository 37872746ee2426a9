"""Every command that the product prints is run in the situation that prints it."""

import ast
import contextlib
import io
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import datamask
from benchmarks.models import random_bert
from datamask.cli.main import cli
from datamask.config.loading import parse_settings
from datamask.report.answer import answer
from datamask.runs.opening import open_run
from datamask.selection import sampling
from tests.cli.commands import here, settings, text_corpus
from tests.conftest import leave_out_charts, measure_roughly
from tests.finished import WORDS, finish

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

ROOT = Path(datamask.__file__).parents[1]
HERE = "tests/cli/test_printed_commands.py"

PRINTED = {
    ("datamask/analysis/summary.py", "rebuild"): "test_what_is_missing_names_the_launch",
    ("datamask/cli/inspection.py", "rebuild"): "test_damage_names_the_launch",
    ("datamask/cli/inspection.py", "verify"): "test_damage_names_the_launch",
    ("datamask/cli/labelling.py", "settings"): "test_keys_are_explained",
    ("datamask/cli/open_pages.py", "rebuild"): "test_what_is_missing_names_the_launch",
    ("datamask/cli/options.py", "rebuild"): "tests/cli/test_main.py",
    ("datamask/cli/planning.py", "init"): "test_a_source_of_lines_goes_from_command_to_command",
    ("datamask/cli/planning.py", "plan"): "test_a_source_of_lines_goes_from_command_to_command",
    ("datamask/config/loading.py", "settings"): "test_keys_are_explained",
    ("datamask/config/reference.py", "settings"): "test_keys_are_explained",
    ("datamask/evaluation/arms.py", "evaluate"): "test_an_evaluation_with_too_little_text_goes_on",
    ("datamask/evaluation/arms.py", "rebuild"): "test_an_evaluation_with_too_little_text_goes_on",
    ("datamask/evaluation/sizes.py", "evaluate"): "test_what_a_report_proposes_is_done",
    ("datamask/execution/attempts.py", "rerun-failed"): "test_what_is_missing_names_the_launch",
    ("datamask/execution/status.py", "rerun-failed"): "test_what_is_missing_names_the_launch",
    ("datamask/planning/first_settings.py", "init"): "test_keys_are_explained",
    ("datamask/planning/first_settings.py", "plan"): "test_the_settings_of_init_can_be_launched",
    ("datamask/planning/first_settings.py", "rebuild"): "test_the_settings_of_init_can_be_launched",
    ("datamask/planning/first_settings.py", "settings"): "test_keys_are_explained",
    ("datamask/planning/plan.py", "extend"): "test_added_files_name_the_command",
    ("datamask/report/chart_data.py", "seen"): "tests/tokens/test_ledger.py",
    ("datamask/report/findings.py", "rebuild"): "test_what_a_finding_proposes_is_done",
    ("datamask/report/findings.py", "sweep"): "test_what_a_finding_proposes_is_done",
    ("datamask/report/group_findings.py", "label"): "tests/quality/test_labelling.py",
    ("datamask/report/group_findings.py", "query"): "test_what_a_finding_proposes_is_done",
    ("datamask/report/group_findings.py", "rebuild"): "tests/report/test_group_findings.py",
    ("datamask/report/quality_findings.py", "rebuild"): "test_what_a_finding_proposes_is_done",
    ("datamask/runs/run.py", "plan"): "test_what_is_missing_names_the_launch",
    ("datamask/runs/run.py", "rerun-failed"): "test_what_is_missing_names_the_launch",
    ("datamask/selection/model_file.py", "rebuild"): "tests/selection/test_judging.py",
    ("datamask/source/convert.py", "ingest"): "test_a_source_of_lines_goes_from_command_to_command",
    ("datamask/storage/duckdb_scratch.py", "verify"): "test_damage_names_the_launch",
    ("datamask/storage/local.py", "label"): "tests/quality/test_labelling.py",
    ("datamask/storage/remote.py", "verify"): "tests/storage/test_remote.py",
    ("flows/orchestration/artifacts.py", "open"): "tests/cli/test_open_pages.py",
    ("flows/orchestration/partitions.py", "deploy"): "tests/flows/test_installed.py",
    ("datamask/publishing/templates/card.md", "rebuild"): "tests/publishing/test_card.py",
}
"""By file and command: the test that runs it, here or in another file."""


def printed_commands() -> Iterator[tuple[str, str]]:
    """File and command of all texts in the sources except docstrings, and of templates."""
    names = "|".join(sorted(cli.commands, key=len, reverse=True))
    pattern = re.compile(rf"\bdatamask ({names})\b(?![=-])")
    for folder in ("datamask", "flows", "tasks"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and id(node) not in told:
                    for name in pattern.findall(str(node.value)):
                        yield path.relative_to(ROOT).as_posix(), name
    for path in (ROOT / "datamask").rglob("templates/*.*"):
        for name in pattern.findall(path.read_text(encoding="utf-8")):
            yield path.relative_to(ROOT).as_posix(), name


def test_every_printed_command_is_run_by_a_test():
    """A new one needs a place in the table, and its test is there."""
    assert {*printed_commands()} == PRINTED.keys()
    own = (ROOT / HERE).read_text(encoding="utf-8")
    for name in {*PRINTED.values()}:
        assert (ROOT / name).is_file() if "/" in name else f"def {name}(" in own, name


def run_printed(text: str, address: object = "") -> tuple[int, str]:
    """Run a command as a shell would read it; its status, and what it printed to both streams."""
    program, *arguments = shlex.split(text.replace("RUN", shlex.quote(str(address)), 1), True)
    assert program == "datamask"
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = here(*arguments)
    return status, said.getvalue()


def commands_in(text: str) -> list[str]:
    """The commands between backticks of a message."""
    return re.findall(r"`(datamask [^`]*)`", text)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A finished run and its source, for tests that copy it."""
    folder = tmp_path_factory.mktemp("printed")
    source = text_corpus(folder / "source")
    with pytest.MonkeyPatch.context() as patch:
        leave_out_charts(patch)
        measure_roughly(patch)
        assert here("rebuild", folder / "run", *settings(source)) == 0
    return folder / "run", source


def copy_of(small: tuple[Path, Path], folder: Path) -> Path:
    """A copy of that run, in a folder with a space and an apostrophe."""
    return Path(shutil.copytree(small[0], folder / "it's mine"))


def test_what_is_missing_names_the_launch(small, tmp_path, capsys):
    """Status, a page and a query of a run that lacks something; each command finishes the run."""
    root = copy_of(small, tmp_path)
    for lost, *asked in (
        ("report.html", "open"),
        ("composition.duckdb", "query", "from totals"),
        ("selection/00001.parquet", "status"),
    ):
        (root / lost).unlink()
        here(asked[0], root, *asked[1:])
        out, err = capsys.readouterr()
        [command] = commands_in(out + err)
        assert run_printed(command)[0] == 0 and (root / lost).exists()
    (root / "scores/00000.parquet").unlink()
    with pytest.raises(datamask.DatamaskError) as caught:
        open_run(root).receipt("scores")
    [command] = commands_in(str(caught.value))
    assert run_printed(command)[0] == 0 and (root / "scores/00000.parquet").exists()
    (root / "plan.parquet").unlink()
    with pytest.raises(datamask.DatamaskError) as caught:
        _ = open_run(root).pieces
    [command] = commands_in(str(caught.value))
    assert run_printed(command)[0] == 0 and (root / "plan.parquet").exists()


def test_damage_names_the_launch(small, tmp_path, capsys):
    """The command that `verify` prints makes the damaged file again."""
    root = copy_of(small, tmp_path)
    path = root / "embeddings/00001.parquet"
    kept = path.read_bytes()
    path.write_bytes(kept[:80] + bytes([kept[80] ^ 1]) + kept[81:])
    assert run_printed(f"datamask verify {shlex.quote(str(root))}")[0] != 0
    path.with_name(f"{path.name}.corrupt").replace(path)
    assert here("verify", root) != 0
    [command] = commands_in(capsys.readouterr().err)
    assert run_printed(command)[0] == 0 and path.read_bytes() == kept


def test_keys_are_explained(tmp_path, capsys):
    """The commands that an unknown key, and the commented settings, name."""
    for key in ("selection.no_such_setting_at_all=1", "no_group_at_all.x=1"):
        assert here("plan", tmp_path / "run", "--set", key) != 0
        for command in commands_in(capsys.readouterr().err):
            assert run_printed(command)[0] == 0
    assert here("settings", "zzzz.qqqq") != 0
    [command] = commands_in(capsys.readouterr().err)
    for one in (command, "datamask settings rubric", "datamask settings selection.metric"):
        assert run_printed(one)[0] == 0


def test_the_settings_of_init_can_be_launched(tmp_path, monkeypatch):
    """Both commands at the top of the file, as they are, in the folder where init ran."""
    monkeypatch.chdir(tmp_path)
    vectors = np.random.default_rng(0).standard_normal((60, 8)).tolist()
    columns = {"chunk_id": [f"c{row}" for row in range(60)], "feature_arr": vectors}
    columns["quality_score"] = [float(row % 7) for row in range(60)]
    Path("source").mkdir()
    pq.write_table(pa.table(columns), "source/0.parquet")
    assert here("init", "source", "-o", "my settings.yaml") == 0
    text = Path("my settings.yaml").read_text()
    commands = re.findall(r"^#   (datamask .*?)(?:  .*)?$", text, re.MULTILINE)
    assert [shlex.split(command)[1] for command in commands] == ["plan", "rebuild"]
    for command in commands:
        assert run_printed(command)[0] == 0
    assert Path("runs/mine/report.html").exists()


def test_a_source_of_lines_goes_from_command_to_command(tmp_path, monkeypatch, capsys):
    """A dry run names `ingest`, which names `init`, which names `plan`."""
    monkeypatch.chdir(tmp_path)
    Path("my lines").mkdir()
    rows = "".join(f'{{"id": "d{row}", "text": "a text of {row}"}}\n' for row in range(50))
    Path("my lines/a.jsonl").write_text(rows)
    here("plan", "run", "--dry-run", *settings(Path("my lines").absolute()))
    out, err = capsys.readouterr()
    [ingest] = commands_in(out + err)
    status, said = run_printed(ingest)
    assert status == 0
    status, said = run_printed(said.rpartition("next: ")[2])
    assert status == 0
    plan = said.rpartition("next: ")[2].strip()
    assert run_printed(f"{plan} --set embedding.method=lexical")[0] == 0


def test_added_files_name_the_command(small, tmp_path, capsys):
    """A launch refuses a source that has grown, and names `extend`."""
    source = Path(shutil.copytree(small[1], tmp_path / "source"))
    assert here("rebuild", tmp_path / "run", *settings(source)) == 0
    table = pq.read_table(source / "0.parquet")
    ids = pa.array([f"new-{row}" for row in range(len(table))])
    place = table.column_names.index("id")
    pq.write_table(table.set_column(place, "id", ids), source / "new.parquet", row_group_size=10)
    capsys.readouterr()
    assert here("rebuild", tmp_path / "run") != 0
    [command] = commands_in(capsys.readouterr().err)
    assert run_printed(command)[0] == 0
    assert open_run(tmp_path / "run").num_documents == 120 + len(table)


@pytest.mark.slow
def test_an_evaluation_with_too_little_text_goes_on(tmp_path, capsys):
    """A launch refuses at planning or before training; status repeats it, and its command ends."""
    source = text_corpus(tmp_path / "source", rows=300)
    root = tmp_path / "run"
    assert here("rebuild", root, *settings(source)) == 0
    before = (root / "run.json").read_bytes()
    base = ("hold_out=0.1", "model=tiny", "seeds=2", "learning_rates=[0.004]", "arms=[ours,random]")
    given = [part for item in base for part in ("--set", f"evaluation.{item}")]
    assert here("evaluate", root, *given, "--set", "evaluation.model=15M") == 2
    assert (root / "run.json").read_bytes() == before, "300 million tokens are refused at once"
    capsys.readouterr()
    assert here("evaluate", root, *given, "--set", "evaluation.tokens=6000") == 2
    [command] = commands_in(capsys.readouterr().err)
    assert here("status", root) == 0
    assert command in capsys.readouterr().out
    assert run_printed(command)[0] == 0
    assert "finished" in run_printed(f"datamask status {root}")[1]


@pytest.mark.slow
def test_what_a_report_proposes_is_done(tmp_path):
    """Trained models come first: the command says how long it takes, and ends with verdicts."""
    source = text_corpus(tmp_path / "source", rows=600)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert here("rebuild", tmp_path / "my run", *settings(source)) == 0
    commands = [line[6:] for line in said.getvalue().splitlines() if line.startswith("next: ")]
    assert re.search(r"  # about .* (minute|hour)", commands[0])
    status, printed = run_printed(commands[0])
    assert status == 0 and "bits per byte" in printed


def written(folder: Path, texts: list[str], **columns: Any) -> Path:
    """A source of these texts, in domains of their first word."""
    folder.mkdir()
    table = {"id": [f"n{row:04d}" for row in range(len(texts))], "text": texts, **columns}
    table["url"] = [f"https://{text.split()[0]}.org/" for text in texts]
    pq.write_table(pa.table(table), folder / "0.parquet", row_group_size=60)
    return folder


def words(number: int, seed: int = 0) -> list[str]:
    """Texts of 30 of a thousand words."""
    generator = np.random.default_rng(seed)
    known = [f"{word}{number}" for word in WORDS for number in range(60)]
    return [" ".join(generator.choice(known, 30)) for _ in range(number)]


def long_ones(folder: Path) -> tuple[Path, dict[str, Any]]:
    """A score that is the length."""
    lengths = np.random.default_rng(5).integers(2, 16, 240) ** 2
    texts = [" ".join(["word"] * length) + f" {row}" for row, length in enumerate(lengths)]
    source = written(folder, texts, edu=[float(len(text)) for text in texts])
    return source, {"selection": {"quality_weight": 0.95, "ratio": 0.1}}


def copies(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The best documents have a near-copy each, which random ones seldom have."""
    texts = words(240)
    texts[200:] = [f"{text} end" for text in texts[160:200]]
    scores = [float(row >= 160) + row % 40 / 1000 for row in range(240)]
    chosen = {"selection": {"method": "top_quality", "metric": "disf", "ratio": 0.25}}
    return written(folder, texts, edu=scores), chosen | {"plan": {"rows_per_shard": 240}}


def copied(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Most documents of one domain are near-copies of one another."""
    many = " ".join(f"shared{number}" for number in range(60))
    texts = [f"copied {many} {row}" for row in range(60)] + words(120)
    return written(folder, texts, edu=[0.0] * 180), {"quality": {"near_duplicates": {}}}


def without_vectors(folder: Path) -> tuple[Path, dict[str, Any]]:
    """A method that needs none."""
    return written(folder, words(120), edu=[0.0] * 120), {"selection": {"method": "random"}}


def benchmark(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Documents that quote a benchmark's item, and are only flagged."""
    texts = words(120)
    path = folder.parent / "items.jsonl"
    path.write_text("".join(f'{{"text": "{text}"}}\n' for text in texts[:60]))
    known = {"sets": [{"name": "items", "path": str(path)}], "action": "flag"}
    return written(folder, texts, edu=[0.0] * 120), {"quality": {"contamination": known}}


def sampled(folder: Path) -> tuple[Path, dict[str, Any]]:
    """One pass over the corpus, after learning from a sample."""
    chosen = {"scope": "corpus", "rounds": 1, "metric": "disf"}
    return written(folder, words(240), edu=[float(n % 9) for n in range(240)]), {
        "selection": chosen
    }


def unread(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Texts that are far longer than a window."""
    texts = [" ".join(words(300, seed)) for seed in range(12)]
    chosen = {"source": {"windows": 1}, "selection": {"ratio": 0.5}}
    return written(folder, texts, edu=[0.0] * 12), chosen


def low_quality(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Diverse documents have a low score, so the selection is worse than random in quality."""
    generator = np.random.default_rng(1)
    alike = [f"same {row} " + " ".join(["word"] * 20) for row in range(120)]
    texts = alike + words(120)
    scores = [1.0 + 0.1 * generator.random() for _ in alike] + [0.0] * 120
    chosen = {"quality_weight": 0.02, "ratio": 0.2, "metric": "facility_location"}
    groups = {"selection": chosen, "plan": {"rows_per_shard": 240}}
    return written(folder, texts, edu=scores), groups


SITUATIONS: list[tuple[Callable[[Path], tuple[Path, dict[str, Any]]], str]] = [
    (long_ones, "selection.more_terms="),
    (copies, "quality.near_duplicates="),
    (copied, "datamask query"),
    (without_vectors, "selection.metric="),
    (benchmark, "quality.contamination.action="),
    (sampled, "selection.rounds="),
    (unread, "source.windows="),
    (low_quality, "datamask sweep"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("situation", "part"), SITUATIONS)
def test_what_a_finding_proposes_is_done(situation, part, tmp_path, monkeypatch):
    """A run that is found wanting; its command ends well."""
    monkeypatch.setattr(sampling, "SAMPLE", 100)
    monkeypatch.setattr(sampling, "STAND_INS", 40)
    source, groups = situation(tmp_path / "source")
    data: dict[str, Any] = {
        "source": {"path": str(source)},
        "plan": {"rows_per_shard": 120},
        "quality": {"scores": [{"name": "edu", "kind": "column", "column": "edu"}]},
        "embedding": {"method": "lexical", "dimension": 32},
        "selection": {"steps": 20},
    }
    data["quality"]["prune_fraction"] = 0
    for name, values in groups.items():
        data[name] = {**data.get(name, {}), **values}
    run = finish(tmp_path / "run", parse_settings(data))
    [command] = [one for one in answer(run).commands if part in one]
    status, said = run_printed(command, run.address)
    assert status == 0, said


@pytest.mark.slow
def test_an_encoder_in_place_of_lexical_vectors(tmp_path):
    """With a model that is here, its dimension stays; with the usual one, its own is named."""
    source = written(tmp_path / "source", words(60), edu=[float(row % 7) for row in range(60)])
    model = random_bert(tmp_path / "model", words(60), hidden=32, layers=1)
    score = {"scores": [{"name": "edu", "kind": "column", "column": "edu"}]}
    for chosen in ({"model": str(model)}, {}):
        data = {"source": {"path": str(source)}, "quality": score}
        data["embedding"] = {"method": "lexical", "dimension": 32, **chosen}
        run = finish(tmp_path / f"run{len(chosen)}", parse_settings(data))
        [command] = [one for one in answer(run).commands if "embedding.method" in one]
        if chosen:
            assert run_printed(command, run.address)[0] == 0
        else:
            assert command.endswith("embedding.dimension=768")
