"""Units of work that fail as a test says."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from datamask.execution import attempts
from datamask.runs.run import Run

Choose = Callable[[str, "int | None", int], "Exception | None"]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Choose], Counter[int | None]]:
    """Let units fail with what a function of stage, unit and attempt returns; counts attempts."""
    real = attempts._work

    def let_fail(choose: Choose) -> Counter[int | None]:
        counts: Counter[int | None] = Counter()

        def work(run: Run, stage: str, unit: int | None, *rest: Any) -> None:
            error = choose(stage, unit, counts[unit])
            if error is not None:
                counts[unit] += 1
                raise error
            real(run, stage, unit, *rest)

        monkeypatch.setattr(attempts, "_work", work)
        return counts

    return let_fail
