"""Baseline of a central critic: a linear probe on what all agents of an episode have read, and done (MAPPO, MADDPG)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.algorithms.signals.base import SignalTools
from gxpo.algorithms.signals.baselines import baseline_errors
from gxpo.algorithms.signals.ridge_probe import RidgeProbe
from gxpo.forest.grouped import begins_of
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


@torch.no_grad()
def joint_features(own_features: Tensor, other_features: Tensor, episode: Tensor) -> Tensor:
    """Features of an agent and the mean of those of the others of its episode, [R, D + E] float64; 0 without others.

    own_features    [R, D] of each agent itself
    other_features  [R, E] of an agent as the others see it
    episode         [R] index

    >>> joint_features(torch.eye(2), torch.eye(2), torch.tensor([0, 0])).tolist()
    [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]]
    """
    own_features, other_features = own_features.to(torch.float64), other_features.to(torch.float64)
    n_episodes = int(episode.max()) + 1 if len(episode) else 0
    total = torch.zeros(n_episodes, other_features.shape[1], dtype=torch.float64).index_add_(0, episode, other_features)
    n_others = torch.bincount(episode, minlength=n_episodes)[episode] - 1
    return torch.cat([own_features, (total[episode] - other_features) / n_others.clamp_min(1)[:, None]], 1)


@part("central_value", stage="signal")
@dataclass(frozen=True)
class CentralValue(RidgeProbe):
    """The signal "baseline" [R] of a central critic: a `ridge` probe on `joint_features` of the policy's hidden states.

    It reads the state before an agent's first action, and the same of the others of its episode (`info["episode"]`).

    include_actions  True: of the others the mean over what they did, so that the baseline knows their actions and not
          the agent's own (MADDPG); False: before anybody acted (MAPPO)

    Refitted before every step on outcomes of the steps before; the mean outcome of all, until there are `min_rows`. The
    estimates are held between the outcomes that it was fitted on. Figures: probe_rows, baseline_error.
    """

    include_actions: bool = False

    provides = ("baseline",)
    axes = {"baseline": "R"}  # noqa: RUF012  never changed

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        hidden = tools.learner.hidden(forest, layer=self.layer)
        first_entry = begins_of(forest.path_trajectory, forest.n_trajectories)[:-1]
        # the hidden state that the first action's first token is chosen from stands at the token before it
        before = hidden[(forest.path_token[first_entry.clamp_max(max(forest.n_entries - 1, 0))] - 1).clamp_min(0)]
        other_features = self._mean_of_actions(forest, hidden) if self.include_actions else before
        episode_names = [info.get("episode", name) for info, name in zip(forest.info, forest.id, strict=True)]
        index_by_episode = {name: i for i, name in enumerate(dict.fromkeys(episode_names))}
        features = joint_features(
            before, other_features, torch.tensor([index_by_episode[name] for name in episode_names])
        )
        is_counted_R, probe = forest.scored & forest.compared, self.fit()
        outcome = torch.where(is_counted_R, forest.outcome, 0.0)
        baseline = (outcome.sum() / is_counted_R.sum().clamp_min(1)).expand(forest.n_trajectories)
        # held in the range of outcomes that it was fitted on: a linear probe extrapolates without bounds
        if probe is not None:
            target = self.memory["target"]
            baseline = (features @ probe[0] + probe[1]).clamp(target.min(), target.max())
        self.latest.clear()
        self.latest.update(features=features, baseline=baseline)
        return {"baseline": baseline}

    @staticmethod
    def _mean_of_actions(forest: Forest, hidden: Tensor) -> Tensor:
        total = torch.zeros(forest.n_trajectories, hidden.shape[1], dtype=torch.float64)
        total.index_add_(0, forest.path_trajectory, hidden[forest.path_token].double())
        count = torch.bincount(forest.path_trajectory, minlength=forest.n_trajectories)
        return total / count.clamp_min(1)[:, None]

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        takes = forest.scored & forest.compared
        figures = {"probe_rows": float(self.rows), **baseline_errors(forest, self.latest["baseline"], takes)}
        self.keep(self.latest["features"][takes], forest.outcome[takes])
        return figures
