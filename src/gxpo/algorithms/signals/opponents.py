"""Opponents of multiplayer preference optimization (MNPO): a mixture of the reference and earlier policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.algorithms.signals.base import OwnModel, SignalTools
from gxpo.base.errors import CheckpointError
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


Empty = Literal["reference", "nothing"]


def mixed(reference: Tensor, earlier: Tensor, share: float, initial_opponent: Empty = "reference") -> Tensor:
    """Mixture of log-probs [P]: share * reference + (1 - share) * mean over the earlier policies.

    reference [P], earlier [K, P]: the geometric mixture of the policies, up to its normaliser, which pairs of one
    prompt share. Without earlier ones their share is the reference's, or "nothing": share * reference.
    """
    if len(earlier):
        return share * reference + (1 - share) * earlier.mean(0)
    return reference if initial_opponent == "reference" else share * reference


@part("opponents", stage="signal")
@dataclass(frozen=True)
class Opponents(OwnModel):
    """Log-probs of the mixture of the reference policy and the last `history` policies, "opponents_logprob" [P].

    share    of the reference; the earlier policies share the rest equally
    history  number of stored policies, one every `every` steps, as it was after that step's update
    every    steps
    initial_opponent  policy that has their share before the first one: the "reference", or "nothing"

    Costs a forward pass for each stored policy, and their parameters in memory and in the checkpoint.

    Source: MNPO, arXiv 2509.23102, and its code (share 1/3, history 2, empty "nothing", equal
    weights whatever is configured).
    """

    share: Annotated[float, Interval(ge=0, le=1)] = 1 / 3
    history: Annotated[int, Ge(1)] = 2
    every: Annotated[int, Ge(1)] = 10
    initial_opponent: Empty = "reference"

    provides = ("opponents_logprob",)
    needs = ("reference_logprob",)

    @property
    def snapshots(self) -> list[dict[str, Tensor]]:
        """Parameters of the stored policies, the oldest first."""
        return self.memory.setdefault("kept", [])

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        reference, logprobs = signals["reference_logprob"], []
        # One model in memory takes the parameters of each policy in turn.
        for snapshot in self.snapshots:
            self.model.restore(snapshot)
            logprobs.append(self.model.outputs(forest, ("logprob",))["logprob"])
        earlier = torch.stack(logprobs) if logprobs else reference.new_zeros(0, len(reference))
        return {"opponents_logprob": mixed(reference, earlier, self.share, self.initial_opponent)}

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        # The snapshot is taken after the update: an opponent is a policy that has been left behind.
        if tools.step % self.every == 0:
            self.model.follow(tools.learner, 1.0)
            self.memory["kept"] = [*self.snapshots, self.model.snapshot()][-self.history :]
        return {"opponents": float(len(self.snapshots))}

    def state_dict(self) -> dict[str, Any]:
        return {"kept": len(self.snapshots)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # A checkpoint with fewer tensors than policies would mix in other opponents in silence.
        if state.get("kept") != len(self.snapshots):
            raise CheckpointError(
                f"signal opponents kept {state.get('kept')} policies; {len(self.snapshots)} are in the checkpoint"
            )

    def tensors(self) -> dict[str, Tensor]:
        return {f"{i}/{name}": x for i, snapshot in enumerate(self.snapshots) for name, x in snapshot.items()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        snapshot_by_number: dict[int, dict[str, Tensor]] = {}
        for key, x in tensors.items():
            number, _, name = key.partition("/")
            snapshot_by_number.setdefault(int(number), {})[name] = x
        self.memory["kept"] = [snapshot_by_number[i] for i in sorted(snapshot_by_number)]
