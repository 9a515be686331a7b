"""LoRA through peft: one adapter for each trained policy; the model with adapters off is the reference policy and every
frozen one."""

from __future__ import annotations

import copy
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from gxpo.base.errors import ConfigError, ModelError, need
from gxpo.learning.parameter_checks import refuse_float16
from gxpo.models import nf4

ALONE = "main"  # the policy of a run that has one
DEFAULT = "default"  # its adapter, by the name that peft gives it


@dataclass(frozen=True)
class LoraSettings:
    """LoRA (Hu et al., 2021): W + (alpha / rank) B A, with A random from `seed` and B zero.

    targets  names of the modules that are adapted, or "all-linear" (every linear layer but the head)
    """

    rank: int = 16
    alpha: float = 32.0
    targets: str | tuple[str, ...] = "all-linear"
    seed: int = 0


def with_lora(model: Any, settings: LoraSettings, base: str | None = None, adapters: Sequence[str] = (DEFAULT,)) -> Any:
    """Wrap the model with peft; only the adapters stay trainable. The global random state is left as it was.

    base      base model to note in saved adapters: a directory or an id on the hub
    adapters  their names; the first is active. Each has random numbers of its own
    """
    refuse_float16(model.parameters())
    nf4.quiet()
    peft: Any = need("peft", "train")
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=settings.targets if isinstance(settings.targets, str) else list(settings.targets),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    first, *other_names = adapters
    configs = {name: copy.deepcopy(config) for name in other_names}
    # peft draws the adapters' first values from the global generator
    with torch.random.fork_rng(), warnings.catch_warnings():
        # peft 0.21 reads a name that transformers 5.23 has deprecated; users can change neither
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        torch.manual_seed(_seed(settings.seed, first))
        try:
            peft_model = peft.get_peft_model(model, config, adapter_name=first)
        except ValueError as error:  # modules that peft can't adapt, or names that there are not
            raise ModelError(
                f"{type(model).__name__} can't be given these adapters: {' '.join(str(error).split())[:300]} "
                "(learner.lora_targets names modules, such as [q_proj, v_proj])"
            ) from error
        for name in other_names:
            torch.manual_seed(_seed(settings.seed, name))
            peft_model.add_adapter(name, configs[name])
    _check_tied(peft_model)
    for name in adapters:
        if base is not None:
            peft_model.peft_config[name].base_model_name_or_path = base
    for p in adapter_parameters(peft_model, adapters):  # peft freezes all but the active one
        p.requires_grad_(True)
    return peft_model


def _check_tied(peft_model: Any) -> None:
    """Raise `ModelError` where adapters are on one of two modules that share a weight: merged, it would change both."""
    base = peft_model.get_base_model()
    ends = {"the embedding": base.get_input_embeddings(), "the head": base.get_output_embeddings()}
    weights = [getattr(end, "base_layer", end).weight for end in ends.values() if end is not None]
    adapted_ends = [name for name, end in ends.items() if hasattr(end, "base_layer")]
    if adapted_ends and len(weights) == 2 and weights[0] is weights[1]:
        raise ModelError(
            f"learner.lora_targets names {' and '.join(adapted_ends)} of a model whose head is its embedding "
            "(tie_word_embeddings): merged into one of them the adapter would change the other. Leave it out, or save "
            "the model untied"
        )


def _seed(seed: int, adapter: str) -> int:
    return seed if adapter == DEFAULT else zlib.crc32(f"{seed}/{adapter}".encode())


def adapter_parameters(model: Any, adapters: Sequence[str]) -> list[torch.nn.Parameter]:
    """Parameters of these adapters of a peft model."""
    return [p for name, p in model.named_parameters() if set(adapters) & set(name.split("."))]


def adapter_of(policy: str) -> str:
    """Adapter name of a policy; with a prefix, because peft looks for names among those of modules."""
    return DEFAULT if policy == ALONE else f"policy_{policy}"


def trained_policies(policies: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the trained policies in {name: "trained" | "frozen"}."""
    names = tuple(name for name, kind in policies.items() if kind == "trained")
    if not names or set(policies.values()) - {"trained", "frozen"}:
        raise ConfigError(f"policies are 'trained' or 'frozen', and at least one is trained, not {dict(policies)}")
    return names


def parameters_of_policy(policy: str, parameters: Mapping[str, Any], policies: Mapping[str, str]) -> dict[str, Any]:
    """Parameters of one policy of several, under the names that they have in a run of that policy alone."""
    adapter = adapter_of(policy)
    other_adapters = {adapter_of(name) for name in trained_policies(policies)} - {adapter}
    return {
        ".".join(DEFAULT if word == adapter else word for word in name.split(".")): x
        for name, x in parameters.items()
        if not other_adapters & set(name.split("."))
    }


class Adapters:
    """Policies of one model, one of them active: an adapter for each trained one, none for a frozen one.

    model     wrapped by `with_lora` with the adapters of `trained_policies(policies)`
    policies  name -> "trained" | "frozen"
    """

    def __init__(self, model: Any, policies: Mapping[str, str]) -> None:
        self.model, self.policies = model, dict(policies)
        self._parameters = adapter_parameters(model, [adapter_of(name) for name in trained_policies(policies)])

    @contextmanager
    def acting(self, policy: str | None) -> Iterator[None]:
        """Context manager: activate a policy's adapter; None: the model without adapters."""
        if policy is not None and policy not in self.policies:
            raise ModelError(f"there is no policy {policy!r}; the run has {', '.join(self.policies)}")
        try:
            if policy is None or self.policies[policy] == "frozen":
                with self.model.disable_adapter():
                    yield
            else:
                # switching adapters is slow, and mostly asked for the one that is active
                if self.model.active_adapters != [adapter_of(policy)]:
                    self.model.set_adapter(adapter_of(policy))
                    self._thaw()
                yield
        # peft freezes the adapters that it switches off: all of them are trained
        finally:
            self._thaw()

    def _thaw(self) -> None:
        """Enable gradients for all adapters: peft disables those that are not active."""
        for p in self._parameters:
            p.requires_grad_(True)


def merge_adapters(model: Any) -> Any:
    """Merge the adapters into the weights and return the plain model. Destroys `model`: pass a copy."""
    return model.merge_and_unload(safe_merge=True)
