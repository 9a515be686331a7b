"""Check that TRL's optimiser moves the parameters of the model that is trained."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gxpo.base.errors import ConfigError

if TYPE_CHECKING:
    Base: Any = object  # mixed into transformers' TrainerCallback
else:
    Base = object

# optimisers that step in the backward pass, or whose groups hold other tensors
ELSEWHERE = ("LayerWiseDummyOptimizer", "Lomo", "AdaLomo", "DummyOptim")


class ParameterCheck(Base):
    """Callback that ends a training whose optimiser moves no parameter of the model, and warns of left-out ones.

    Parameters are compared by identity, before the first rollouts and before each optimiser step: adapters may be
    frozen, thawed and exchanged in between. Nothing is compared where DeepSpeed or FSDP replace the parameters.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._lines: set[str] = set()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model, held_ids = self._trainer.model, self._held_ids()
        if line := nothing_moves(model, held_ids):
            raise ConfigError(line)
        if held_ids is not None:
            for line in (
                parameters_left_out(model, held_ids),
                foreign_parameters(model, held_ids),
                frozen_in_adapter(model, held_ids),
            ):
                self._warn(line)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model, held_ids = self._trainer.model, self._held_ids()
        if line := nothing_moves(model, held_ids) or gradients_missed(model, held_ids):
            raise ConfigError(line)
        if held_ids is not None:
            self._warn(parameters_left_out(model, held_ids))

    def _held_ids(self) -> set[int] | None:
        """Return the identities of the optimiser's parameters; None where they can't be compared."""
        trainer = self._trainer
        if getattr(trainer, "is_deepspeed_enabled", False) or getattr(trainer, "is_fsdp_enabled", False):
            return None
        optimiser = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # accelerate wraps it
        if type(optimiser).__name__ in ELSEWHERE or not hasattr(optimiser, "param_groups"):
            return None
        return {id(p) for group in optimiser.param_groups for p in group["params"]}

    def _warn(self, line: str) -> None:
        if line and line not in self._lines:
            self._lines.add(line)
            warnings.warn(line, stacklevel=2)


def nothing_moves(model: Any, held_ids: Collection[int] | None) -> str:
    """Explain in a line why no parameter of the model can move; "" if one can.

    held_ids  identities of the optimiser's parameters; None: unknown
    """
    # from the most common mistake on: all frozen; frozen when the optimiser was made; frozen since; another model's
    parameters = dict(model.named_parameters())
    trainable = {n for n, p in parameters.items() if p.requires_grad}
    head = f"the optimiser moves 0 of the model's {len(parameters)} parameters: "
    if not trainable:
        return f"{head}all have requires_grad=False; set it to True for those to be trained{_peft_hint(model)}"
    if held_ids is None or any(id(parameters[n]) in held_ids for n in trainable):
        return ""
    if not held_ids:
        return f"{head}all had requires_grad=False when it was made; set it to True before that{_peft_hint(model)}"
    if any(id(p) in held_ids for p in parameters.values()):
        return f"{head}those that it holds have requires_grad=False; make it of the {len(trainable)} that have True"
    return f"{head}it holds those of another model; make it of the parameters of the model given to the trainer"


def gradients_missed(model: Any, held_ids: Collection[int] | None) -> str:
    """Explain in a line why this step moves nothing: all gradients are of parameters that the optimiser lacks."""
    with_gradient = {n: p for n, p in model.named_parameters() if p.grad is not None}
    if held_ids is None or not with_gradient or any(id(p) in held_ids for p in with_gradient.values()):
        return ""
    return (
        f"the optimiser moves nothing: {len(with_gradient)} parameters have a gradient ({_some(with_gradient)}), "
        f"and none of them is among its {len(held_ids)}; have them trainable when the training begins"
        f"{_peft_hint(model)}"
    )


def parameters_left_out(model: Any, held_ids: Collection[int]) -> str:
    """Describe trainable parameters that the optimiser lacks; "" for none."""
    trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
    missing_names = [n for n, p in trainable.items() if id(p) not in held_ids]
    if not missing_names:
        return ""
    return (
        f"the optimiser moves {len(trainable) - len(missing_names)} of the {len(trainable)} parameters with "
        f"requires_grad=True; without it stay {_some(missing_names)}"
    )


def foreign_parameters(model: Any, held_ids: Collection[int]) -> str:
    """Describe parameters of the optimiser that are not the model's; "" for none."""
    n_foreign = len(set(held_ids) - {id(p) for p in model.parameters()})
    return f"{n_foreign} of the optimiser's {len(held_ids)} parameters are not the model's, and get no gradient" * (
        n_foreign > 0
    )


def frozen_in_adapter(model: Any, held_ids: Collection[int]) -> str:
    """Describe parameters of peft's active adapter that do not move while others do; "" for none."""
    if not hasattr(model, "peft_config"):
        return ""
    active = getattr(model, "active_adapters", None) or getattr(model, "active_adapter", ())
    names = [active] if isinstance(active, str) else list(active)
    adapter_parameters: Mapping[str, Any] = {
        n: p for n, p in model.named_parameters() if any(f".{name}." in f".{n}." for name in names)
    }
    still_names = [n for n, p in adapter_parameters.items() if not (p.requires_grad and id(p) in held_ids)]
    if not still_names:
        return ""
    return (
        f"{len(still_names)} of the {len(adapter_parameters)} parameters of the adapter do not move: "
        f"{_some(still_names)}"
    )


def _some(names: Iterable[str]) -> str:
    name_list = list(names)
    return ", ".join(name_list[:2]) + (", ..." if len(name_list) > 2 else "")


def _peft_hint(model: Any) -> str:
    return ", as is_trainable=True of PeftModel.from_pretrained does" if hasattr(model, "peft_config") else ""
