"""PyTorch learner: packed forward passes, exact gradient accumulation, an optimiser, LoRA, a reference model."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gxpo.base import media, runtime
from gxpo.base.errors import ConfigError, ModelError
from gxpo.base.runtime import memory_is_short
from gxpo.forest.forest import Forest
from gxpo.learning.architecture import dense_mask_reason, layout_for, states_after, untrained_loss
from gxpo.learning.base import InProcess, acting, outputs_of
from gxpo.learning.block_mask import NO_FLEX_BACKWARD, Attention, row_trial
from gxpo.learning.head import head_trials
from gxpo.learning.lora import ALONE, Adapters, LoraSettings, adapter_of, trained_policies, with_lora
from gxpo.learning.optimiser import Optimiser, OptimiserSettings, copy_value, with_constant_rate
from gxpo.learning.packing import Layout, MicroBatch, Packing, Sheet
from gxpo.learning.readout import Readout, read
from gxpo.learning.soft import WEIGHT, soft_inputs, with_densities
from gxpo.learning.transfers import one_to_device, to_device, to_host
from gxpo.models.decoder import measure
from gxpo.models.decoder.choices import Sizes, Trial, kernel
from gxpo.models.decoder.forward import Kernels, Products
from gxpo.models.decoder.vision import vision_of

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing from Python 3.11 on

VALUE_HEAD = "value_head."  # before the names of its parameters


class TorchLearner(InProcess):
    """Learner over the parameters of a transformers causal language model.

    model     a causal language model; kept in eval mode (no dropout: a ratio of 1 must be exactly 1)
    lr        learning rate;   settings: of the optimiser, by keyword
    tokens_per_microbatch  padded tokens that go through the model together
    images_per_microbatch  distinct pictures that go through its vision tower with them at most; None: any number
    dtype     of the parameters ("float32", "bfloat16", "float64"); None leaves them; optimiser states are float32
    lora      train low-rank adapters only
    policies  name -> "trained" | "frozen". Several are one model with an adapter for each trained one (needs `lora`),
              moved by one optimiser; a frozen one is the model without adapters. A token is read by the policy that
              wrote it. A single policy reads every token, whatever its author's name in the forest
    value_heads  linear heads on the last hidden states, by output: "value", "value@NAME". They are trained with the
              policy: zero at first, at `value_lr` times the learning rate
    reference keep a frozen copy of the policy as it is now (with LoRA: the model with its adapters off, at no cost)
    layout    "packed" (unique tokens once) or "flat" (a row per leaf); models that can't be packed are trained flat
    attention how a transformers model is given the mask of packed rows: "dense" [B, 1, L, L], "flex": blocks for
              FlexAttention, which has no backward pass on CPUs, "auto": what `choices` have for "row attention"
    logits_at_once  how many logits are held at a time
    kernels   "auto": the forward pass of `models.decoder` for the models that it knows; "transformers": theirs for all
    products  dtype in which that multiplies matrices (see `gxpo.models.decoder.forward.Decoder`)
    choices   its kernels by purpose (see `gxpo.models.decoder.choices`); `trials` times them
    recompute hold one hidden state a token and layer in an update, and compute what lies between them again

    With torch.distributed initialised every process must hold the same parameters and be given the same forest; they
    share the micro-batches, and every process takes the same step.
    """

    def __init__(
        self,
        model: Any,
        *,
        lr: float,
        tokens_per_microbatch: int = 8192,
        images_per_microbatch: int | None = None,
        device: str | torch.device = "cpu",
        dtype: str | torch.dtype | None = None,
        lora: LoraSettings | None = None,
        policies: Mapping[str, str] | None = None,
        reference: bool = False,
        value_heads: Sequence[str] = (),
        value_lr: float = 1.0,
        layout: Layout = "packed",
        logits_at_once: int = 2**23,
        attention: Attention = "auto",
        kernels: Kernels = "auto",
        products: Products = "auto",
        choices: Mapping[str, str] | None = None,
        recompute: bool = False,
        **settings: Unpack[OptimiserSettings],
    ) -> None:
        self._optimiser_settings = settings
        for name, size in (("tokens", tokens_per_microbatch), ("images", images_per_microbatch)):
            if size is not None and size < 1:
                raise ModelError(f"learner.{name}_per_microbatch is {size}; it must be at least 1")
        self.images_per_microbatch = images_per_microbatch
        self.device, self.lora = torch.device(device), lora
        self.tokens_per_microbatch, self.logits_at_once = tokens_per_microbatch, logits_at_once
        self.model = _prepare_model(model, self.device, dtype)
        self._kernels: dict[str, Any] = {"kernels": kernels, "products": products, "choices": dict(choices or {})}
        self._kernels["recompute"] = recompute
        self._readout = Readout(self.model, **self._kernels)
        self.attention: Attention = attention
        self.layout: Layout = layout_for(self._readout, layout, attention)
        if (notice := untrained_loss(model)) is not None:
            warnings.warn(notice, stacklevel=2)
        # with adapters the reference is the model with adapters off, without them a frozen copy
        self._reference: Readout | None = None
        self.policies = dict(policies or {ALONE: "trained"})
        trained_names = trained_policies(self.policies)
        self._adapters: Adapters | None = None
        if len(self.policies) > 1:
            if lora is None:
                raise ConfigError(
                    f"policies {', '.join(self.policies)}: several are adapters over one model; set learner.lora_rank"
                )
            self.model = with_lora(self.model, lora, adapters=[adapter_of(name) for name in trained_names]).eval()
            self._adapters = Adapters(self.model, self.policies)
            self._reference = self._readout if reference else None
        elif lora is not None:
            self.model = with_lora(self.model, lora).eval()
            self._reference = self._readout if reference else None
        elif reference:
            self._reference = Readout(self._frozen_copy(), is_split=self._readout.is_split, **self._kernels)
        self.value_head: nn.Linear | None = None
        self.value_heads = tuple(value_heads)
        if value_heads:
            self.value_head = _value_head(self._readout, len(self.value_heads), next(self.model.parameters()))
        self._place_parameters()  # before the optimiser sees them: sharding replaces parameters
        self.optimiser = Optimiser.of(
            {name: p for name, p in self._named_parameters() if p.requires_grad},
            settings,
            lr=lr,
            multiples={VALUE_HEAD: value_lr},
            outer_names=self._adamw_prefixes() if settings.get("optimiser") == "muon" else (),
        )

    def _adamw_prefixes(self) -> list[str]:
        """Prefixes of the matrices that Muon leaves to AdamW: embeddings, output head, value heads."""
        embedding_ids = {
            id(m) for m in (self.model.get_input_embeddings(), self.model.get_output_embeddings()) if m is not None
        }
        names = [n for n, m in self.model.named_modules() if id(m) in embedding_ids or isinstance(m, nn.Embedding)]
        return [*(f"{name}." for name in names), VALUE_HEAD]

    def _frozen_copy(self) -> Any:
        """Frozen copy of the model as it is now, for the reference."""
        return copy.deepcopy(self.model).requires_grad_(False)

    def _place_parameters(self) -> None:
        """Hook of subclasses, called before the optimiser is made."""

    @property
    def samples(self) -> Any:
        """Model that samplers in this process read."""
        return self.model

    def _named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.model.named_parameters()
        if self.value_head is not None:
            yield from ((VALUE_HEAD + name, p) for name, p in self.value_head.named_parameters())

    @property
    def vocabulary(self) -> int:
        return self._readout.vocabulary

    def second_learner(self, *, lr: float) -> TorchLearner:
        """Second learner from a copy of the parameters: own optimiser, constant rate, no reference or values."""
        self._refuse_several_policies("a second model from a copy of the policy")
        return TorchLearner(
            copy.deepcopy(self._readout.causal),
            lr=lr,
            tokens_per_microbatch=self.tokens_per_microbatch,
            images_per_microbatch=self.images_per_microbatch,
            device=self.device,
            layout=self.layout,
            attention=self.attention,
            logits_at_once=self.logits_at_once,
            **self._kernels,
            **with_constant_rate(self._optimiser_settings),
        )

    @torch.no_grad()
    def follow(self, policy: TorchLearner, rate: float) -> None:
        """Move every parameter by `rate` towards another learner's (exponential moving average), at the precision of
        the update; a value head is left out."""
        own_parameters = self.snapshot()
        policy_parameters = {name: x for name, x in policy.snapshot().items() if not name.startswith(VALUE_HEAD)}
        if [x.shape for x in own_parameters.values()] != [x.shape for x in policy_parameters.values()]:
            raise ModelError("a model can follow another of its own kind alone: these two differ in their parameters")
        pairs = zip(own_parameters.items(), policy_parameters.values(), strict=True)
        self.restore({name: torch.lerp(x, y.to(x), rate) for (name, x), y in pairs})

    @torch.no_grad()
    def refer(self, parameters: Mapping[str, Tensor]) -> None:
        """Make the policy with these parameters (names as in `snapshot`) the reference. With LoRA that is a frozen copy
        of the model with its adapters from now on."""
        self._refuse_several_policies("a reference with parameters of its own")
        if self._reference is self._readout:
            frozen = copy.deepcopy(self._readout.causal).requires_grad_(False)
            self._reference = Readout(frozen, is_split=self._readout.is_split, **self._kernels)
        if self._reference is None:
            raise ModelError("no reference policy is kept: make the learner with reference=True")
        # the optimiser names parameters as the wrapped model does, the reference as the bare one
        name_by_id = {id(p): name for name, p in self._readout.causal.named_parameters()}
        reference_parameters = dict(self._reference.causal.named_parameters())
        for name, p in self.optimiser.parameter_by_name.items():
            if not name.startswith(VALUE_HEAD):
                copy_value(reference_parameters[name_by_id[id(p)]], parameters[name])

    # ------------------------------------------------------------ choices between kernels
    def use(self, choices: Mapping[str, str]) -> None:
        """Update with these kernels (`models.decoder.choices`)."""
        kernels = self._kernels
        kernels |= {"choices": kernels["choices"] | choices, "products": choices.get("products", kernels["products"])}
        self.__dict__.pop("_uses_blocks", None)
        for readout in (self._readout, self._reference):
            if readout is not None and readout.decoder is not None:
                readout.decoder.choices, readout.decoder.products = kernels["choices"], kernels["products"]

    def trials(self, sizes: Sizes, choices: Mapping[str, str]) -> Iterator[tuple[str, Trial]]:
        """Time the kernels that an update chooses between, with a step of these sizes, where `choices` has none."""
        rows = self.tokens_per_microbatch
        is_open = self.attention == "auto" and self.layout == "packed" and self.device.type not in NO_FLEX_BACKWARD
        if is_open and "row attention" not in choices and self._dense_mask_reason() is None:
            config, dtype = self._readout.causal.config.get_text_config(), next(self.model.parameters()).dtype
            yield "row attention", row_trial(config, dtype, self.device, sizes, rows)
        if (decoder := self._readout.decoder) is not None:
            choice_by_name = dict(choices)
            for name, trial in measure.update_trials(decoder, self._readout.head, rows, sizes, choices):
                choice_by_name[name] = trial.choice
                yield name, trial
            yield from head_trials(self._readout, rows, choice_by_name, self.logits_at_once)

    # ------------------------------------------------------------ several policies
    def acting(self, policy: str) -> AbstractContextManager[None]:
        """Context manager: the model acts as that policy."""
        return acting(self._adapters, self.policies, policy)

    def sampling_as(self, policy: str) -> AbstractContextManager[None]:
        """Context manager: `samples` acts as that policy."""
        return self.acting(policy)

    def _refuse_several_policies(self, feature: str) -> None:
        """Raise ModelError if there are several policies."""
        if self._adapters is not None:
            raise ModelError(f"{feature} needs a single policy, and there are several: {', '.join(self.policies)}")

    def _microbatches(
        self, packing: Packing, entries: Tensor, cuts: Sequence[Tensor] | None = None
    ) -> list[MicroBatch]:
        """Micro-batches of these action tokens, each of one policy if there are several."""
        # each process needs a batch, or it would miss the others' collectives
        least = runtime.world()
        if self._adapters is None:
            return packing.microbatches(entries, cuts=cuts, at_least=least)
        out = []
        for policy, policy_entries in packing.by_policy(entries).items():
            if policy not in self.policies:
                raise ModelError(
                    f"the forest has actions of policy {policy!r}; the learner has {', '.join(self.policies)}"
                )
            out += [replace(b, policy=policy) for b in packing.microbatches(policy_entries, cuts=cuts, at_least=least)]
        return out

    # ------------------------------------------------------------ outputs
    def outputs(
        self,
        forest: Forest,
        names: Sequence[str] = ("logprob",),
        *,
        policy: str = "current",
        constants: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Detached float64 [P] outputs ("logprob", "entropy", "value"...) of the "current" or the "reference" policy.

        Every action token is read, trainable or not, at its trajectory's temperature and on its stored support; of
        several current policies each reads its own. "logprob", "entropy" and "mean_logprob" followed by "@3" or "@0.25"
        are of the head on the normed hidden state after layer 3, or after that share of the layers, and with
        "unnormed_" before them of the state as it is; "likeliest@K" [P, K] and "likeliest_logprob@K" [P, K + 1] are the
        likeliest ids, and their log-probs and that of all others; "divergence@A" is to the teacher in `constants`, and
        "expected_score@CAP" of the sampler in `constants` (see
        `gxpo.learning.readout.read`).
        """
        # the reference reads all tokens, of several current policies each its own
        readout, adapters = self._policy(policy)
        every_entry, packing = torch.arange(forest.n_entries), self._packing(forest)
        if policy == "current":
            batches = self._microbatches(packing, every_entry)
        else:
            batches = packing.microbatches(every_entry, at_least=runtime.world())
        # tokens that are not read are nan, and never 0, which is a log-prob
        rows = forest.n_entries
        shapes = {name: (rows,) if (k := readout.columns(name)) is None else (rows, k) for name in names}
        nan_outputs = {name: torch.full(shape, torch.nan, dtype=torch.float64) for name, shape in shapes.items()}
        with adapters, self._short_memory("computing log-probs"):
            return outputs_of(
                lambda b: self._forward(b, names, readout, constants), batches, nan_outputs, lockstep=self.lockstep
            )

    @torch.no_grad()
    def hidden(self, forest: Forest, layer: int = -1) -> Tensor:
        """Hidden states [T, H] float32 of the current policy at every stored token, after a layer (1: the first; -1:
        the last, as the head reads it). Zeros at tokens outside every trajectory."""
        self._refuse_several_policies("the hidden state at a stored token")
        if not self._readout.is_split:
            raise ModelError(f"{self._readout.name}: its hidden states can't be told from its logits")
        out = torch.zeros(forest.n_tokens, self._readout.width)
        with self._short_memory("computing hidden states"):
            for sheet in self._packing(forest).everything():
                with soft_inputs(self._readout, sheet):
                    states = self._states(sheet, self._readout, (layer,))[0]
                out[sheet.index] = states.to("cpu", torch.float32)
        return out

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """Logits [n, V] of the current policy for rows [n, H] of `hidden(forest)`, before any temperature; on the
        learner's device, float32 at least."""
        self._refuse_several_policies("the logits of a hidden state")
        head_input = states.to(self.device, next(self.model.parameters()).dtype)
        head_output = self._readout.logits(head_input, self._readout.head_weight())
        return head_output.to(torch.promote_types(head_output.dtype, torch.float32))

    def _short_memory(self, doing: str) -> AbstractContextManager[None]:
        size, has_vision = self.tokens_per_microbatch, hasattr(self._readout.causal.config, "vision_config")
        pictures = f", learner.images_per_microbatch (now {self.images_per_microbatch or 'any'})" if has_vision else ""
        return memory_is_short(
            doing,
            f"learner.tokens_per_microbatch (now {size}){pictures} or sampling.max_new_tokens, or train adapters only "
            "(learner.lora_rank)",
        )

    def _policy(self, policy: str) -> tuple[Readout, Any]:
        """Readout of a policy, and the context manager in which its adapters are set."""
        if policy == "current":
            return self._readout, nullcontext()
        if policy != "reference":
            raise ModelError(f"policy is 'current' or 'reference', not {policy!r}")
        if self._reference is None:
            raise ModelError("no reference policy is kept: make the learner with reference=True")
        if self._adapters is not None:
            return self._reference, self._adapters.acting(None)
        bare = self.lora is not None and self._reference is self._readout
        return self._reference, self.model.disable_adapter() if bare else nullcontext()

    def _forward(
        self,
        batch: MicroBatch,
        names: Sequence[str],
        readout: Readout,
        constants: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Outputs [E] of a micro-batch's entries, float64, with gradient where it is enabled."""
        layers = readout.by_layer(names)
        soft = WEIGHT in batch.packing.forest.extras
        acting = nullcontext() if batch.policy is None else self.acting(batch.policy)
        with acting, soft_inputs(readout, batch) if soft else nullcontext():
            states = self._states(batch, readout, [layer for layer, _ in layers])
        state_index, target, temperature, support, changes, reading = (
            batch.place, batch.target, batch.temperature, batch.support, batch.changes, batch.reading
        )  # fmt: skip
        # readings are distinct (token, temperature); `constants` may differ between entries that share one
        constant_rows: dict[str, Tensor] | None = None
        if constants:
            state_index, target, temperature = state_index[reading], target[reading], temperature[reading]
            support = None if support is None else support[reading]
            changes, reading = None if changes is None else changes[reading], torch.arange(len(reading))
            constant_rows = {name: one_to_device(x[batch.entries], self.device) for name, x in constants.items()}
        out = {}
        index_there, target_there, temperature_there = to_device((state_index, target, temperature), self.device)
        for (layer, with_norm), layer_states in zip(layers, states, strict=True):
            rows = readout.apply_norm(layer_states.index_select(0, index_there), layer, with_norm)
            outputs = read(
                readout,
                rows,
                target_there,
                temperature_there,
                None if support is None else support.to(self.device),
                tuple(layers[layer, with_norm].values()),
                head=self.value_head,
                heads=self.value_heads,
                logits_at_once=self.logits_at_once,
                constants=constant_rows,
                changes=changes,
            )
            if soft:
                outputs = with_densities(outputs, batch, reading, readout, rows, temperature, self.logits_at_once)
            layer_outputs = to_host({name: outputs[kind] for name, kind in layers[layer, with_norm].items()})
            out |= {name: x[reading] for name, x in layer_outputs.items()}
        return out

    def _live(self, batch: MicroBatch, names: Sequence[str], *constants: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if with_columns := [name for name in names if self._readout.columns(name) is not None]:
            raise ModelError(f"output {with_columns[0]!r} has no gradient: ask `outputs` for it, not a step")
        return self._forward(batch, names, self._readout, *constants)

    def _states(self, sheet: Sheet, readout: Readout, layers: Sequence[int] = (-1,)) -> list[Tensor]:
        """Hidden states [n, H] of a sheet's tokens after each of these layers."""
        if readout.decoder is not None:
            return readout.decoder.states_after(sheet.tokens, sheet.position, sheet.chains, layers)
        return states_after(readout, sheet, layers, blocks=self._uses_blocks)

    @cached_property
    def _uses_blocks(self) -> bool:
        """True if packed rows take block masks; a model that can't attend by them is warned of once."""
        if self.layout == "flat" or self.attention != "auto":
            return self.layout != "flat" and self.attention == "flex"
        if kernel(self._kernels["choices"], "row attention") != "flex":
            return False
        if (reason := self._dense_mask_reason()) is not None:
            warnings.warn(f"rows have dense masks: {reason}", stacklevel=2)
        return reason is None

    def _dense_mask_reason(self) -> str | None:
        """Reason why the policy or its reference can't attend by block masks; None: both are switched to them."""
        reasons = (dense_mask_reason(x) for x in (self._readout, self._reference) if x is not None)
        return next((reason for reason in reasons if reason is not None), None)

    def _packing(self, forest: Forest) -> Packing:
        is_padded, limit, triples = self._readout.decoder is None, self.tokens_per_microbatch, self._readout.triples
        position = None if triples is None else triples.positions_in(forest)
        images = self.images_per_microbatch
        packing = Packing(forest, layout=self.layout, limit=limit, padded=is_padded, position=position, images=images)
        highest, deepest = forest.token.max() if forest.n_tokens else -1, packing.packed.position
        # ids of pictures are beyond every vocabulary: only those of texts are compared
        if forest.media or highest >= media.FIRST:
            highest = self._highest_of_text(forest)
        if highest >= self._readout.vocabulary:
            raise ModelError(
                f"the forest has token id {int(highest)}, the model a vocabulary of {self._readout.vocabulary}: "
                "they are not of the same tokenizer"
            )
        limit = self._readout.positions
        if limit and deepest.numel() and int(deepest.max()) >= limit:
            raise ModelError(
                f"a trajectory has {int(deepest.max()) + 1} tokens, the model {limit} positions"
                f"{self._readout.limited_by}: "
                "shorten prompts or lower sampling.max_new_tokens"
            )
        return packing

    def _highest_of_text(self, forest: Forest) -> int:
        """Highest vocabulary id of a forest with pictures, all of which this model can read."""
        rows = forest.token >= media.FIRST
        if vision_of(self._readout.causal) is None:
            raise ModelError(f"the forest refers to pictures, which {self._readout.name} can't read: leave `media` out")
        if not bool(rows.any()):
            raise ModelError("the forest refers to pictures without their tokens: give `media_at` in its records")
        return int(forest.token.masked_fill(rows, -1).max())


def _prepare_model(model: Any, device: torch.device, dtype: str | torch.dtype | None) -> Any:
    """The model on its device, in eval mode, with parameters (not buffers: rotary tables stay exact) of `dtype`."""
    model = model.to(device).eval()
    if dtype is None:
        return model
    parameter_dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if parameter_dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise ModelError(f"learner.dtype {dtype!r} is not one of float16, bfloat16, float32, float64")
    with torch.no_grad():
        for p in model.parameters():
            p.data = p.data.to(parameter_dtype)
    return model


def _value_head(readout: Readout, heads: int, like: Tensor) -> nn.Linear:
    """Linear value heads on the hidden state, initialised to 0."""
    if not readout.is_split:
        raise ModelError(
            f"{readout.name}: its hidden states can't be told from its logits, so it can have no value head"
        )
    head = nn.Linear(readout.width, heads, device=like.device, dtype=like.dtype)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
