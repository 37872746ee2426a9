"""Running a sweep, and writing its page and pictures."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from datamask.analysis.frontier import frontier
from datamask.analysis.sweep_trials import trials, try_choice
from datamask.config.compute import Compute
from datamask.config.outputs import Sweep
from datamask.report.pictures import write_pictures
from datamask.report.sweep_page import sweep_charts, sweep_page
from datamask.runs.files import replace_file
from datamask.runs.in_progress import working
from datamask.runs.run import Run

logger = logging.getLogger(__name__)


def run_sweep(
    run: Run,
    sweep: Sweep,
    compute: Compute,
    progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Run every missing trial, then write the page.

    Returns:
        `RUN/sweep/sweep.html`.

    Raises:
        RunError: quality or embeddings are missing.
        SettingsError: a value is out of its range.
    """
    wanted = trials(run, sweep)
    logger.info("sweep: %d trials on %d shards", len(wanted), len({t.shard for t in wanted}))
    with working("sweep"), ThreadPoolExecutor(compute.workers) as pool:
        done = pool.map(lambda trial: try_choice(run, sweep, trial, compute), wanted)
        for number, _ in enumerate(done, 1):
            if progress is not None:
                progress("sweep", number, len(wanted))
    return write_sweep(run, sweep)


def write_sweep(run: Run, sweep: Sweep) -> Path:
    """Write page and pictures of a finished sweep under `RUN/sweep/`.

    Raises:
        RunError: a trial is missing.
    """
    points = frontier(run, sweep)
    write_pictures(
        run.storage, "sweep/pictures", sweep_charts(points, run.settings.selection.metric)
    )
    path = run.root / "sweep" / "sweep.html"
    with replace_file(path, run.storage) as temporary:
        temporary.write_text(sweep_page(run, sweep, points), encoding="utf-8")
    return path
