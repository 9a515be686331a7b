"""In-process sampling from any transformers causal language model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from gxpo.base.errors import ModelError
from gxpo.base.media import FIRST
from gxpo.base.runtime import memory_is_short
from gxpo.models.decoder import measure
from gxpo.models.decoder.forward import Kernels, Products
from gxpo.models.decoder.measure import Trial
from gxpo.models.decoder.sampling import Branches, Prompts, Stepper
from gxpo.parts.protocols import Completion, Request, Sampling, SoftSampling, StreamKey
from gxpo.sampling.engines.decode import (
    Batch,
    Context,
    Kept,
    KeptCaches,
    Stopping,
    decode,
    prefill_flat,
    uniforms,
    writes,
)
from gxpo.sampling.engines.network import Network, prefill
from gxpo.sampling.engines.soft import soft_decode

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
