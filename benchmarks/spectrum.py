"""Objectives on the spectrum of ρ = Σ x xᵀ / S, the second moments of the selected documents.

For unit vectors, ρ has trace 1, and its non-zero eigenvalues are those of the S x S cosine matrix
divided by S. Both terms are concave in the inclusion probabilities at a fixed S, so the learner can
bound the optimality gap of a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from datamask.objectives.protocol import MomentObjective, Moments
from datamask.objectives.threads import one_thread

LEAST_EIGENVALUE = 1e-7
"""Smaller eigenvalues of ρ are rounding noise of float32 sums (docs/log.md#numbers)."""


def _density(moments: Moments) -> Tensor:
    """ρ, symmetric, D x D, in the dtype of the moments."""
    density = moments.second_DD / moments.count.clamp(min=1.0)
    return (density + density.transpose(-1, -2)) / 2


class Vendi(MomentObjective):
    """Logarithm of the Vendi score: the entropy −Σ λ ln λ of the eigenvalues of ρ, in nats.

    The Vendi score, its exponential, is the effective number of distinct documents (Friedman and
    Dieng 2023, arXiv 2210.02410, definition 3.1, with cosine similarity). On gradient embeddings it
    is the G-Vendi score of arXiv 2505.20161. Range: 0 (all documents equal) to ln min(S, D).

    The gradient is V diag(−ln λ − 1) Vᵀ / S for ρ = V diag(λ) Vᵀ. It does not divide by differences
    of eigenvalues, so repeated eigenvalues are safe.
    """

    name = "vendi"
    maximise = True
    bounded: ClassVar[bool] = True

    def of_moments(self, moments: Moments) -> Tensor:
        """Entropy of the eigenvalues of ρ; eigenvalues of 0 contribute 0."""
        with one_thread():
            eigenvalues = torch.linalg.eigvalsh(_density(moments))
        entropy: Tensor = -(eigenvalues * eigenvalues.clamp(min=LEAST_EIGENVALUE).log()).sum()
        return entropy

    def self_curvature(self, moments: Moments) -> Callable[[Tensor], Tensor]:
        """−Σ_ab y_a² y_b² g_ab / S², y = Vᵀx, g_ab = (ln λ_a − ln λ_b) / (λ_a − λ_b), g_aa = 1/λ_a.

        Eigenvalues are clamped to at least 1/S, the share that one document adds to a new
        direction, because the second-order expansion is not valid for a longer step.
        """
        with one_thread():
            eigenvalues, vectors = torch.linalg.eigh(_density(moments))
        eigenvalues = eigenvalues.clamp(min=1.0 / moments.count.clamp(min=1.0))
        difference = eigenvalues[:, None] - eigenvalues[None, :]
        close = difference.abs() <= 1e-6 * eigenvalues[:, None]
        logarithm = eigenvalues.log()
        quotient = (logarithm[:, None] - logarithm[None, :]) / torch.where(close, 1.0, difference)
        quotient = torch.where(close, 1.0 / eigenvalues[:, None], quotient).to(torch.float32)
        narrow, squared = vectors.to(torch.float32), moments.count.to(torch.float32).square()

        def curvature(features_BD: Tensor) -> Tensor:
            square = (features_BD @ narrow).square()
            sums: Tensor = ((square @ quotient) * square).sum(1)
            return -sums / squared

        return curvature


class LogDeterminant(MomentObjective):
    """(1/D) ln det(D ρ + r I): D-optimality, with a ridge.

    It measures the volume that the selected documents span (Kiefer and Wolfowitz 1959), as
    determinantal point processes do (arXiv 1207.6083). Range: above ln r, to ln(1 + r) for equal
    variance in all directions.

    Args:
        ridge: r, above 0; makes the determinant positive if documents span fewer dimensions.

    Raises:
        ValueError: *ridge* is not above 0.
    """

    name = "log_determinant"
    maximise = True
    bounded: ClassVar[bool] = True

    def __init__(self, ridge: float = 0.01) -> None:
        if not ridge > 0:
            raise ValueError(f"ridge must be above 0, got {ridge}")
        self.ridge = ridge

    def of_moments(self, moments: Moments) -> Tensor:
        """From the Cholesky decomposition; the matrix is positive definite."""
        factor = self._factor(moments)
        return 2 * torch.diagonal(factor, dim1=-2, dim2=-1).log().mean()

    def self_curvature(self, moments: Moments) -> Callable[[Tensor], Tensor]:
        """2 (ln(1 + s) − s) / D with s = (D / S) xᵀ (D ρ + r I)⁻¹ x; −s² / D where s is small.

        With it, the gradient of a document that is not selected is its exact gain, ln(1 + s) / D.
        """
        factor = self._factor(moments).to(torch.float32)
        dimension, count = len(factor), moments.count.to(torch.float32)

        def curvature(features_BD: Tensor) -> Tensor:
            solved = torch.linalg.solve_triangular(factor, features_BD.T, upper=False)
            step = solved.square().sum(0) * dimension / count
            gain: Tensor = torch.log1p(step) - step
            return 2 * gain / dimension

        return curvature

    def _factor(self, moments: Moments) -> Tensor:
        density = _density(moments)
        dimension = density.shape[-1]
        identity = torch.eye(dimension, dtype=density.dtype, device=density.device)
        with one_thread():
            factor: Tensor = torch.linalg.cholesky(dimension * density + self.ridge * identity)
        return factor
