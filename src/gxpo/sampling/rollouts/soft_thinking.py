"""Soft thinking (SofT-GRPO): mixtures of token embeddings until the thinking is closed, tokens after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt, Interval

from gxpo.forest.forest import Forest
from gxpo.parts.protocols import SoftSampling
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Attempts, Draw, Fork
from gxpo.sampling.rollouts.base import Rollout, Round
from gxpo.sampling.rollouts.build import Count, Text
from gxpo.sampling.rollouts.episodes import Play


@part("soft_thinking", stage="rollout")
@dataclass(frozen=True)
class SoftThinking(Rollout):
    """`group_size` independent attempts at each task, soft until the text `end_text` has been written.

    top_k, top_p        of the distribution p of a soft step
    mixing_temperature  tau: the input is softmax((log p + Gumbel noise) / tau) over the embeddings of p's ids
    end_text            the text that ends the thinking, in the likeliest ids of the soft steps; tokens follow it

    A soft step is stored as its likeliest id, with the log-density of its noise for a log-prob, and in the extras
    "support", "soft_y", "soft_weight" [T, K] what it was made of. Texts are of the likeliest ids. An attempt that never
    says `end_text` is soft to its end. Needs the torch engine and learner; tasks with one answer.

    Source: SofT-GRPO, arXiv 2511.06411 (K 5, top-p 0.95, tau 0.1).
    """

    group_size: Count = 8
    top_k: Count = 5
    top_p: Annotated[float, Interval(gt=0, le=1)] = 0.95
    mixing_temperature: Annotated[float, Gt(0)] = 0.1
    end_text: Text = "</think>"

    single_turn = True

    def evaluation(self, samples: int) -> SoftThinking:
        """Return the rollout for held-out tasks: soft thinking too, at temperature 0 without noise."""
        return dataclasses.replace(self, group_size=samples)

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts | Fork]:
        session = play.session
        sampling = SoftSampling(
            **vars(session.sampling),
            soft_top_k=self.top_k,
            soft_top_p=self.top_p,
            mixing_temperature=self.mixing_temperature,
            end_text=self.end_text,
        )
        return [draw.attempts(self.group_size, sampling=sampling, read=session.sampling) for draw in draws]

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        forest = rounds[0].forest
        extras = dict(forest.extras)
        for name in ("soft_y", "soft_weight"):
            extras[name] = torch.full(extras["support"].shape, torch.nan, dtype=torch.float64)
            # attempts differ in the number of candidates of a soft step: padded with nan to the widest
            values_by_attempt = [
                torch.as_tensor(e.newest_action.extras[name]) for e in rounds[0].episodes if e.newest_action is not None
            ]
            width = max(x.shape[1] for x in values_by_attempt)
            padded_values = [
                torch.nn.functional.pad(x, (0, width - x.shape[1]), value=torch.nan) for x in values_by_attempt
            ]
            extras[name][forest.path_token, :width] = torch.cat(padded_values)
        return forest.replace(extras=extras)
