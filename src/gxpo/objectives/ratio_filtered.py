"""A ratio that follows the token's with delay: log-ratios filtered along the trajectory."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.objectives.prefix import kalman
from gxpo.objectives.ratio import Ratio


@dataclass(frozen=True)
class Filtered(Ratio):
    """log s_t = stop(x_t) + log rho_t - stop(log rho_t), x the causal Kalman filter of the log-ratios (`kalman`).

    process_noise      variance Q by which the latent log-ratio may change from token to token
    observation_noise  variance V of a token's own log-ratio about it
    initial_variance   of the latent before the first token, where its mean is 0

    Value of the filter, gradient of the token. Only Q / V and the initial variance / V matter: gains are known before
    anything is seen. With the defaults they rise from 1e-6 to 1e-3, a memory of a thousand tokens. On policy it is 1;
    Q to infinity is the token's ratio; Q = 0 with a large initial variance the geometric mean of the prefix.

    Source: KPO, arXiv 2602.10609, and its code.
    """

    process_noise: float = 1e-6
    observation_noise: float = 1.0
    initial_variance: float = 0.0

    couples = "trajectory"

    def __post_init__(self) -> None:
        if not (self.process_noise >= 0 and self.observation_noise > 0 and self.initial_variance >= 0):
            raise ConfigError(
                "objective: process_noise and initial_variance are variances, 0 or more, observation_noise is above 0, "
                f"not {self.process_noise}, {self.initial_variance}, {self.observation_noise}"
            )
        if self.process_noise == 0 and self.initial_variance == 0:
            raise ConfigError("objective: with process_noise and initial_variance 0 the ratio is always 1: raise one")

    def level(self, log_ratio: Tensor, trajectory: Tensor, turn: Tensor) -> Tensor:
        now = log_ratio.detach()
        held = kalman(now, trajectory, self.process_noise, self.observation_noise, self.initial_variance)
        return held.to(log_ratio) + (log_ratio - now)
