"""A modest quality score for text that comes without one.

It exists so that the pipeline runs where there is no quality model: it separates prose from tables,
markup, boilerplate and fragments, and knows nothing of what the text says. It guarantees a number
in [0, 1] for every text, equal for equal texts.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from datamask.config.inputs import WINDOWS
from datamask.config.scores import HeuristicScore
from datamask.runs.run import Run
from datamask.source.windows import Scorer, cut

READ_CHARACTERS = 20_000
"""Characters of a window of a text, so that one huge document cannot stall a shard
(docs/log.md#heuristic)."""

_ENGLISH = """
a about after all also an and any are as at be been but by can could do for from had has have he
her his how i if in into is it its may more most my no not of on one only or other our out she so
some such than that the their them then there these they this to up was we were what when which
who will with would you your
"""
STOP_WORDS = frozenset(_ENGLISH.split())
_DIGITS = string.digits.encode()
_SYMBOLS = string.punctuation.encode()


def heuristic_scorer(run: Run, score: HeuristicScore) -> Scorer:
    """Return the function that scores texts by form."""
    return functools.partial(heuristic_scores, windows=run.settings.source.windows)


def heuristic_scores(
    texts: Iterable[str | None], windows: int = WINDOWS
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float32]]:
    """Score N texts by form, in [0, 1]; also return the fraction of each text that was read.

    *windows*: as `source.windows`; the score of a long text is the mean over its windows.
    """
    read = cut([text or "" for text in texts], READ_CHARACTERS, windows)
    scores = np.fromiter(map(score_text, read.texts), np.float64, len(read.texts))
    return read.mean(scores), read.share_read()


def score_text(text: str) -> float:
    """Return the mean of `parts_of` a text, in [0, 1]."""
    parts = parts_of(text)
    return sum(parts) / len(parts)


def parts_of(text: str) -> tuple[float, float, float, float, float]:
    """Return five scores of a text, each in [0, 1]; 0 for a text without words.

    With `w` words (split at white space, lower case), `b` bytes of UTF-8, and `clip` to [0, 1]:

    - length: w / (w + 100); half the score at 100 words
    - symbols: clip(1 - (s - 0.05) / 0.25); s = ASCII punctuation / b; free up to 5 %
    - digits: clip(1 - (d - 0.02) / 0.20); d = ASCII digits / b; free up to 2 %
    - repetition: different word triples / word triples (1 below 3 words)
    - stop words: clip(t / 0.3); t = English stop words / w; prose has about 0.4

    English is assumed: texts in other languages lose the last part.
    """
    words = text.lower().split()
    if not words:
        return 0.0, 0.0, 0.0, 0.0, 0.0
    raw = text.encode("utf-8", "surrogatepass")
    symbols = 1 - len(raw.translate(None, _SYMBOLS)) / len(raw)
    digits = 1 - len(raw.translate(None, _DIGITS)) / len(raw)
    num_triples = len(words) - 2
    repetition = 1.0
    if num_triples > 0:
        repetition = len(set(zip(words, words[1:], words[2:], strict=False))) / num_triples
    stops = sum(map(STOP_WORDS.__contains__, words)) / len(words)
    return (
        len(words) / (len(words) + 100),
        _clip(1 - (symbols - 0.05) / 0.25),
        _clip(1 - (digits - 0.02) / 0.20),
        repetition,
        _clip(stops / 0.3),
    )


def _clip(value: float) -> float:
    return min(1.0, max(0.0, value))
