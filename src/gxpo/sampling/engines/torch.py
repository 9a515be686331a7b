"""In-process sampling from any transformers causal language model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gxpo.base.errors import ModelError
from gxpo.base.media import FIRST
from gxpo.base.runtime import memory_is_short
from gxpo.models.decoder import measure
from gxpo.models.decoder.forward import Kernels, Products
from gxpo.models.decoder.measure import Trial
from gxpo.models.decoder.sampling import Branches, Prompts, Stepper
from gxpo.models.decoder.soft import FAINT, gumbel, log_density, mixed_embeddings, mixture
from gxpo.parts.protocols import Completion, Request, Sampling, SoftSampling, StreamKey
from gxpo.sampling.engines.decode import (
    KEEP_UNTIL,
    Actions,
    Batch,
    Context,
    Kept,
    KeptCaches,
    Stopping,
    decode,
    draw,
    prefill_flat,
    support_of,
    uniforms,
    writes,
)
from gxpo.sampling.engines.network import Network, prefill


# ---------------------------------------------------------------- soft
# Soft thinking: each step is a mixture of likely tokens until a closing text; then tokens are sampled.
@dataclass
class _Soft:
    """Of m rows: allowed ids, y (nan where not counted), weights [m, K]; the likeliest of y, its density [m]."""

    support: Tensor
    y: Tensor
    weight: Tensor
    token: Tensor
    density: Tensor


def soft_step(logits: Tensor, uniform: Tensor, sampling: SoftSampling) -> _Soft:
    """p = softmax(logits / temperature) on its top-k/top-p support, y = log p + Gumbel noise, softmax(y / tau).

    logits [m, V]; uniform [m, K] float64, K = `soft_top_k`. At temperature 0: p at temperature 1, and no noise.
    """
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / (sampling.temperature or 1.0)
    support = support_of(scaled, sampling.soft_top_k, sampling.soft_top_p)
    support = torch.nn.functional.pad(support, (0, uniform.shape[1] - support.shape[1]), value=-1)
    inside = scaled.gather(1, support.clamp_min(0)).masked_fill(support < 0, -torch.inf)
    logprob = inside.double().log_softmax(1)
    y = logprob + (gumbel(uniform) if sampling.temperature else 0.0)
    counted = (logprob > FAINT) | (logprob == logprob.amax(1, keepdim=True))
    seen = torch.where(counted, y, torch.nan)
    token = support.gather(1, y.argmax(1, keepdim=True)).squeeze(1)
    return _Soft(support, seen, mixture(y, sampling.mixing_temperature), token, log_density(seen, logprob))


def soft_decode(
    state: Batch,
    streams: np.ndarray,
    sampling: SoftSampling,
    stopping: Stopping,
    closed: Stopping,
    embedding: Any,
    policy_version: int,
) -> list[Completion]:
    """Decode until every row is done or out of uniforms; streams [n, longest, 1 + K] float64.

    A soft step is stored as its likeliest id, with the noise's density as log-prob, the support, and the extras
    "soft_y" and "soft_weight" [tokens, K], which are nan at ordinary tokens. `closed` says after which token a row's
    thinking is over.
    """
    n, longest, _ = streams.shape
    uniform = torch.from_numpy(streams).to(state.logits.device)
    out, samples, thinking = Actions.empty(n, longest), torch.arange(n), torch.ones(n, dtype=torch.bool)
    supports: list[tuple[Tensor, Tensor]] = []
    noise = torch.full((2, n, longest, sampling.soft_top_k), torch.nan, dtype=torch.float64)  # y, weight
    for step in range(longest):
        soft = soft_step(state.logits, uniform[samples, step, 1:], sampling)
        drawn = draw(state.logits, uniform[samples, step, 0], sampling)
        thinks = thinking[samples]
        token = torch.where(thinks, soft.token.cpu(), drawn.token.cpu())
        running = ~out.stopped[samples]
        out.tokens[samples, step] = token
        out.logprobs[samples, step] = torch.where(thinks, soft.density.cpu(), drawn.logprob.cpu())
        out.length[samples[running]] = step + 1
        noise[0, samples[thinks], step] = soft.y.cpu()[thinks]
        noise[1, samples[thinks], step] = soft.weight.cpu()[thinks]
        supports.append((samples[thinks], soft.support.cpu()[thinks]))
        if drawn.support is not None:
            supports.append((samples[~thinks], drawn.support.cpu()[~thinks]))
        supports.append((torch.tensor([step]), torch.empty(0)))  # the end of the step
        history = out.tokens[samples, : step + 1]
        out.stopped[samples] |= stopping.done(token, history)
        thinking[samples] &= ~closed.done(token, history)
        running = ~out.stopped[samples]
        if step + 1 == longest or not bool(running.any()):
            break
        ids, weight = soft.support, soft.weight
        if int(running.sum()) <= KEEP_UNTIL * samples.numel():
            kept = running.nonzero().squeeze(1)
            at = kept.to(uniform.device)
            samples, token, thinks, state = samples[kept], token[kept], thinks[kept], state.select(at)
            ids, weight = ids[at], weight[at]
        rows = thinks.nonzero().squeeze(1).to(uniform.device)
        with mixed_embeddings(embedding, rows, ids[rows], weight[rows]):
            state = state.advance(token.to(uniform.device))
    return _completions(out, _by_step(supports, n, longest, sampling.soft_top_k), noise, policy_version)


def _by_step(found: list[tuple[Tensor, Tensor]], n: int, longest: int, least: int) -> Tensor:
    """[n, longest, K] allowed ids, -1 elsewhere."""
    widest = max([least, *(ids.shape[1] for _, ids in found if ids.dim() == 2)])
    out, step = torch.full((n, longest, widest), -1), 0
    for samples, ids in found:
        if ids.dim() == 1:
            step = int(samples[0]) + 1
        else:
            out[samples, step, : ids.shape[1]] = ids
    return out


def _completions(out: Actions, support: Tensor, noise: Tensor, policy_version: int) -> list[Completion]:
    width = support.shape[2]
    noise = torch.nn.functional.pad(noise, (0, width - noise.shape[3]), value=torch.nan)
    made = []
    for i, completion in enumerate(out.completions(policy_version)):
        size = len(completion.tokens)
        extras = {name: noise[k, i, :size].numpy() for k, name in enumerate(("soft_y", "soft_weight"))}
        made.append(replace(completion, support=support[i, :size].numpy(), extras=extras))
    return made


# ---------------------------------------------------------------- torch
STOPPINGS = 64  # sets of stop conditions that are kept, each a flag for every token of the vocabulary


class TorchEngine:
    """Batched sampling with keyed uniforms, exact log-probabilities and stored support.

    model           a causal language model of transformers, or one wrapped by peft; set to eval mode
    tokenizer       needed for stop strings and for the end-of-sequence id; None: stop ids only
    batch_rows      samples that are decoded together
    stop_ids        end-of-sequence ids; default: those of the tokenizer and of the model's generation settings
    keep_tokens     tokens of samples whose keys and values may be held for later turns; 0: nothing is kept
    prefill_tokens  prompt tokens, padding included, that go through the model in one forward pass
    acting          makes the model the policy that a request names, as long as the context lasts; None: there is one
                    policy, "main"
    kernels, products  as of the learner (`gxpo.learning.torch.TorchLearner`)
    policy_version  stamped on every completion; the trainer counts it up
    interrupted     asked after every token: True ends all samples where they are, with finish "interrupted"

    Every distinct prompt is run through the model once per call and its cache is given to all its samples. A sample
    with a name (`Request.keep`) leaves its cache behind: when the name comes back with a prompt that begins with the
    tokens of its context and action, only the rest goes through (and the action's last token, which was drawn and not
    yet read). A new `policy_version` drops everything that was kept, and so does a write to the parameters that torch
    counts (fused optimisers go uncounted: change the version).

    The tokens of a sample depend on the parameters, its prompt and its stream key; what else is in the batch, and what
    was kept, can change them only through rounding of the logits.

    Counted since the engine was made:
    prefilled_tokens  prompt tokens that went through the model, without padding
    reused_tokens     prompt tokens that did not because they were kept
    dropped           kept caches given up because `keep_tokens` was full
    mismatched        kept caches whose name came back with a prompt that does not begin with them, or under another
                      policy
    unkept            named samples of a model whose cache can't be kept (sliding windows, growing rotary embeddings)
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        device: str | torch.device = "cpu",
        batch_rows: int = 256,
        stop_ids: Sequence[int] | None = None,
        keep_tokens: int = 1 << 17,
        prefill_tokens: int = 1 << 14,
        acting: Callable[[str], AbstractContextManager[None]] | None = None,
        kernels: Kernels = "auto",
        products: Products = "auto",
    ) -> None:
        self._acting = acting or _alone
        for name, value, least in (
            ("batch_rows", batch_rows, 1),
            ("prefill_tokens", prefill_tokens, 1),
            ("keep_tokens", keep_tokens, 0),
        ):
            if value < least:
                raise ModelError(f"{name} is {value}; it must be at least {least}")
        self.network = Network(model, torch.device(device), kernels=kernels, products=products)
        self.model, self.tokenizer, self.device = self.network.model, tokenizer, self.network.device
        self.batch_rows, self.prefill_tokens = batch_rows, prefill_tokens
        self.prefilled_tokens = self.reused_tokens = self.unkept = 0
        self._kept = KeptCaches(keep_tokens)
        self._stepper: Stepper | None = None
        self._parameters = writes(self.model)  # with which the kept caches were computed
        self._policy_version = 0
        self.interrupted: Callable[[], bool] | None = None
        self.stop_ids = tuple(stop_ids) if stop_ids is not None else self.network.end_ids(tokenizer)
        self._stopping: dict[tuple[Any, ...], Stopping] = {}

    # ------------------------------------------------------------ caches
    @property
    def policy_version(self) -> int:
        return self._policy_version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        if version != self._policy_version:
            self.release()
        self._policy_version = version

    @property
    def kept_tokens(self) -> int:
        """Number of tokens in the prefix caches."""
        return self._kept.tokens

    @property
    def dropped(self) -> int:
        return self._kept.dropped

    @property
    def mismatched(self) -> int:
        return self._kept.mismatched

    def release(self, names: Sequence[str] | None = None) -> None:
        """Drop the caches under these names (None: all); unknown names are ignored."""
        self._kept.release(names)
        self._tidy()

    def move_to(self, model: Any, acting: Callable[[str], AbstractContextManager[None]]) -> None:
        """Sample from this copy of the model from now on, one that is not being trained."""
        self.release()
        decoder = self.network.decoder
        kernels: Kernels = "transformers" if decoder is None else "auto"
        products: Products = "auto" if decoder is None else decoder.products
        self.network = Network(model, self.device, kernels=kernels, products=products)
        self.model, self._acting, self._parameters = model, acting, writes(model)

    # ------------------------------------------------------------ the dtype of products
    def use_products(self, products: Products) -> None:
        """Set the dtype of matrix products; all caches are dropped."""
        self.release()
        if self.network.decoder is not None:
            self.network.decoder.products = products

    def products_trial(self, rows: int) -> Trial | None:
        """Measure which dtype is faster for sampling so many rows together; None: there is no choice."""
        decoder, head = self.network.decoder, self.network.causal.get_output_embeddings()
        if decoder is None:
            return None
        return measure.products(decoder, head, min(rows, self.batch_rows), update=False)

    # ------------------------------------------------------------ sampling
    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        """Sample one completion for every stream of every request, in order."""
        self._check(requests, sampling)
        rows = [
            _Row(
                request.prompt,
                key,
                (i, j),
                request.keep[j] if request.keep and self._kept.limit else None,
                request.policy,
            )
            for i, request in enumerate(requests)
            for j, key in enumerate(request.streams)
        ]
        done: dict[tuple[int, int], Completion] = {}
        remedy = (
            f"sampling.batch_rows ({self.batch_rows} samples are decoded together), tasks.per_step, "
            "rollout.group_size or sampling.max_new_tokens"
        )
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad(), memory_is_short("sampling", remedy):
                self._prepare(rows)
                for policy in dict.fromkeys(row.policy for row in rows):
                    with self._acting(policy):
                        for block in self._blocks([row for row in rows if row.policy == policy]):
                            done.update(self._block(block, sampling))
        finally:
            self.model.train(was_training)
            self._tidy()
        return [[done[i, j] for j in range(len(request.streams))] for i, request in enumerate(requests)]

    def _tidy(self) -> None:
        """Weights laid out for sampling are kept as long as an episode is in progress."""
        if not self._kept.tokens:
            self._stepper = None

    def _prepare(self, rows: Sequence[_Row]) -> None:
        """Drop caches of other parameters; of the rest, those that this call can use are evicted last."""
        version = writes(self.model)
        if version != self._parameters:
            self.release()
            self._parameters = version
        self._kept.use(row.name for row in rows if row.name is not None)

    def _block(self, rows: list[_Row], sampling: Sampling) -> Iterator[tuple[tuple[int, int], Completion]]:
        """Samples of a few prompts: one prefill, then decoding in batches."""
        contexts = self._contexts(rows)
        number = {context.prompt: i for i, context in enumerate(contexts)}
        rows = sorted(rows, key=lambda row: number[row.prompt])
        batches = [rows[start : start + self.batch_rows] for start in range(0, len(rows), self.batch_rows)]
        owners = [torch.tensor([number[row.prompt] for row in batch], device=self.device) for batch in batches]
        self.prefilled_tokens += sum(len(c.new) for c in contexts)
        self.reused_tokens += sum(c.known for c in contexts)
        states = self._states(contexts, owners, sampling.max_new_tokens)
        del contexts  # what was kept lies in the new cache now
        for batch, state in zip(batches, states, strict=True):
            yield from zip((row.place for row in batch), self._decode(batch, state, sampling), strict=True)

    def _states(self, contexts: list[Context], owners: Sequence[torch.Tensor], room: int) -> Iterator[Batch]:
        """Batches after their prompts; `owners`: the prompt of each of their samples."""
        network = self.network
        if network.decoder is not None:
            if any(c.known for c in contexts):
                after = prefill(network, contexts, 0, self.prefill_tokens)
                layers = [(x.keys, x.values) for x in after.cache.layers]
                logits, prompts = after.logits, Prompts(layers, after.mask, after.after())
            else:
                logits, prompts = prefill_flat(network.decoder, contexts, self.prefill_tokens, self.device)
            contexts.clear()
            stepper = self._stepper = self._stepper or Stepper(network.decoder)
            for owner in owners:
                yield Branches.of(stepper, prompts, owner, logits, room)
            return
        single = len(owners) == 1 and owners[0].numel() == len(contexts) and network.layout is not None
        state = prefill(network, contexts, room if single else 0, self.prefill_tokens)
        contexts.clear()
        for owner in owners:
            yield state if single else state.spread(owner, room)

    def _contexts(self, rows: Sequence[_Row]) -> list[Context]:
        """The distinct prompts by number of new tokens, each with the longest cache kept for one of its rows."""
        found: dict[tuple[int, ...], Context] = {row.prompt: Context(row.prompt) for row in rows}
        for row in rows:
            kept = None if row.name is None else self._kept.take(row.name, row.prompt, row.policy)
            if kept is not None and len(kept.tokens) > found[row.prompt].known:
                found[row.prompt] = Context(row.prompt, kept)
        return sorted(found.values(), key=lambda context: (len(context.new), len(context.prompt)))

    def _decode(self, rows: Sequence[_Row], state: Batch, sampling: Sampling) -> list[Completion]:
        keepable = self.network.layout is not None
        self.unkept += 0 if keepable else sum(row.name is not None for row in rows)

        def leave(sample: int, row: int, state: Batch, action: list[int]) -> None:
            """The last token of an action never went through the model: its cache ends before it."""
            name, prompt, policy = rows[sample].name, rows[sample].prompt, rows[sample].policy
            if name is None or not keepable:
                return
            tokens = (*prompt, *action[:-1])
            self._kept.put(name, Kept(tokens, state.columns(row, len(prompt), len(tokens)), policy))

        stopping = self._stopping_for(sampling, state.logits.shape[1])
        if isinstance(sampling, SoftSampling):
            return self._soften(rows, state, sampling, stopping)
        streams = uniforms([row.key for row in rows], sampling.max_new_tokens)
        found = decode(state, streams, sampling, stopping, leave, self.interrupted)
        return found.completions(self.policy_version)

    def _soften(
        self, rows: Sequence[_Row], state: Batch, sampling: SoftSampling, stopping: Stopping
    ) -> list[Completion]:
        """Soft samples are not cached: no tokens could name what their caches hold."""
        longest, wide = sampling.max_new_tokens, 1 + sampling.soft_top_k
        streams = uniforms([row.key for row in rows], longest * wide).reshape(len(rows), longest, wide)
        closed = self._stopping_for(replace(sampling, stop=(sampling.closing,)), state.logits.shape[1])
        embedding = self.network.causal.get_input_embeddings()
        return soft_decode(state, streams, sampling, stopping, closed, embedding, self.policy_version)

    def _blocks(self, rows: Sequence[_Row]) -> Iterator[list[_Row]]:
        """Rows in blocks of whole prompts of similar length: at most `batch_rows`, unless one prompt alone has more.

        Where a block's prompts must go through the model in one pass, their tokens are limited too.
        """
        limit = self.prefill_tokens if rows and self.network.layout is None else math.inf
        by_prompt: dict[tuple[int, ...], list[_Row]] = {}
        for row in rows:
            by_prompt.setdefault(row.prompt, []).append(row)
        block: list[_Row] = []
        prompts = 0
        for prompt in sorted(by_prompt, key=len):
            too_many = len(block) + len(by_prompt[prompt]) > self.batch_rows
            if block and (too_many or (prompts + 1) * len(prompt) > limit):
                yield block
                block, prompts = [], 0
            block, prompts = block + by_prompt[prompt], prompts + 1
        if block:
            yield block

    # ------------------------------------------------------------ settings
    def _stopping_for(self, sampling: Sampling, vocabulary: int) -> Stopping:
        ids = (*self.stop_ids, *sampling.stop_ids)
        key = (sampling.stop, ids, vocabulary)
        if key not in self._stopping:
            if len(self._stopping) >= STOPPINGS:
                del self._stopping[next(iter(self._stopping))]
            self._stopping[key] = Stopping(ids, sampling.stop, self.tokenizer, vocabulary)
        return self._stopping[key]

    def _check(self, requests: Sequence[Request], sampling: Sampling) -> None:
        if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0 or sampling.max_new_tokens < 1:
            raise ModelError(
                f"{sampling} is impossible: temperature and top_k must be >= 0, 0 < top_p <= 1, max_new_tokens >= 1"
            )
        names: set[str] = set()
        for request in requests:
            if not request.prompt:
                raise ModelError("a request has an empty prompt: the model needs at least one token, such as its bos")
            if request.extras or min(request.prompt) < 0:
                raise ModelError(
                    "a request has steps that are no vocabulary ids, which a language model can't go on from"
                )
            if max(request.prompt) >= FIRST and not self.network.sees:
                raise ModelError(f"a request shows a picture, and {self.network.name} reads texts alone")
            limit = self.network.positions
            if limit and len(request.prompt) + sampling.max_new_tokens > limit:
                raise ModelError(
                    f"a prompt of {len(request.prompt)} tokens and max_new_tokens {sampling.max_new_tokens} exceed the "
                    f"{limit} positions of {self.network.name}{self.network.limited_by}: lower max_new_tokens or "
                    "shorten the prompt"
                )
            if request.keep and len(request.keep) != len(request.streams):
                raise ModelError(
                    f"a request names {len(request.keep)} samples to keep and has {len(request.streams)} streams: "
                    "give a name for each, or none"
                )
            for name in request.keep:
                if name in names:
                    raise ModelError(f"two samples of one call are to be kept as {name!r}: give each its own name")
                names.add(name)


@dataclass(frozen=True)
class _Row:
    """One sample to draw: its place in the answer (request, stream), its cache's name, its policy."""

    prompt: tuple[int, ...]
    key: StreamKey
    place: tuple[int, int]
    name: str | None
    policy: str


def _alone(policy: str) -> AbstractContextManager[None]:
    if policy != "main":
        raise ModelError(f"a request is for policy {policy!r}, and the engine knows one policy, 'main'")
    return nullcontext()
