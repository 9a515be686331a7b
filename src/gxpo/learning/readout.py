"""Log-probs, entropies and other outputs from hidden states, without materialising [all tokens x vocabulary]."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gxpo.base.errors import ModelError
from gxpo.learning.divergence import expected_score, generalised_jensen_shannon, with_rest
from gxpo.learning.head import Blocks, Chosen, columns_of_block, has_blocks
from gxpo.learning.logit_changes import LogitChanges
from gxpo.models.decoder.architecture import Head, are_plain_linears, backbone_of, positions
from gxpo.models.decoder.choices import kernel
from gxpo.models.decoder.forward import Decoder, Kernels, Products, with_zeros
from gxpo.models.decoder.vision import triples_of
from gxpo.parts.protocols import LIKELIEST, Output

# ---------------------------------------------------------------- readout
OUTPUTS = ("logprob", "entropy", "mean_logprob", "value")
AT_LAYERS = ("logprob", "entropy", "mean_logprob")  # may be followed by "@LAYER"
# are followed by "@ALPHA", "@K", "@K", and "@CAP" or "@none"
WITH_NUMBER = ("divergence", "likeliest", "likeliest_logprob", "expected_score")
BY_HAND = {"logprob", "entropy"}  # with hand-written gradients, over the whole vocabulary
# constants that an output is computed with: ids, and log-probs of them and of all others together
TEACHER = ("teacher_ids", "teacher_logprob")
CONSTANTS = {"divergence": TEACHER, "expected_score": LIKELIEST}


class Readout:
    """A causal language model split into its body, which runs once per token, and its head.

    `states` gives hidden states, `logits` turns chosen rows of them into logits. Where the split does not reproduce the
    model's own logits (tried once, on a short probe), states are the whole model's logits, and a warning tells so.

    head     the last linear map; None: the model names none
    decoder  computes the states of the models that it knows on flat lists of tokens; None: there is none, and `states`
             runs the model of transformers on padded rows
    """

    def __init__(
        self,
        causal: Any,
        *,
        is_split: bool | None = None,
        kernels: Kernels = "auto",
        products: Products = "auto",
        choices: Mapping[str, str] | None = None,
        recompute: bool = False,
    ) -> None:
        self.causal, self._trains_layers = causal, False
        self.name = type(causal).__name__
        config = causal.config.get_text_config()
        self.vocabulary = int(config.vocab_size)
        self.positions, self.limited_by = positions(config)
        self.triples = triples_of(causal)
        self._backbone, self._head = backbone_of(causal), Head.of(causal)
        # a head that does more than a linear map, a scale and a cap would give other logits than the model
        self.is_split = self._reproduces_logits() if is_split is None else is_split
        if not self.is_split:
            warnings.warn(
                f"{self.name}: its head is not one gxpo knows, so the logits of every token are held at once; "
                "lower learner.tokens_per_microbatch if memory runs out",
                stacklevel=2,
            )
        self.decoder = (
            Decoder.of(causal, products=products, choices=choices, recompute=recompute)
            if kernels == "auto" and self.is_split
            else None
        )
        if recompute and self.decoder is None:
            self._checkpoint_layers()

    def _checkpoint_layers(self) -> None:
        """Make the transformers model recompute its layers in the backward pass.

        It does so in training mode alone, which changes nothing else: there is no dropout.
        """
        if not getattr(self.causal, "supports_gradient_checkpointing", False):
            raise ModelError(f"{self.name} can't recompute its layers: leave learner.recompute out")
        enable = getattr(self.causal, "activation_checkpointing_enable", self.causal.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
        self._trains_layers = True

    @property
    def head(self) -> Any:
        """The last linear map; looked up each time, since adapters replace it."""
        return None if self._head is None else self._head.module

    @property
    def width(self) -> int:
        """Size of a hidden state."""
        return int(self.causal.config.get_text_config().hidden_size)

    @property
    def depth(self) -> int:
        """Number of layers."""
        return int(self.causal.config.get_text_config().num_hidden_layers)

    def states(self, tokens: Tensor, mask: Tensor | None, position: Tensor, layer: int = -1) -> Tensor:
        """Hidden states [B, L, H] after a layer (-1: the last; without a split: logits [B, L, V]) of tokens [B, L] at
        positions [B, L] ([3, B, L]: of m-RoPE)."""
        return self.states_after(tokens, mask, position, (layer,))[0]

    def states_after(
        self, tokens: Tensor, mask: Tensor | None, position: Tensor, layers: Sequence[int]
    ) -> list[Tensor]:
        """Hidden states after each of several layers, from one forward pass."""
        if self._trains_layers:
            self.causal.train(torch.is_grad_enabled())
        inputs = {"input_ids": tokens, "attention_mask": mask, "position_ids": position, "use_cache": False}
        if not self.is_split:
            return [self.causal(**inputs).logits] * len(layers)
        assert self._backbone is not None
        if all(layer == -1 for layer in layers):
            return [self._backbone(**inputs).last_hidden_state] * len(layers)
        out = self._backbone(**inputs, output_hidden_states=True)
        return [out.last_hidden_state if layer == -1 else out.hidden_states[layer] for layer in layers]

    def layer_of(self, spec: str) -> int:
        """Layer index of "3" (from 1, after which the head reads) or "0.25" (share of the depth, rounded, at least
        layer 1); -1 for the last, whose states are normed already."""
        try:
            # a share of the depth names the same place in models of different sizes
            layer = max(1, round(float(spec) * self.depth)) if "." in spec else int(spec)
        except ValueError:
            raise ModelError(
                f"an output of an inner layer is '@LAYER' or '@SHARE' of the depth, not '@{spec}'"
            ) from None
        if not 1 <= layer <= self.depth or float(spec) <= 0:
            raise ModelError(
                f"{self.name} has layers 1 to {self.depth}, none at '@{spec}': give one of them, or a share of the "
                "depth above 0, up to 1.0"
            )
        return -1 if layer == self.depth else layer

    def apply_norm(self, states: Tensor, layer: int, with_norm: bool = True) -> Tensor:
        """Apply the final norm to hidden states [n, H] of a layer, for the head; `with_norm` False: do not."""
        return self._final_norm(states) if with_norm and layer != -1 else states

    @cached_property
    def _final_norm(self) -> nn.Module:
        """The model's final norm, found by a short forward pass."""
        children = list(self._backbone.named_children()) if self.is_split and self._backbone is not None else []
        output_by_name: dict[str, Tensor] = {}
        hooks = [
            module.register_forward_hook(lambda _, __, out, name=name: output_by_name.__setitem__(name, out))
            for name, module in children
        ]
        try:
            with torch.no_grad():
                device = next(self.causal.parameters()).device
                tokens = (torch.arange(1, 7, device=device) % self.vocabulary)[None]
                last_states = self.states(tokens, None, torch.arange(6, device=device)[None]) if children else None
        finally:
            for hook in hooks:
                hook.remove()
        # from the last module back: the one whose output is what the head reads
        for name, module in reversed(children):
            if (
                isinstance(out := output_by_name.get(name), Tensor)
                and last_states is not None
                and torch.equal(out, last_states)
            ):
                return module
        raise ModelError(f"{self.name}: its final norm can't be told apart, so its inner layers have no policy")

    def by_layer(self, names: Sequence[str]) -> dict[tuple[int, bool], dict[str, str]]:
        """Outputs by hidden state: {(layer, final norm applied): {output: kind}}; the last layer is -1."""
        out: dict[tuple[int, bool], dict[str, str]] = {}
        for output in map(Output, names):
            inner = bool(output.at) and output.kind in AT_LAYERS
            layer = self.layer_of(output.at) if inner else -1
            if inner and not output.normed and layer == -1:
                raise ModelError(f"output {output!r}: the last layer's states are normed; give an inner layer")
            out.setdefault((layer, output.normed or not inner), {})[output] = output.kind if inner else output
        if not self.is_split and {layer for layer, _ in out} - {-1}:
            raise ModelError(f"{self.name}: its hidden states can't be told from its logits, so layers have no policy")
        return out

    def columns(self, name: str) -> int | None:
        """Number of columns of an output; None: one number a token."""
        output = Output(name)
        if output.kind not in ("likeliest", "likeliest_logprob"):
            return None
        return min(_count(output), self.vocabulary) + (output.kind == "likeliest_logprob")

    def head_weight(self) -> Tensor | None:
        """[V, H] head weight in the dtype of products, if that differs from the parameters'; None: the head runs as it
        is."""
        if self.decoder is None or self.head is None or not are_plain_linears(self.head):
            return None
        weight, product = self.head.weight, self.decoder.product
        return None if weight.dtype == product else weight.to(product)

    def logits(self, states: Tensor, weight: Tensor | None = None) -> Tensor:
        """[n, V] logits of hidden states [n, H]; `weight` from `head_weight`."""
        if not self.is_split:
            return states
        assert self._head is not None
        return self._head(states) if weight is None else self._head(states, lambda x: x @ weight.t(), weight.dtype)

    def by_blocks(self) -> tuple[Tensor, torch.dtype, float] | None:
        """Weight [V, H] of the head, dtype of products, and scale of the logits, where `head.Blocks` was chosen for a
        head that it can compute; else None."""
        if self.decoder is None or kernel(self.decoder.choices, "head") != "blocks" or not has_blocks(self):
            return None
        assert self._head is not None
        return self._head.module.weight, self.decoder.product, self._head.scale

    @torch.no_grad()
    def _reproduces_logits(self) -> bool:
        """Return True if head(body(tokens)) gives the model's own logits on a short probe."""
        if self._backbone is None or self.head is None:
            return False
        device = next(self.causal.parameters()).device
        tokens = (torch.arange(1, 7, device=device) % self.vocabulary)[None]
        position = torch.arange(6, device=device)[None]
        self.is_split = True
        # minus infinity less itself would be nan: banned ids are compared as zeros
        model_logits = with_zeros(self.causal(input_ids=tokens, position_ids=position, use_cache=False).logits)
        try:
            split_logits = with_zeros(self.logits(self.states(tokens, None, position)))
        except (AttributeError, TypeError, RuntimeError):
            return False
        return split_logits.shape == model_logits.shape and bool(
            (split_logits - model_logits).abs().max()
            <= 32 * torch.finfo(model_logits.dtype).eps * model_logits.abs().max()
        )


def _count(output: Output) -> int:
    if not output.at.isdecimal() or int(output.at) < 1:
        raise ModelError(f"output {output!r} needs a number of ids, at least 1, such as 'likeliest@100'")
    return int(output.at)


def _alpha(output: Output) -> float:
    try:
        alpha = float(output.at)
    except ValueError:
        alpha = -1.0
    if not 0.0 <= alpha <= 1.0:
        raise ModelError(f"output {output!r} needs a mixture from 0 to 1, such as 'divergence@0.5'")
    return alpha


def _cap(output: Output) -> float | None:
    if output.at == "none":
        return None
    try:
        cap = float(output.at)
    except ValueError:
        cap = 0.0
    if not cap > 0:
        raise ModelError(f"output {output!r} needs a bound above 0, or none, such as 'expected_score@2.0'")
    return cap


def _check_names(names: Sequence[str], heads: Sequence[str], constants: Mapping[str, Tensor] | None) -> None:
    for name in names:
        output = Output(name)
        if output.kind == "value":
            if name not in heads:
                raise ModelError(
                    f"there is no value head {name!r}, but {', '.join(heads) or 'none'}: make the learner with "
                    f"value_heads=({name!r},)"
                )
            continue
        if not output.normed or output.kind not in (WITH_NUMBER if output.at else OUTPUTS):
            layer_outputs = [Output(kind, "LAYER", normed=normed) for normed in (True, False) for kind in AT_LAYERS]
            known_outputs = ", ".join((*OUTPUTS, *layer_outputs, *(f"{x}@NUMBER" for x in WITH_NUMBER)))
            raise ModelError(f"the torch learner has no output {name!r}; it has {known_outputs}")
        if not set(inputs := CONSTANTS.get(output.kind, ())) <= set(constants or {}):
            raise ModelError(
                f"output {name!r} is of a stored distribution: give {' and '.join(inputs)} beside the loss"
            )


def read(
    readout: Readout,
    states: Tensor,
    target: Tensor,
    temperature: Tensor,
    support: Tensor | None,
    names: Sequence[str],
    *,
    head: nn.Linear | None = None,
    heads: Sequence[str] = (),
    logits_at_once: int = 2**23,
    constants: Mapping[str, Tensor] | None = None,
    changes: LogitChanges | None = None,
) -> dict[str, Tensor]:
    """Named outputs [n] of the distribution softmax(logits / temperature), restricted to `support` if given.

    changes  what was done to the logits of each token before temperature (None: nothing)

    logprob = z_target - logsumexp z, entropy = logsumexp z - sum p z and mean_logprob = mean z - logsumexp z with
    z = logits / temperature over the allowed ids; value, value@NAME = the row of head(state) that `heads` names so, of
    the state in which the token is chosen;
    "divergence@A" = `generalised_jensen_shannon` with alpha A to constants["teacher_ids"] [n, K] and
    constants["teacher_logprob"] [n, K + 1] (as `with_rest` gives them, of the same temperature and support; all -1 and
    -inf: 0); "expected_score@CAP" = `expected_score` under constants["sampler_ids"] and constants["sampler_logprob"],
    of these shapes; "likeliest@K" [n, K], "likeliest_logprob@K" [n, K + 1]: the K likeliest ids, as numbers, and
    `with_rest` of them, without gradient.

    states [n, H]; target [n] ids; temperature [n]; support [n, A] allowed ids padded with -1, a row of all -1 being the
    whole vocabulary. Computed in float32 at least, in chunks of `logits_at_once` logits, which the backward pass
    computes again instead of holding more of them.
    """
    # a mistake in lengths would otherwise be broadcast or cut off silently
    _check_names(names, heads, constants)
    n = target.shape[0]
    if states.shape[:1] != (n,) or temperature.shape != (n,) or (support is not None and support.shape[:1] != (n,)):
        raise ValueError(
            f"states {tuple(states.shape)}, target {tuple(target.shape)}, temperature {tuple(temperature.shape)} and "
            f"support {None if support is None else tuple(support.shape)} must share their first dimension"
        )
    constant_rows = {
        name: x for name, x in (constants or {}).items() if any(name in names for names in CONSTANTS.values())
    }
    if wrong := [name for name, x in constant_rows.items() if x.shape[0] != n]:
        raise ValueError(f"{' and '.join(wrong)} must have a row for each of the {n} tokens that are read")
    # value heads read the hidden state itself and need no logits
    values: dict[str, Tensor] = {}
    if head is not None and any(name in names for name in heads):
        values = {name: x for name, x in zip(heads, head(states).unbind(1), strict=True) if name in names}
    names = [name for name in names if name not in values]
    chunks = _chunks(n, support, changes, max(1, logits_at_once // readout.vocabulary), target.device)
    if not chunks:
        shapes = {name: readout.columns(name) for name in names}
        return values | {name: states.new_zeros((0,) if k is None else (0, k)) for name, k in shapes.items()}
    # recomputing logits costs time: only where holding those of all chunks would cost more memory than a chunk
    by_hand = (
        support is None and changes is None and {*names} <= BY_HAND
    )  # holds the logits as they are: of 16 bits, twice as many
    if by_hand and names and (head_of_blocks := readout.by_blocks()) is not None:
        columns = columns_of_block(n, readout.vocabulary, logits_at_once)
        logprob, entropy = Blocks.apply(states, *head_of_blocks, target, temperature, "entropy" in names, columns)
        return values | {name: entropy if name == "entropy" else logprob for name in names}
    weight = readout.head_weight()
    logits_bytes = n * readout.vocabulary * (states.dtype if weight is None else weight.dtype).itemsize
    recompute = torch.is_grad_enabled() and (logits_bytes > 4 * logits_at_once if by_hand else len(chunks) > 1)
    pieces = []
    for rows, support_rows, row_changes in chunks:
        stored_rows = {name: x[rows] for name, x in constant_rows.items()}
        arguments = (
            readout,
            states[rows],
            target[rows],
            temperature[rows],
            support_rows,
            tuple(names),
            weight,
            stored_rows,
            row_changes,
        )
        if recompute:
            pieces.append(checkpoint(_read_chunk, *arguments, use_reentrant=False, preserve_rng_state=False))
        else:
            pieces.append(_read_chunk(*arguments))
    # chunks by support have changed the order of the tokens
    inverse_order = torch.cat([rows for rows, _, _ in chunks]).argsort()
    return values | {name: torch.cat([piece[i] for piece in pieces])[inverse_order] for i, name in enumerate(names)}


def _chunks(
    n: int, support: Tensor | None, changes: LogitChanges | None, size: int, device: torch.device
) -> list[tuple[Tensor, Tensor | None, LogitChanges | None]]:
    """Rows of chunks of at most `size` tokens; those with and without a support, with and without changes are apart."""
    if support is None and changes is None:  # a shape that depends on numbers would wait for the device
        return [(rows, None, None) for rows in torch.arange(n, device=device).split(size) if rows.numel()]
    has_support, is_changed = torch.zeros(2, n, dtype=torch.bool, device=device)
    if support is not None:
        has_support = (support >= 0).any(1)
    if changes is not None:
        is_changed = changes.is_changed.to(device)
    chunks: list[tuple[Tensor, Tensor | None, LogitChanges | None]] = []
    for kind in range(4 if changes is not None else 2):
        of_kind = (has_support == bool(kind % 2)) & (is_changed == bool(kind // 2))
        for rows in of_kind.nonzero().squeeze(1).split(size):
            if rows.numel():
                support_rows = support[rows] if support is not None and kind % 2 else None
                chunks.append((rows, support_rows, changes[rows.cpu()] if changes is not None and kind // 2 else None))
    return chunks


def _read_chunk(
    readout: Readout,
    states: Tensor,
    target: Tensor,
    temperature: Tensor,
    support: Tensor | None,
    names: tuple[str, ...],
    weight: Tensor | None,
    constant_rows: Mapping[str, Tensor],
    changes: LogitChanges | None = None,
) -> list[Tensor]:
    """Outputs of a chunk, in the order of `names`; see `read`."""
    logits = readout.logits(states, weight)
    if support is None and changes is None and {*names} <= BY_HAND:
        logprob, entropy = Chosen.apply(logits, target, temperature, "entropy" in names)
        return [entropy if name == "entropy" else logprob for name in names]
    # from here on autograd keeps float32 copies, which the hand-written gradients above avoid
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    z = z if changes is None else changes.apply(z)
    z = vocabulary_z = z / temperature[:, None].to(z)
    target_logit = z.gather(1, target[:, None]).squeeze(1)
    if support is not None:
        z = z.gather(1, support.clamp_min(0)).masked_fill(support < 0, -torch.inf)
    log_total = z.logsumexp(1)
    out = {"logprob": target_logit - log_total}
    if "entropy" in names:
        p = (z - log_total[:, None]).exp()
        out["entropy"] = log_total - (p * z.masked_fill(z == -torch.inf, 0.0)).sum(1)
    if "mean_logprob" in names:
        is_cut, is_none = (
            support is not None or changes is not None,
            z == -torch.inf,
        )  # outside the support, or forbidden
        mean = z.masked_fill(is_none, 0.0).sum(1) / (~is_none).sum(1) if is_cut else z.mean(1)
        out["mean_logprob"] = mean - log_total
    # these ids index the vocabulary, not the columns of the support
    for output in map(Output, names):
        if output.kind in CONSTANTS:
            ids, constant = (constant_rows[name] for name in CONSTANTS[output.kind])
            student = with_rest(vocabulary_z, log_total, ids, support)
            if output.kind == "divergence":
                out[output] = generalised_jensen_shannon(student, constant.to(student), _alpha(output))
            else:
                out[output] = expected_score(student, constant.to(student), _cap(output))
        elif output.at and output not in out:
            ids = _likeliest(z.detach(), support, min(_count(output), readout.vocabulary))
            out[Output("likeliest", output.at)] = ids.to(z)
            out[Output("likeliest_logprob", output.at)] = with_rest(
                vocabulary_z.detach(), log_total.detach(), ids, support
            )
    return [out[name] for name in names]


def _likeliest(z: Tensor, support: Tensor | None, k: int) -> Tensor:
    """[n, k] ids of the largest of `z`, padded with -1 where fewer are allowed."""
    if support is None:
        top_z, ids = z.topk(k, 1)
        return ids.masked_fill(top_z == -torch.inf, -1)
    top = z.topk(min(k, z.shape[1]), 1).indices
    ids = support.gather(1, top)  # the padding of a support is -1 itself, and its z the least
    return nn.functional.pad(ids, (0, k - ids.shape[1]), value=-1)
