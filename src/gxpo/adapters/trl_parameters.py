"""The parameters that TRL's optimiser moves, against those of the model that is trained."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gxpo.errors import ConfigError

if TYPE_CHECKING:
    Base: Any = object  # mixed into transformers' TrainerCallback
else:
    Base = object

# optimisers that step in the backward pass, or whose groups hold other tensors
ELSEWHERE = ("LayerWiseDummyOptimizer", "Lomo", "AdaLomo", "DummyOptim")


class ParameterCheck(Base):
    """Callback that ends a training whose optimiser moves nothing of the model, and warns where it leaves out some.

    It compares by identity, before the first rollouts and before each optimiser step: adapters may be frozen, thawed
    and exchanged in between. Nothing is compared where DeepSpeed or FSDP put other tensors in the parameters' place.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._warned: set[str] = set()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model, held = self._trainer.model, self._held()
        if line := nothing_moves(model, held):
            raise ConfigError(line)
        if held is not None:
            for line in (left_out(model, held), foreign(model, held), frozen_in_adapter(model, held)):
                self._warn(line)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model, held = self._trainer.model, self._held()
        if line := nothing_moves(model, held) or nothing_pulled(model, held):
            raise ConfigError(line)
        if held is not None:
            self._warn(left_out(model, held))

    def _held(self) -> set[int] | None:
        """Identities of the optimiser's parameters; None where they can't be compared."""
        trainer = self._trainer
        if getattr(trainer, "is_deepspeed_enabled", False) or getattr(trainer, "is_fsdp_enabled", False):
            return None
        optimiser = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # accelerate wraps it
        if type(optimiser).__name__ in ELSEWHERE or not hasattr(optimiser, "param_groups"):
            return None
        return {id(p) for group in optimiser.param_groups for p in group["params"]}

    def _warn(self, line: str) -> None:
        if line and line not in self._warned:
            self._warned.add(line)
            warnings.warn(line, stacklevel=2)


def nothing_moves(model: Any, held: Collection[int] | None) -> str:
    """Reason, in a line, why no parameter of the model can move; "" where one can.

    held  identities of the optimiser's parameters; None: unknown
    """
    named = dict(model.named_parameters())
    free = {n for n, p in named.items() if p.requires_grad}
    head = f"the optimiser moves 0 of the model's {len(named)} parameters: "
    if not free:
        return f"{head}all have requires_grad=False; set it to True for those to be trained{_of_peft(model)}"
    if held is None or any(id(named[n]) in held for n in free):
        return ""
    if not held:
        return f"{head}all had requires_grad=False when it was made; set it to True before that{_of_peft(model)}"
    if any(id(p) in held for p in named.values()):
        return f"{head}those that it holds have requires_grad=False; make it of the {len(free)} that have True"
    return f"{head}it holds those of another model; make it of the parameters of the model given to the trainer"


def nothing_pulled(model: Any, held: Collection[int] | None) -> str:
    """Reason, in a line, why this step moves nothing: every gradient is of a parameter that the optimiser lacks."""
    pulled = {n: p for n, p in model.named_parameters() if p.grad is not None}
    if held is None or not pulled or any(id(p) in held for p in pulled.values()):
        return ""
    return (
        f"the optimiser moves nothing: {len(pulled)} parameters have a gradient ({_some(pulled)}), and none of them is "
        f"among its {len(held)}; have them trainable when the training begins{_of_peft(model)}"
    )


def left_out(model: Any, held: Collection[int]) -> str:
    """Line on parameters that ask for a gradient and that the optimiser lacks; "" for none."""
    free = {n: p for n, p in model.named_parameters() if p.requires_grad}
    lacking = [n for n, p in free.items() if id(p) not in held]
    if not lacking:
        return ""
    return (
        f"the optimiser moves {len(free) - len(lacking)} of the {len(free)} parameters with requires_grad=True; "
        f"without it stay {_some(lacking)}"
    )


def foreign(model: Any, held: Collection[int]) -> str:
    """Line on parameters of the optimiser that are not the model's; "" for none."""
    others = len(set(held) - {id(p) for p in model.parameters()})
    return f"{others} of the optimiser's {len(held)} parameters are not the model's, and get no gradient" * (others > 0)


def frozen_in_adapter(model: Any, held: Collection[int]) -> str:
    """Line on parameters of peft's active adapter that do not move while others do; "" for none."""
    if not hasattr(model, "peft_config"):
        return ""
    active = getattr(model, "active_adapters", None) or getattr(model, "active_adapter", ())
    names = [active] if isinstance(active, str) else list(active)
    own: Mapping[str, Any] = {
        n: p for n, p in model.named_parameters() if any(f".{name}." in f".{n}." for name in names)
    }
    still = [n for n, p in own.items() if not (p.requires_grad and id(p) in held)]
    if not still:
        return ""
    return f"{len(still)} of the {len(own)} parameters of the adapter do not move: {_some(still)}"


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:2]) + (", ..." if len(listed) > 2 else "")


def _of_peft(model: Any) -> str:
    return ", as is_trainable=True of PeftModel.from_pretrained does" if hasattr(model, "peft_config") else ""
