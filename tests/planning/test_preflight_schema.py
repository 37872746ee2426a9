"""Problems that the settings and the columns of the source show."""

import pyarrow as pa

from datamask.config.loading import parse_settings
from datamask.planning.preflight_schema import column_problems


def test_the_setting_of_a_score_is_named_by_its_place():
    """Among all scores."""
    file = {"name": "a", "kind": "file", "path": "scores.csv"}
    column = {"name": "b", "kind": "column", "column": "grade"}
    chosen = parse_settings({"quality": {"scores": [file, column]}})
    schema = pa.schema({"id": pa.string(), "text": pa.string()})
    (problem,) = column_problems(chosen, schema)
    assert "column grade" in str(problem) and "set quality.scores.1.column" in str(problem)
