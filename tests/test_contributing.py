"""The example of CONTRIBUTING works as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from datamask.config.loading import parse_settings
from datamask.learning.learner import learn_mask

GUIDE = Path(__file__).parent.parent / "CONTRIBUTING.md"


def code_block(language: str) -> str:
    """The first block of a language in the section on objectives."""
    section = GUIDE.read_text().split("## Add an objective")[1]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found
    return found.group(1)


@pytest.mark.parametrize("estimator", ["expected", "policy_gradient"])
def test_the_toxicity_term_keeps_toxicity_low(
    estimator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the third term the selection is less toxic than without, by either estimator."""
    import yaml

    (tmp_path / "my_terms.py").write_text(code_block("python"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_terms", raising=False)
    written = yaml.safe_load(code_block("yaml"))
    generator = np.random.default_rng(3)
    features = generator.standard_normal((400, 32), dtype=np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    quality = generator.standard_normal(400)
    toxic = quality + generator.standard_normal(400)

    def toxicity(terms: list) -> float:
        data = {**written, "selection": {"more_terms": terms, "estimator": estimator, "steps": 300}}
        settings = parse_settings(data)
        learned = learn_mask(
            features, quality, settings.selection, 40, seed=1, scores={"toxic": toxic}
        )
        return float(toxic[learned.selected].mean())

    assert toxicity(written["selection"]["more_terms"]) < toxicity([]) - 0.2
