"""A coefficient that grows as the steps of a run get smaller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gxpo.errors import ConfigError
from gxpo.objectives.control import _Remembering, progress


@dataclass(frozen=True)
class Annealed(_Remembering):
    """coef / t_k, t_k = max(1 - k / total_steps, least): the inverse of a step size that goes to 0 on a line.

    least        where t stops, above 0
    total_steps  None: the run's

    Step 1 has the coefficient that the term was configured with. Source: MDPO, arXiv 2005.09814 (t_k = 1 - k / K).
    """

    least: float = 0.05
    total_steps: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1 or (self.total_steps is not None and self.total_steps < 1):
            raise ConfigError(
                f"control: least ({self.least}) is above 0, up to 1, and total_steps ({self.total_steps}) at least 1"
            )
        self._memory["progress"] = 0.0

    def coefficient(self, start: float) -> float:
        return start / max(1.0 - self._memory["progress"], self.least)

    def adjust(self, figures: Mapping[str, float]) -> dict[str, float]:
        self._memory["progress"] = progress(figures["step"], self.total_steps)
        return {"schedule_progress": self._memory["progress"]}
