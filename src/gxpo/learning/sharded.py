"""FSDP2 learner: parameters, gradients and optimiser states sharded over processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gxpo.base import runtime
from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.forest.forest import Forest
from gxpo.learning.lora import Adapters
from gxpo.learning.packing import MicroBatch
from gxpo.learning.readout import Readout
from gxpo.learning.sampling_copy import SamplingCopy, alias
from gxpo.learning.torch import TorchLearner
from gxpo.models.decoder.architecture import backbone_of
from gxpo.models.decoder.vision import vision_of


class ShardedLearner(TorchLearner):
    """`TorchLearner` on FSDP2 (`torch.distributed.fsdp.fully_shard`): the gradient is that of one process.

    Each layer of the model, and of its vision tower, is gathered for its forward and backward pass and then dropped,
    everything else (embedding, norm, head, projector) for the pass of a micro-batch. Gradients are summed over
    processes, never averaged, and all processes make equally many passes: one without a micro-batch left makes an
    unused pass, and one without a picture left, while others have some, runs the tower on a blank one.

    Parameters below 32 bits are kept, moved and summed in float32 shards, and gathered in their own dtype: 16 bytes a
    parameter divided by the number of processes, where `TorchLearner` holds 18 in each. Samplers in this process read a
    whole copy, which `publish` brings up to date, one parameter at a time; it is the model as it was loaded, so that no
    process ever holds a second one.

    is_sampled  samplers in this process need that copy

    Needs a process group (`gxpo.base.runtime.start`), of one process at least.
    """

    lockstep = True

    def __init__(self, model: Any, *, is_sampled: bool = True, **settings: Any) -> None:
        if settings.get("states", "float32") != "float32":
            raise ConfigError(
                f"learner.states={settings['states']} is not for cluster.backend=fsdp, which shards float32 states: "
                "leave it out"
            )
        self._needs_copy, self._is_stale = is_sampled, False
        self._copy: SamplingCopy | None = None
        super().__init__(model, **settings)

    def _frozen_copy(self) -> Any:
        return alias(self.model).requires_grad_(False)

    def _place_parameters(self) -> None:
        """Shard the model and its reference; the parameters' names stay."""
        # copied before sharding: samplers need whole weights
        if self._needs_copy:
            self._copy = SamplingCopy(self.model, self.policies, share="all")
        models = [self._readout, *([self._reference] if self._reference not in (None, self._readout) else [])]
        for readout in models:
            assert readout is not None
            _shard(readout, self.device, is_trained=readout is self._readout and self.lora is None)
            # the decoder calls layers by their parts, which sharding does not see
            if readout.decoder is not None:
                readout.decoder.run_inside = run_inside
            # all processes run the tower equally often
            if (vision := vision_of(readout.causal)) is not None:
                vision.runs = runtime.highest
        if self._adapters is not None:  # its parameters are others now
            self._adapters = Adapters(self.model, self.policies)

    # ------------------------------------------------------------ passes
    def outputs(
        self,
        forest: Forest,
        names: Sequence[str] = ("logprob",),
        *,
        policy: str = "current",
        constants: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        try:
            return super().outputs(forest, names, policy=policy, constants=constants)
        finally:
            self._reshard()

    def hidden(self, forest: Forest, layer: int = -1) -> Tensor:
        with torch.no_grad():
            try:
                return run_inside(self._readout.causal, super().hidden, forest, layer)
            finally:
                self._reshard()

    def logits(self, states: Tensor) -> Tensor:
        with torch.no_grad():
            try:
                return run_inside(self._readout.causal, super().logits, states)
            finally:
                self._reshard()

    def _forward(
        self,
        batch: MicroBatch,
        names: Sequence[str],
        readout: Readout,
        constants: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        return run_inside(readout.causal, super()._forward, batch, names, readout, constants)

    def _reshard(self) -> None:
        """Drop gathered parameters that no backward pass will drop: the optimiser moves the shards."""
        for readout in (self._readout, self._reference):
            if readout is not None:
                readout.causal.reshard()

    # ------------------------------------------------------------ samplers
    @property
    def samples(self) -> Any:
        return None if self._copy is None else self._copy.model

    def sampling_as(self, policy: str) -> AbstractContextManager[None]:
        return super().sampling_as(policy) if self._copy is None else self._copy.acting(policy)

    @torch.no_grad()
    def publish(self) -> None:
        """Update the samplers' copy if a step has been taken since; all processes together."""
        if not self._is_stale or self._copy is None:
            return
        parameters = self.optimiser.parameter_by_name.items()
        self._copy.set_weights((name, whole_tensor(p.detach())) for name, p in parameters if name in self._copy.names)
        self._is_stale = False

    def step(self, *args: Any, **settings: Any) -> Any:
        self._is_stale = True
        return super().step(*args, **settings)

    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        self._is_stale = True
        super().restore(snapshot)

    # ------------------------------------------------------------ unsupported
    def second_learner(self, *, lr: float) -> TorchLearner:
        raise ConfigError("a part with a second model does not run on cluster.backend=fsdp: use cluster.backend=local")

    # ------------------------------------------------------------ state
    def save(self, path: Path) -> None:
        """Write parameters and moments below `path`, each process its shards, in safetensors files; all together."""
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        writer = HuggingFaceStorageWriter(str(path), save_distributed=True)
        save(self.optimiser.tensors(), storage_writer=writer)

    def load(self, path: Path, meta: Mapping[str, Any]) -> None:
        """Read what `save` wrote, by any number of processes."""
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.state_dict_loader import load

        steps = meta.get("steps")
        if not isinstance(steps, int) or steps < 0:
            raise CheckpointError(f"the learner's part of the checkpoint has steps {steps!r}; it must be a number >= 0")
        tensors = {name: torch.empty_like(x).detach() for name, x in self.optimiser.expected_tensors(steps).items()}
        try:
            load(tensors, storage_reader=HuggingFaceStorageReader(str(path)))
        except (RuntimeError, ValueError, KeyError, AssertionError) as error:
            raise CheckpointError(f"{path} is not of this model: {' '.join(str(error).split())[:300]}") from error
        self.optimiser.load_tensors(tensors, steps)
        self._is_stale = True


# ---------------------------------------------------------------- FSDP2
class _Call:
    """Function that a module runs in place of its forward pass, with its parameters whole."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


def run_inside(module: nn.Module, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function while a sharded module's parameters are whole; its gradients go through the module's hooks."""
    return module(_Call(function), *arguments)


def _accept_calls(module: nn.Module) -> None:
    """Make a module run the function that `run_inside` passes in place of its own forward pass."""
    model_forward = module.forward

    def forward(first: Any = None, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(first, _Call):
            return first.function(*arguments, **keywords)
        return model_forward(*(() if first is None else (first,)), *arguments, **keywords)

    module.forward = forward


def whole_tensor(x: Tensor) -> Tensor:
    """Gather the whole tensor of a shard from all processes."""
    full: Any = getattr(x, "full_tensor", None)
    return x if full is None else full()


def _shard(readout: Readout, device: torch.device, *, is_trained: bool) -> None:
    """Shard a model: each layer by itself, the rest with the model. `is_trained`: parameters are moved in float32."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    causal = readout.causal
    mesh = init_device_mesh(device.type, (runtime.group_size(),))
    dtype = next(causal.parameters()).dtype
    is_rounded = is_trained and torch.finfo(dtype).bits < 32
    policy = MixedPrecisionPolicy(
        param_dtype=dtype if is_rounded else None,
        reduce_dtype=torch.float32 if is_rounded else None,
        cast_forward_inputs=False,  # rotary tables stay exact
    )
    modules = [*layers_of(causal), causal]
    for module in modules:
        _accept_calls(module)
        # the model's own parameters stay until the backward pass of a micro-batch, or `reshard`
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=module is not causal)
        # a sum over processes and never a mean: the loss has its own denominators
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    if is_rounded:
        causal.to(torch.float32)


def layers_of(causal: Any) -> list[nn.Module]:
    """Layers of a transformers model and of its vision tower; empty if they can't be told."""
    config, text, vision = causal.config, backbone_of(causal), vision_of(causal)
    text_layers = _stack(causal if text is None else text, config.get_text_config().num_hidden_layers)
    if vision is None:
        return text_layers
    tower = config.vision_config
    depth = getattr(tower, "num_hidden_layers", None) or getattr(tower, "depth", 0)
    return [*text_layers, *_stack(vision.model, depth, outside=text)]


def _stack(module: nn.Module, depth: int, *, outside: nn.Module | None = None) -> list[nn.Module]:
    """First module list of this depth that does not lie in `outside`."""
    excluded_modules = set() if outside is None else set(outside.modules())
    stacks = (
        m for m in module.modules() if isinstance(m, nn.ModuleList) and len(m) == depth and m not in excluded_modules
    )
    return list(next(stacks, ()))
