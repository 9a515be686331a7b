"""Distribution that each token was sampled from, as the sampler recorded it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo.algorithms.signals.base import SignalPart, SignalTools
from gxpo.base.errors import GxpoError
from gxpo.parts.protocols import LIKELIEST
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


@part("sampler_distribution", stage="signal")
@dataclass(frozen=True)
class SamplerDistribution(SignalPart):
    """The sampler's own distribution at each action token: "sampler_ids" [P, K], its likeliest ids, and
    "sampler_logprob" [P, K + 1], their log-probs and that of all other ids together (nats).

    top_k  ids that the sampler records at each token (the whole vocabulary where that has fewer); records grow by 16
           bytes an id and token

    Read from the forest's extras of these names, of the distribution that was drawn from: after temperature, top-k and
    top-p. A token without them (one that nobody sampled) has ids of -1 and log-probs of -inf. In a run, the engine in
    this process records them; with rollouts of one's own, they are `extras` of a turn.
    """

    top_k: Annotated[int, Ge(1)] = 128

    provides = LIKELIEST

    @property
    def likeliest(self) -> int:
        return self.top_k

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        return sampler_distribution(forest)


def sampler_distribution(forest: Forest) -> dict[str, Tensor]:
    """The recorded extras "sampler_ids" and "sampler_logprob" on P; GxpoError where rollouts have none."""
    if missing := [name for name in LIKELIEST if name not in forest.extras]:
        raise GxpoError(
            f"these rollouts have no extras {' and '.join(missing)}, the distribution that each token was sampled "
            "from: sample them in a run of sampling.engine=torch, whose engine records it"
        )
    ids, logprob = (forest.extras[name][forest.path_token] for name in LIKELIEST)
    if logprob.shape != (ids.shape[0], ids.shape[1] + 1):
        raise GxpoError(
            f"extras sampler_ids {list(ids.shape)} and sampler_logprob {list(logprob.shape)} must be [T, K] and "
            "[T, K + 1], the last column being all other ids together"
        )
    return dict(
        zip(LIKELIEST, (ids.to(torch.int64), logprob.to(torch.float64).nan_to_num(nan=-torch.inf)), strict=True)
    )
