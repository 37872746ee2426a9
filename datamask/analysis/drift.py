"""How the corpus of a run that is judged by a mask model differs from the one it was learnt on.

What a term adds to a document's logit is linear in the document's moments, so its mean over a
corpus is the corpus's mean moments seen along the gradient of the term: the direction in which a
difference changes the selection.
"""

from __future__ import annotations

from typing import Any

from datamask.analysis.composition import query
from datamask.runs.run import Run

MOST_CHANGE = 0.2
"""Change of the share kept, relative to that of the model's run, above which there is a warning."""


def drift(run: Run) -> list[dict[str, Any]]:
    """Rows of table `drift`: `share kept` of the source, then each term; empty without a model.

    Keys: `term`; `then` and `now`, the share kept or the mean gain over documents in units of the
    logit, when the model was learnt and in this run; `deviation_then` and `deviation_now` of the
    gain; `shift`, the relative change of the share, or the change of the mean in deviations.
    """
    return query(run, "SELECT * FROM drift") if run.settings.selection.mask_model else []


def drift_text(run: Run) -> list[str]:
    """`drift` as lines for a terminal."""
    rows = drift(run)
    return [
        f"share kept   {row['now']:.3%}, {row['then']:.3%} where the model was learnt"
        if row["deviation_then"] is None
        else f"drift        {row['term']}: mean gain {row['shift']:+.2f} deviations"
        for row in rows
    ]
