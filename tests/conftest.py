"""Settings every test shares: no telemetry, no model hub, no progress bars, one thread."""

from __future__ import annotations

import os

# Before Prefect or huggingface_hub are imported: both read these once, at import.
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_DISABLE_XET", "1")

# Before torch and numpy are: on tensors of tests, threads that wait for each other cost ten times
# the arithmetic, and more while several tests run at once. Processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
