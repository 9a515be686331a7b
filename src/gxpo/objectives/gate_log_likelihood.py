"""A gate without a ratio: the plain policy gradient."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gxpo.objectives.gate import Entries, Gate


@dataclass(frozen=True)
class LogLikelihood(Gate):
    """-A logprob: REINFORCE, whoever sampled the tokens. The gradient is -A grad logprob, on policy that of every gate.

    Nothing bounds how far the policy moves: made for one update per batch. The value of the loss has no meaning.

    Source: Williams (1992); GPG, arXiv 2504.02546.
    """

    def loss(self, x: Entries) -> Tensor:
        return -x.credit * x.logprob
