"""The finished run of the report's tests."""

from tests.report.conftest import made

__all__ = ["made"]
