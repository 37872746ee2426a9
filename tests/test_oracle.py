"""Real runs of drawn texts and settings, against the oracle."""

import ast
import math
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import oracle
from tests.conftest import mostly_nightly
from tests.oracle_cases import DIMENSION, Case, cases, drawn
from tests.oracle_runs import check, check_command

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


@drawn
@given(cases("documents"), st.sampled_from(["selection", "composition"]))
def test_runs_of_texts_select_what_the_oracle_selects(case, last):
    """Scores, duplicates, pruning, budgets, ties and counts are right for whatever is drawn."""
    check(case, last)


def known(settings: dict, columns: dict, scores: dict | None = None) -> Case:
    """A case of one file: columns by name, each its values and its type."""
    rows = len(columns["id"][0])
    frame = pd.DataFrame({n: pd.Series(v, dtype=object) for n, (v, _) in columns.items()})
    base = {
        "source": {},
        "plan": {"rows_per_shard": -(-rows // 2)},
        "quality": {
            "prune_fraction": 0,
            "scores": [{"name": "edu", "kind": "column", "column": "edu"}],
        },
        "embedding": {"method": "lexical", "dimension": DIMENSION},
        "selection": {"ratio": 0.3, "quality_weight": 1.0, "steps": 2, "swap_refinement": 0},
    }
    for group, values in settings.items():
        base[group] = {**base.get(group, {}), **values}
    types = {name: kind for name, (_, kind) in columns.items()}
    return Case(base, [oracle.File(frame, (rows,))], types, scores or {})


def documents(rows: int, **columns: list) -> dict:
    """Columns of so many documents, of which the first are the best."""
    made = {
        "id": ([f"d{row:03d}" for row in range(rows)], pa.string()),
        "text": ([f"text number {row}" for row in range(rows)], pa.string()),
        "edu": ([float(rows - row) for row in range(rows)], pa.float64()),
    }
    return made | {name: (values, pa.array(values).type) for name, values in columns.items()}


def long_best_documents() -> Case:
    """In each of 20 dumps the best document is longer than the dump's cap."""
    dumps = [f"dump-{place % 20}" for place in range(200)]
    tokens = [600 if place < 20 else 100 for place in range(200)]
    limits = [{"column": "dump", "cap": 0.05}]
    selection = {"tokens": 8000, "limits": limits, "method": "top_quality"}
    return known({"selection": selection}, documents(200, dump=dumps, token_count=tokens))


def ids_like(ids: list, kind: pa.DataType) -> Case:
    """Scores in JSON lines, by ids that a reader may take for something else."""
    columns = documents(len(ids)) | {"id": (ids, kind)}
    score = {"name": "edu", "kind": "file", "missing": -9.0}
    files = [("0.jsonl", ids, [float(place % 7) for place in range(len(ids))])]
    return known({"quality": {"prune_fraction": 0, "scores": [score]}}, columns, {"edu": files})


def blank_languages(value: str | None) -> Case:
    """Most documents have no language, and those without are limited."""
    languages = [(None, "", " ", "en")[place % 4] for place in range(40)]
    limits = [{"column": "language", "value": value, "cap": 0.5}]
    return known({"selection": {"limits": limits}}, documents(40, language=languages))


def topics_with(**limit: object) -> Case:
    """Documents of two subjects, the first twice as often and better, and limits of topics."""
    texts = [("river bridge water", "engine copper signal")[place % 3 > 1] for place in range(40)]
    columns = documents(40, text=[f"{text} {place}" for place, text in enumerate(texts)])
    settings = {"topics": {"number": 2}}
    return known(settings | {"selection": {"limits": [{"column": "topic", **limit}]}}, columns)


def empty_texts() -> Case:
    """All texts are empty, which only reading them shows; the counts promise enough tokens."""
    columns = documents(2, text=["", ""], token_count=[400, 400])
    return known({"selection": {"tokens": 1, "method": "top_quality"}}, columns)


def column_named(*names: str) -> Case:
    """The source has columns that are named as those that the subset adds."""
    return known({}, documents(10, **{name: [*range(10)] for name in names}))


def long_texts(most: int) -> Case:
    """Texts of up to 16,000 characters in so many windows."""
    texts = [f"river{place} " * (1 + 220 * place) for place in range(10)]
    return known({"source": {"windows": most}}, documents(10, text=texts))


AUDIT = {
    "44-beginnings": long_texts(1),
    "44-windows": long_texts(2),
    "2-long-documents": long_best_documents(),
    "3-dates": ids_like([f"2020-01-{day:02d}" for day in range(1, 29)], pa.string()),
    "3-large": ids_like([2**63 + place for place in range(20)], pa.uint64()),
    "9-named": blank_languages("(none)"),
    "9-general": blank_languages(None),
    "44-topics": topics_with(cap=0.55),
    "44-topics-leave-too-little": topics_with(cap=0.2),
    "44-no-such-topic": topics_with(value="river of no return", floor=0.1),
    "66-empty-texts": empty_texts(),
    "10-quality": column_named("quality"),
    "10-case": column_named("Logit", "SHARD"),
}


@pytest.mark.parametrize(
    "name", mostly_nightly(("3-dates", "3-large", "9-named", "44-windows", "44-topics"), AUDIT)
)
def test_what_the_audit_found_stays_right(name):
    """The defects of the first version that the oracle had to find, by their numbers."""
    check(AUDIT[name])


@pytest.mark.parametrize(
    "name", [pytest.param("2-long-documents", marks=pytest.mark.slow), "10-case"]
)
def test_the_command_itself_selects_what_the_oracle_selects(name):
    """`datamask rebuild` in a process of its own: selection, or status 2 and the reason."""
    check_command(AUDIT[name])


def test_the_oracle_knows_what_is_no_number():
    """Null, NaN and infinity are missing; 0 is not."""
    given = [None, math.nan, math.inf, -math.inf, pd.NA, 0, -0.0, 1e300]
    assert [oracle.is_number(one) for one in given] == [False] * 5 + [True] * 3


def test_the_oracle_shares_no_code_with_what_it_judges():
    """It imports nothing of this project."""
    tree = ast.parse(Path(oracle.__file__).read_text("utf-8"))
    names = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    names |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not {name.partition(".")[0] for name in names} & {"datamask", "tasks", "flows", "tests"}
