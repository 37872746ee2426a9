"""The recommended recipe, filter then cover: values of settings that are not given.

docs/evidence.md compares it with others. `Settings` fills the values in.
"""

from __future__ import annotations

METRIC = "facility_location"
"""Metric where shards learn by themselves: it represents the documents that pruning leaves, without
their repetitions. DiSF and pairwise similarity prefer outliers."""

CORPUS_METRIC = "disf"
"""Metric where it must be a function of sums, which facility location is not: scope `corpus`, mask
models, method `greedy`."""

PRUNE_FRACTION = 0.5
"""Share of texts that is pruned by scores of the user's own; by a score from examples it is the
most that is pruned (`runs.followed`)."""

HEURISTIC_PRUNE_FRACTION = 0.4
"""Share that is pruned by the built-in heuristic alone, which tells noise from text less well."""

QUALITY_WEIGHT = 0.3
"""Lambda after pruning by scores of the user's own: documents that are left are not equally good,
and the best of them repeat each other."""

HEURISTIC_QUALITY_WEIGHT = 0.0
"""Lambda with the built-in heuristic alone: what it ranks highest trains worse models than random
documents."""

UNPRUNED_QUALITY_WEIGHT = 0.5
"""Lambda where quality has pruned nothing."""
