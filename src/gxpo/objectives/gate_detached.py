"""What gates share whose weight on the log-likelihood is a constant of the step."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from gxpo.objectives.gate import Entries, Gate


class DetachedWeight(Gate):
    """Base of -stop(w) A logprob: the gradient is -w A grad logprob; the value of the loss has no meaning.

    With w = rho it has the gradient of -A rho, with w = 1 that of REINFORCE.
    """

    @abstractmethod
    def weight(self, x: Entries) -> Tensor:
        """w [n], 0 or more."""
        raise NotImplementedError

    def loss(self, x: Entries) -> Tensor:
        return -self.weight(x).detach() * x.credit * x.logprob

    def clipped(self, x: Entries) -> Tensor:
        """Entries that weigh less than their ratio."""
        return (x.credit != 0) & (self.weight(x) < x.ratio)
