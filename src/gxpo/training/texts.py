"""Texts beside token ids, for rollouts that are written to files or shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.training.session import Session

Decode = Callable[[Sequence[int]], str]


def with_texts(forest: Forest, decode: Decode) -> Forest:
    """Add the texts of prompts and actions to a forest."""
    prompts = {n: decode(forest.context(n)) for n in set(forest.prompt_node.tolist())}
    return forest.replace(
        prompt_text=[prompts[n] for n in forest.prompt_node.tolist()],
        action_text=[decode(forest.action(s)) or forest.action_text[s] or "" for s in range(forest.n_steps)],
    )


def annotate(forest: Forest, credit: Tensor, session: Session) -> Forest:
    """Add texts and, under `info`, each trajectory's mean advantage and the reference answer where one is known."""
    advantage_R = torch.zeros(forest.n_trajectories, dtype=torch.float64)
    advantage_R[forest.path_trajectory] = grouped.mean(
        credit, forest.ids("trajectory", axis="P"), forest.path_trainable
    )
    answer_info = [{} if a is None else {"answer": a} for a in session.answers(forest)]
    rows = zip(answer_info, forest.info, advantage_R.tolist(), strict=True)
    return with_texts(forest, session.decode).replace(info=[{**a, **info, "advantage": x} for a, info, x in rows])
