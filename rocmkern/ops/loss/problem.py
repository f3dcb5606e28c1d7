"""What a cross-entropy is asked for, beside its arrays."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CrossEntropy:
    """Options of a cross-entropy over a vocabulary.

    Attributes
    ----------
    tokens : int
        Size of the vocabulary.
    ignored : int
        Target of the rows that do not count.
    smoothing : float
        Share of the weight that all tokens have alike.
    z_loss : float
        Factor of the square of a row's log-sum-exp.
    cap : float
        Of the logits; 0 is none.
    reduction : str
        ``"mean"``, ``"sum"`` or ``"none"``.
    """

    tokens: int
    ignored: int = -100
    smoothing: float = 0.0
    z_loss: float = 0.0
    cap: float = 0.0
    reduction: str = "mean"
