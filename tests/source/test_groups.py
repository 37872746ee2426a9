"""Groups of `source.groups` do what built-in groups of the same documents do."""

import contextlib
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import datamask
from datamask.analysis.summary import query
from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.errors import InputError, SettingsError
from datamask.planning.plan import plan_run
from datamask.quality import example_texts
from datamask.source.groups import name_groups
from tests.finished import corpus, finish, selected_ids, settings, table_of

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

PLACE = "replace(lower(split_part(url, '/', 3)), 'www.', '')"
OWN = {"tongue": "language", "place": PLACE, "band": "if(edu > 0, 'high', NULL)"}


def grouped(language: str, domain: str) -> dict:
    """Settings that use two kinds of groups wherever a kind can be named."""
    wanted = {"kind": "examples", "where": {"column": domain, "value": "site2.org"}}
    edu = {"name": "edu", "kind": "column", "column": "edu", "normalise_within": domain}
    return {
        "quality": {"scores": [edu, {"name": "wanted", "least_correlation": -1, **wanted}]},
        "selection": {
            "limits": [
                {"column": language, "value": "de", "floor": 0.5},
                {"column": language, "value": "en", "cap": 0.4},
            ],
            **{"method": "top_quality", "metric": ""},
        },
    }


@pytest.fixture(scope="module")
def runs(source, tmp_path_factory):
    """The same selection by built-in groups, and by groups of the user's own."""
    root = tmp_path_factory.mktemp("groups")
    chosen = {
        "built-in": settings(source, **grouped("language", "domain")),
        "own": settings(source, source={"groups": OWN}, **grouped("tongue", "place")),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example_texts, "LEAST_LABELS", 20)
        return [finish(root / name, settings, "composition") for name, settings in chosen.items()]


def test_own_groups_serve_wherever_built_in_ones_do(runs):
    """Limits, examples, normalisation and the report's figures are the same."""
    built_in, own = runs
    assert selected_ids(own) == selected_ids(built_in)
    assert table_of(own, "quality") == table_of(built_in, "quality")
    for table in ("groups", "score_explained"):
        rows = [
            query(run, f"SELECT * EXCLUDE kind FROM {table} WHERE kind IN ('{kinds}') ORDER BY ALL")
            for run, kinds in ((built_in, "language', 'domain"), (own, "tongue', 'place"))
        ]
        assert rows[0] == rows[1] != []
    known = pa.concat_tables([pq.read_table(path) for path in sorted_files(built_in)])
    bands = [{True: "high", False: "(none)"}[edu > 0] for edu in known["edu"].to_pylist()]
    assert table_of(own, "documents")["band"].to_pylist() == bands


def sorted_files(run):
    """The files of a run's source, in order."""
    return list(dict.fromkeys(piece.path for piece in run.pieces))


def test_only_what_reads_groups_is_made_again(runs):
    """A further group of a finished run leaves its scores, qualities and mask."""
    built_in, _ = runs
    source = built_in.settings.source.model_copy(update={"groups": OWN})
    now = replace(built_in, settings=built_in.settings.model_copy(update={"source": source}))
    for stage in ("example_models", "scores", "quality", "learning", "threshold", "selection"):
        assert set(now.states(stage)) == {"done"}
    assert set(now.states("groups")) == {"missing"}
    assert set(now.states("documents")) == {"stale"}


def test_limits_of_a_new_group_are_checked_before_the_run_changes(runs):
    """With counts of the source, because the finished run has not named the group's documents."""
    built_in, _ = runs
    data = built_in.settings.given()
    data["source"]["groups"] = OWN
    data["selection"]["limits"] = [{"column": "band", "value": "high", "floor": 0.9}]
    data["selection"]["ratio"] = 0.7
    with pytest.raises(SettingsError, match=r"the floor of band high asks for \d+ documents"):
        plan_run(built_in.root, parse_settings(data))
    assert plan_run(built_in.root, built_in.settings).states("selection") == ["done"] * 3


WRONG = ["nope", "count(*)", "(SELECT 1)", "row_number() OVER ()", "n +", "x; DROP TABLE x"]
UNSTABLE = [
    *("random( )", "UUID( /* a version */ )", "today(*)", "age(DATE '2024-01-01')"),
    *("current_setting('threads')", "list_filter([1], x -> random() > 0.5)"),
    "url = '')), CHECK (((url",
]
"""Expressions whose values depend on the clock, chance or settings; and one that is two."""


@pytest.mark.parametrize("expression", [*UNSTABLE, *WRONG])
def test_an_expression_that_is_wrong_is_refused_when_planned(source, tmp_path, expression):
    """In one line that names the group, before any work."""
    with pytest.raises(SettingsError, match=r"groups") as caught:
        plan_run(tmp_path / "run", settings(source, source={"groups": {"own": expression}}))
    assert "own" in str(caught.value) and expression in str(caught.value)
    assert "\n" not in str(caught.value) and "LINE" not in str(caught.value)
    assert not list((tmp_path).rglob("*.parquet"))


@pytest.mark.parametrize("limits", [(), ({"column": "own", "cap": 0.5},)])
def test_a_value_for_which_an_expression_fails_is_refused_with_its_file(tmp_path, limits):
    """When planned if limits count the groups, else by the stage that names them."""
    folder = corpus(tmp_path / "source")
    chosen = settings(folder, source={"groups": {"own": "id::INT"}}, selection={"limits": limits})
    with pytest.raises(InputError, match=r"column source\.groups\.own.*0-00.*try_cast") as caught:
        name_groups(plan_run(tmp_path / "run", chosen), 0, Compute())
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(("cap", "is_met"), [(0.5, False), (0.9, True)])
def test_blank_dumps_are_no_dump_when_limits_are_counted(tmp_path, cap, is_met):
    """Of 40 documents, 36 have a blank dump, which is the group `(none)` and no other."""
    rows = {"id": [f"{row:02d}" for row in range(40)], "text": ["a text"] * 40}
    (tmp_path / "source").mkdir()
    table = pa.table(rows | {"dump": ["", " ", None] * 12 + ["a"] * 4})
    pq.write_table(table, tmp_path / "source" / "a.parquet")
    limits = [{"column": "dump", "value": "(none)", "cap": cap}]
    asked = parse_settings(
        {
            "source": {"path": str(tmp_path / "source")},
            "embedding": {"method": "lexical"},
            "selection": {"documents": 20, "limits": limits},
        }
    )
    with contextlib.nullcontext() if is_met else pytest.raises(SettingsError, match="14"):
        plan_run(tmp_path / "run", asked)


def test_groups_that_a_run_lacks_are_refused():
    """A name that is neither built in nor set, or that is that of a column of the run's files."""
    names = {"selection": {"limits": [{"column": "sites", "cap": 0.1}]}}
    with pytest.raises(SettingsError, match="did you mean `site`"):
        parse_settings({"source": {"groups": {"site": "url"}}, **names})
    for name in ("quality", "Domain", "none", "a b"):
        with pytest.raises(SettingsError, match=f"`{name}`"):
            parse_settings({"source": {"groups": {name: "url"}}})


def test_select_names_the_column_of_its_limits():
    """Errors and limits of a table's column have the column's name."""
    table = pa.table({"text": [f"text {row}" for row in range(40)], "site": ["a", "b"] * 20})
    with pytest.raises(SettingsError, match="the floor of site b"):
        datamask.select(
            table, column="text", ratio=0.6, limits=[{"column": "site", "value": "b", "floor": 0.9}]
        )
