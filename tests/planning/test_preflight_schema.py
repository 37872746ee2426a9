"""Problems that the settings and the columns of the source show."""

import pyarrow as pa
import pytest

from datamask.config.loading import parse_settings
from datamask.planning.preflight_schema import column_problems
from datamask.planning.preview import counts_of_footers
from datamask.runs.budget import budget_problems


def test_the_setting_of_a_score_is_named_by_its_place():
    """Among all scores."""
    file = {"name": "a", "kind": "file", "path": "scores.csv"}
    column = {"name": "b", "kind": "column", "column": "grade"}
    chosen = parse_settings({"quality": {"scores": [file, column]}})
    schema = pa.schema({"id": pa.string(), "text": pa.string()})
    (problem,) = column_problems(chosen, schema)
    assert "column grade" in str(problem) and "set quality.scores.1.column" in str(problem)


@pytest.mark.parametrize("column", ["dump", "url", "language", "token_count"])
def test_a_column_that_a_setting_names_is_needed(column):
    """The column may be absent under its default name, or if the setting is empty."""
    schema = pa.schema({"id": pa.string(), "text": pa.string()})
    for name, columns in (("", []), (column, []), ("other", ["other"])):
        chosen = parse_settings({"source": {"columns": {column: name}}})
        assert [problem.column for problem in column_problems(chosen, schema)] == columns


def test_names_of_columns_may_be_empty_and_not_those_that_the_subset_adds():
    """In any case; DuckDB ignores it."""
    names = ["id", "text", "", "Logit"]
    schema = pa.schema(dict.fromkeys(names, pa.string()))
    assert [problem.column for problem in column_problems(parse_settings({}), schema)] == ["Logit"]


def test_a_budget_is_refused_only_if_so_much_is_pruned_in_any_case():
    """The fraction that examples prune, if unset, is known later, and may be nothing."""
    score = {"name": "a", "kind": "examples", "path": "good.jsonl"}
    refused = []
    for quality in ({}, {"prune_fraction": 0.5}):
        chosen = {"quality": {"scores": [score], **quality}, "selection": {"ratio": 0.6}}
        given = parse_settings(chosen)
        counts = counts_of_footers(given, 100)
        refused.append(len(list(budget_problems(given.selection, counts))))
    assert refused == [0, 1]
