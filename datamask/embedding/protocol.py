"""The protocol of embedders without a pinned model: a class that turns texts into vectors.

`lexical` is one; users name their own as `package.module:Class`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from datamask.config.user_class import import_class, user_code
from datamask.embedding.vectors import normalise
from datamask.errors import InputError, SettingsError, one_line

BUILT_IN = {"lexical": "datamask.embedding.lexical:Lexical"}
TRIAL = ("A short text.", "", "Zwei Sätze. 二つの文。")
"""Texts that try an embedder when a run is planned."""


class TextEmbedder(ABC):
    """Turns texts into vectors that depend only on the text and `version`."""

    version: ClassVar[str]
    """Text that identifies the vectors; a new version embeds every document again."""

    most_characters: ClassVar[int | None] = None
    """Approximate number of characters that `embed` reads of a text; of longer texts it gets
    windows (`source.windows`). None: any number."""

    @abstractmethod
    def embed(self, texts: Sequence[str], dimension: int) -> np.ndarray:
        """Embed texts; float32, N x *dimension*, no zero rows. Rows are normalised later."""


def load_embedder(name: str) -> TextEmbedder:
    """Make an embedder from its built-in name or from `package.module:Class`, whose module is run.

    Raises:
        SettingsError: the import fails, or the module has no such subclass of `TextEmbedder`.
    """
    with user_code(f"embedding.method `{name}`: cannot be made"):
        made = import_class(BUILT_IN.get(name, name))
        if isinstance(made, type) and issubclass(made, TextEmbedder):
            return made()
    needed = "a subclass of datamask.embedding.protocol.TextEmbedder; see docs/own-objective.md"
    raise SettingsError(f"embedding.method `{name}`: needs {needed}")


def unit_vectors(embedder: TextEmbedder, texts: Sequence[str], dimension: int) -> np.ndarray:
    """Embed some texts; unit rows, float32, N x *dimension*.

    Raises:
        InputError: a row is not finite, is zero, or has another width.
    """
    matrix = np.asarray(embedder.embed(texts, dimension), np.float32)
    if matrix.shape != (len(texts), dimension):
        problem = f"the embedder made {matrix.shape}, needed ({len(texts)}, {dimension})"
        raise InputError(f"{problem}; correct its class, or set embedding.dimension")
    norms = np.linalg.norm(matrix, axis=1)
    wrong = np.flatnonzero(~np.isfinite(norms))
    if len(wrong):
        problem = "the embedder made NaN or infinity; correct its class, or drop the document"
        raise InputError(problem, row=int(wrong[0]), column="embedding")
    # Rows that already have unit length keep their bits.
    is_unit = bool((np.abs(norms - 1) <= 1e-6).all())
    return matrix if is_unit else normalise(matrix, name="embedding")


def try_embedder(name: str, dimension: int) -> str:
    """Try an embedder on a few texts and return its version; refuse it if it fails.

    Raises:
        SettingsError: the embedder has no version, or fails.
    """
    embedder = load_embedder(name)
    version = getattr(embedder, "version", None)
    if not isinstance(version, str) or not version:
        raise SettingsError(f"embedding.method `{name}`: give the class a `version` (text)")
    try:
        if name not in BUILT_IN:
            unit_vectors(embedder, TRIAL, dimension)
    except Exception as error:  # A user's class may raise anything.
        reason = one_line(error) or type(error).__name__
        problem = f"embedding.method `{name}`: failed on a trial ({reason})"
        raise SettingsError(f"{problem}; correct the class") from error
    return version
