"""Select pre-training data by quality and diversity at once (DATAMASK, arXiv 2512.24265).

The library knows nothing of Prefect: every stage is a plain function on a run folder.
Start at `datamask.execution.pipeline.rebuild`, or at `datamask.learning.learner.learn_mask` for the
learner alone.
"""

__version__ = "0.1.0"
