"""Tasks for a flow model: sample a point on the unit circle, conditioned on an angle in degrees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gxpo.base.errors import TaskError
from gxpo.environments.tasks.source import GeneratedTasks, check_options
from gxpo.parts.protocols import Task

if TYPE_CHECKING:
    from torch import Tensor

    from gxpo.forest.forest import Forest

DIRECTIONS = 360  # conditions are whole degrees


def target(degrees: Tensor) -> Tensor:
    """Target points of angles, [n, 2] float64.

    >>> import torch
    >>> target(torch.tensor([0, 90])).round().abs().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    import torch

    angle = degrees.to(torch.float64) * (math.pi / 180)
    return torch.stack([angle.cos(), angle.sin()], 1)


def mixture(degrees: Tensor, uniform: Tensor, normal: Tensor, heed: float = 0.35, spread: float = 0.12) -> Tensor:
    """Training data of the warm start, [n, 2] float64: points near the target, or anywhere on the circle.

    With probability `heed` a point near the target, else one near any place of the circle; normal(0, spread)
    is added to both. degrees [n], uniform [n, 2] in [0, 1), normal [n, 2].
    """
    anywhere = target(uniform[:, 1] * DIRECTIONS)
    near_target = uniform[:, :1] < heed
    return target(degrees).where(near_target, anywhere) + spread * normal


def final_latents(forest: Forest) -> Tensor:
    """Final latent of each trajectory, [R, D] float64: that of its last action token."""
    import torch

    # a policy of texts has no latents to rate
    if "latent" not in forest.extras:
        raise TaskError(
            "task 'points' rates latents, and these rollouts have none: use model 'flow' and rollout denoise"
        )
    last = torch.zeros(forest.n_trajectories, dtype=torch.int64)
    last[forest.path_trajectory] = forest.path_token  # entries are in order of time: the last one stays
    return forest.extras["latent"][last].to(torch.float64)


@dataclass
class Points(GeneratedTasks):
    """Points on the unit circle: `137` -> the point at 137 degrees. Scored on latents, not on text.

    correct    1 within `radius` of the target
    closeness  exp(-distance^2 / (2 * 0.5^2)), in (0, 1]
    A trajectory that was cut before its last denoising step is not scored.

    A quarter of the directions is held out.
    """

    seed: int = 0
    radius: float = 0.3

    name: ClassVar[str] = "points"
    scorer_name: ClassVar[str] = "points"
    scorer: ClassVar[None] = None
    reward_default: ClassVar[str] = "correct"
    options: ClassVar[Mapping[str, Any]] = {"radius": (int, float)}

    def __post_init__(self) -> None:
        check_options(self.name, {"radius": self.radius}, self.options)
        if not 0 < self.radius < 2:
            raise TaskError(f"task 'points': radius must be between 0 and 2, not {self.radius}")

    def propose(self, random: np.random.Generator) -> Task:
        degrees = int(random.integers(DIRECTIONS))
        return Task(f"points/{degrees}", str(degrees), info={"degrees": degrees})

    def rate(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        """Score components [R] float64 from the final latents; nan for unfinished samples. Texts are not read."""
        import torch

        degrees = torch.tensor([task.info["degrees"] for task in tasks])
        distance = (final_latents(forest) - target(degrees)).norm(dim=1)
        components = {
            "correct": (distance <= self.radius).to(torch.float64),
            "closeness": (-distance.square() / (2 * 0.5**2)).exp(),
        }
        # nan leaves a sample out of every statistic; a cut one has no final latent to score
        return {name: x.masked_fill(forest.truncated | distance.isnan(), torch.nan) for name, x in components.items()}
