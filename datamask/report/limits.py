"""How much the report looks at closely, however large the corpus."""

MOST_SHARDS = 32
"""Shards that the sample is drawn from."""

LOOKS_CLOSER = ("report",)
"""Stages whose cost is bounded by the size of that sample."""
