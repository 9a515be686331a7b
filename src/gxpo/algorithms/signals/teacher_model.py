"""Teacher from a named checkpoint, for on-policy distillation."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo.algorithms.signals.base import SignalPart, SignalTools
from gxpo.base.devices import has_float64
from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.parts.protocols import Output
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


@part("teacher_model", stage="signal")
@dataclass(frozen=True)
class TeacherModel(SignalPart):
    """Distribution of a frozen model of the section `teacher` at each action token: "teacher_ids" [P, K], its `top_k`
    likeliest ids, "teacher_logprob" [P, K + 1], their log-probs and that of all others together, "teacher_entropy" [P]
    (nats) and "teacher_token_logprob" [P], its log-prob of the token itself.

    model  name of the model: "teacher" is `teacher.model`, others are in `teacher.models`
    top_k  no more than the vocabulary has

    The teacher reads the rollouts as the policy does, token ids as they are, so the tokenizers must be equal;
    temperature and support are the rollout's. The checkpoint of the run holds a checksum of its weights: a run that is
    resumed with another teacher is refused. Costs a forward pass of the teacher over all rollouts of a step, and its
    memory.
    """

    model: str = "teacher"
    top_k: Annotated[int, Ge(1)] = 100
    memory: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    provides = ("teacher_ids", "teacher_logprob", "teacher_entropy", "teacher_token_logprob")

    @property
    def external(self) -> tuple[str, ...]:
        """Names of the models of the section `teacher` that it reads."""
        return (self.model,)

    def bind(self, tools: SignalTools) -> None:
        self.memory["model"] = model = tools.external(self.model)
        # A checksum of the weights: resuming under another teacher would change the target in silence.
        weights = ((name, p.detach()) for name, p in model.model.named_parameters())
        sums = sorted((n, float((p if has_float64(p.device) else p.cpu()).double().sum())) for n, p in weights)
        self.memory["crc"] = zlib.crc32(repr(sums).encode())

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        if "model" not in self.memory:
            raise ConfigError(
                "signal teacher_model reads a model of the section teacher: set teacher.model=DIR in a run"
            )
        forest.need_ids("a teacher that reads the policy's tokens")
        names = (
            Output("likeliest", self.top_k),
            Output("likeliest_logprob", self.top_k),
            Output("entropy"),
            Output("logprob"),
        )
        outputs_by_name = self.memory["model"].outputs(forest, names)
        ids, *other_outputs = (outputs_by_name[name] for name in names)
        return dict(zip(self.provides, (ids.to(torch.int64), *other_outputs), strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {"crc": self.memory["crc"]} if "crc" in self.memory else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("crc") != self.memory.get("crc"):
            raise CheckpointError(
                f"teacher {self.model} has other weights than the one that this run began with: restore it, or start "
                "another run (init_from takes this one's parameters)"
            )
