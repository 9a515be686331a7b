"""In-process sampling from any transformers causal language model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch

from gxpo.base.devices import drawing_device
from gxpo.base.errors import ModelError
from gxpo.base.media import FIRST
from gxpo.base.runtime import memory_is_short
from gxpo.models.decoder import measure
from gxpo.models.decoder.choices import Sizes, Trial
from gxpo.models.decoder.forward import Kernels, Products
from gxpo.models.decoder.sampling import Branches, Prompts, Stepper
from gxpo.parts.protocols import Completion, Request, Sampling, SoftSampling, StreamKey, TokenOptions
from gxpo.sampling.engines.decode import (
    Batch,
    CachedPrefix,
    Context,
    PrefixCaches,
    decode,
    parameter_version,
    prefill_flat,
)
from gxpo.sampling.engines.draws import uniforms
from gxpo.sampling.engines.grammar import Grammars
from gxpo.sampling.engines.network import Network, prefill
from gxpo.sampling.engines.optional_draws import OptionalDraws
from gxpo.sampling.engines.soft import soft_decode
from gxpo.sampling.engines.stopping import Stopping

# ---------------------------------------------------------------- torch
STOPPINGS = 64  # sets of stop conditions in the cache, each a flag for every token of the vocabulary


class TorchEngine:
    """Batched sampling with keyed uniforms, exact log-probabilities and stored support.

    model           a causal language model of transformers, or one wrapped by peft; set to eval mode
    tokenizer       needed for stop strings and for the end-of-sequence id; None: stop ids only
    batch_rows      samples that are decoded together
    stop_ids        end-of-sequence ids; default: those of the tokenizer and of the model's generation settings
    keep_tokens     limit on the tokens whose keys and values are cached for later turns; 0: nothing is cached
    prefill_tokens  prompt tokens, padding included, that go through the model in one forward pass
    acting          context manager that makes the model the policy of a request; None: there is one policy, "main"
    kernels, products, choices  as of the learner (`gxpo.learning.torch.TorchLearner`)
    policy_version  stamped on every completion; the trainer counts it up
    interrupted     called whenever tokens are read: True ends all samples where they are, with finish "interrupted"
    likeliest       ids of each token's distribution that completions record (`LIKELIEST`); 0: none

    Every distinct prompt is run through the model once per call; all its samples share the cache. A sample with a name
    (`Request.keep`) leaves its cache behind: when the name comes back with a prompt that begins with the tokens of its
    context and action, only the new tokens are prefilled (and the action's last token, which was sampled but never
    read). A new `policy_version` drops all caches, and so does a write to the parameters that torch counts (fused
    optimisers go uncounted: change the version).

    The tokens of a sample depend on the parameters, its prompt and its stream key; the rest of the batch and the caches
    can change them only through rounding of the logits.

    Counted since the engine was made:
    prefilled_tokens  prompt tokens that went through the model, without padding
    reused_tokens     prompt tokens taken from caches instead
    n_dropped         caches evicted because `keep_tokens` was full
    n_mismatched      caches whose name came back with a prompt that does not begin with them, or under another policy
    unkept            named samples of a model whose cache can't be kept (sliding windows, growing rotary embeddings)
    """

    takes_options: ClassVar[bool] = True

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
        choices: Mapping[str, str] | None = None,
    ) -> None:
        self._acting = acting or _single_policy
        for name, value, minimum in (
            ("batch_rows", batch_rows, 1),
            ("prefill_tokens", prefill_tokens, 1),
            ("keep_tokens", keep_tokens, 0),
        ):
            if value < minimum:
                raise ModelError(f"{name} is {value}; it must be at least {minimum}")
        self.network = Network(model, torch.device(device), kernels=kernels, products=products, choices=choices)
        self.model, self.tokenizer, self.device = self.network.model, tokenizer, self.network.device
        self.batch_rows, self.prefill_tokens = batch_rows, prefill_tokens
        self.prefilled_tokens = self.reused_tokens = self.unkept = 0
        # Both caches are valid for one version of the parameters and are dropped together, by `release`.
        self._prefixes = PrefixCaches(keep_tokens)
        self._stepper: Stepper | None = None
        self._parameter_version = parameter_version(self.model)  # the one that the prefix caches were computed with
        self._policy_version = 0
        self.should_interrupt: Callable[[], bool] | None = None
        self.likeliest = 0
        self.stop_ids = tuple(stop_ids) if stop_ids is not None else self.network.end_ids(tokenizer)
        self._stopping: dict[tuple[Any, ...], Stopping] = {}
        self._grammars: dict[tuple[Any, ...], Grammars] = {}

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
        return self._prefixes.tokens

    @property
    def n_dropped(self) -> int:
        return self._prefixes.n_dropped

    @property
    def n_mismatched(self) -> int:
        return self._prefixes.n_mismatched

    def release(self, names: Sequence[str] | None = None) -> None:
        """Drop the caches under these names (None: all); unknown names are ignored."""
        self._prefixes.release(names)
        self._free_stepper()

    def move_to(self, model: Any, acting: Callable[[str], AbstractContextManager[None]]) -> None:
        """Sample from now on from this copy of the model, which is not being trained."""
        self.release()
        decoder = self.network.decoder
        kernels: Kernels = "transformers" if decoder is None else "auto"
        options = {} if decoder is None else {"products": decoder.products, "choices": decoder.choices}
        self.network = Network(model, self.device, kernels=kernels, **options)
        self.model, self._acting, self._parameter_version = model, acting, parameter_version(model)

    # ------------------------------------------------------------ choices between kernels
    def use(self, choices: Mapping[str, str]) -> None:
        """Sample with these kernels (`models.decoder.choices`), and drop all caches."""
        self.release()
        if (decoder := self.network.decoder) is not None:
            decoder.choices = {**decoder.choices, **choices}
            decoder.products = cast("Products", choices.get("sampling products", decoder.products))

    def trials(self, sizes: Sizes, choices: Mapping[str, str]) -> Iterator[tuple[str, Trial]]:
        """Time the kernels that sampling chooses between, with a step of these sizes, where `choices` has none."""
        decoder, head = self.network.decoder, self.network.causal.get_output_embeddings()
        if decoder is not None:
            yield from measure.sampling_trials(decoder, head, min(sizes.samples, self.batch_rows), sizes, choices)

    # ------------------------------------------------------------ sampling
    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        """Sample one completion for every stream of every request, in order."""
        self._check_requests(requests, sampling)
        # One row per stream; its index finds its place in the result again, since blocks reorder rows by prompt.
        rows = [
            _Row(
                request.prompt,
                key,
                (i, j),
                request.keep[j] if request.keep and self._prefixes.limit else None,
                request.policy,
                request.options,
            )
            for i, request in enumerate(requests)
            for j, key in enumerate(request.streams)
        ]
        completions: dict[tuple[int, int], Completion] = {}
        remedy = (
            f"sampling.batch_rows ({self.batch_rows} samples are decoded together), tasks.per_step, "
            "rollout.group_size or sampling.max_new_tokens"
        )
        # Dropout would make log-probs random; the learner's mode comes back whatever happens.
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad(), memory_is_short("sampling", remedy):
                self._drop_stale_caches(rows)
                # Policies are adapters of one model, so each has forward passes of its own.
                for policy in dict.fromkeys(row.policy for row in rows):
                    with self._acting(policy):
                        # Rows with options are apart: others are sampled as if there were none.
                        for has_options in (False, True):
                            alike = [r for r in rows if r.policy == policy and (r.options is not None) == has_options]
                            for block in self._split_blocks(alike):
                                completions.update(self._sample_block(block, sampling))
        finally:
            self.model.train(was_training)
            self._free_stepper()
        return [[completions[i, j] for j in range(len(request.streams))] for i, request in enumerate(requests)]

    def _free_stepper(self) -> None:
        """Free the weights laid out for sampling unless an episode is in progress."""
        if not self._prefixes.tokens:
            self._stepper = None

    def _drop_stale_caches(self, rows: Sequence[_Row]) -> None:
        """Drop caches computed with other parameters, and mark those that this call can use as most recent."""
        version = parameter_version(self.model)
        if version != self._parameter_version:
            self.release()
            self._parameter_version = version
        self._prefixes.use(row.name for row in rows if row.name is not None)

    def _sample_block(self, rows: list[_Row], sampling: Sampling) -> Iterator[tuple[tuple[int, int], Completion]]:
        """Sample a few prompts: one prefill of all, then decoding in batches."""
        contexts = self._contexts(rows)
        context_index = {context.prompt: i for i, context in enumerate(contexts)}
        rows = sorted(rows, key=lambda row: context_index[row.prompt])
        batches = [rows[start : start + self.batch_rows] for start in range(0, len(rows), self.batch_rows)]
        owners = [torch.tensor([context_index[row.prompt] for row in batch], device=self.device) for batch in batches]
        self.prefilled_tokens += sum(len(c.new_tokens) for c in contexts)
        self.reused_tokens += sum(c.cached_length for c in contexts)
        states = self._prefilled_batches(contexts, owners, sampling.max_new_tokens)
        del contexts  # frees the prefix caches: their keys and values have been copied to the new one
        for batch, state in zip(batches, states, strict=True):
            yield from zip((row.place for row in batch), self._decode_batch(batch, state, sampling), strict=True)

    def _prefilled_batches(self, contexts: list[Context], owners: Sequence[torch.Tensor], room: int) -> Iterator[Batch]:
        """Yield the decoding state of each batch after prefill; `owners`: the prompt index of each of its samples."""
        network = self.network
        if network.decoder is not None:
            # The flat prefill packs prompts without padding, but it can't start behind cached tokens.
            if any(c.cached_length for c in contexts):
                state = prefill(network, contexts, 0, self.prefill_tokens)
                layers = [(x.keys, x.values) for x in state.cache.layers]
                logits, prompts = state.logits, Prompts(layers, state.mask, state.next_positions())
            else:
                logits, prompts = prefill_flat(network.decoder, contexts, self.prefill_tokens, self.device)
            contexts.clear()
            rows = max(owner.numel() for owner in owners)
            stepper = self._stepper = self._stepper or Stepper(network.decoder, rows)
            for owner in owners:
                yield Branches.of(stepper, prompts, owner, logits, room)
            return
        # With one sample for each prompt the prefilled cache is decoded in place, which saves a copy of it.
        one_sample_each = len(owners) == 1 and owners[0].numel() == len(contexts) and network.layout is not None
        state = prefill(network, contexts, room if one_sample_each else 0, self.prefill_tokens)
        contexts.clear()
        for owner in owners:
            yield state if one_sample_each else state.spread(owner, room)

    def _contexts(self, rows: Sequence[_Row]) -> list[Context]:
        """Return the distinct prompts by number of new tokens, each with the longest cache of one of its rows."""
        contexts: dict[tuple[int, ...], Context] = {row.prompt: Context(row.prompt) for row in rows}
        for row in rows:
            prefix = None if row.name is None else self._prefixes.take(row.name, row.prompt, row.policy)
            if prefix is not None and len(prefix.tokens) > contexts[row.prompt].cached_length:
                contexts[row.prompt] = Context(row.prompt, prefix)
        return sorted(contexts.values(), key=lambda context: (len(context.new_tokens), len(context.prompt)))

    def _decode_batch(self, rows: Sequence[_Row], state: Batch, sampling: Sampling) -> list[Completion]:
        cacheable = self.network.layout is not None
        self.unkept += 0 if cacheable else sum(row.name is not None for row in rows)

        def leave(sample: int, row: int, state: Batch, action: list[int]) -> None:
            """Store a finished sample's cache, which ends before its last token: that one was never read."""
            name, prompt, policy = rows[sample].name, rows[sample].prompt, rows[sample].policy
            if name is None or not cacheable:
                return
            tokens = (*prompt, *action[:-1])
            self._prefixes.put(name, CachedPrefix(tokens, state.columns(row, len(prompt), len(tokens)), policy))

        stopping = self._stopping_for(sampling, state.logits.shape[1])
        if isinstance(sampling, SoftSampling):
            return self._decode_soft_batch(rows, state, sampling, stopping)
        streams = uniforms([row.key for row in rows], sampling.max_new_tokens)
        row_draws = self._row_draws(rows, state, sampling)
        actions = decode(state, streams, sampling, stopping, leave, self.should_interrupt, self.likeliest, row_draws)
        completions = actions.completions(self.policy_version)
        return completions if row_draws is None else [row_draws.with_changes(i, c) for i, c in enumerate(completions)]

    def _row_draws(self, rows: Sequence[_Row], state: Batch, sampling: Sampling) -> OptionalDraws | None:
        """Draws under the options of these rows; None: they have none."""
        options = [row.options for row in rows if row.options is not None]
        if not options:
            return None
        stop_ids, logits = (*self.stop_ids, *sampling.stop_ids), state.logits.to(drawing_device(state.logits.device))
        has_grammar = any(o.grammar is not None for o in options)
        grammars = self._grammars_for(stop_ids, logits.shape[1]) if has_grammar else None
        return OptionalDraws(options, [row.prompt for row in rows], sampling, stop_ids, logits, grammars)

    def check_options(self, options: TokenOptions, sampling: Sampling) -> None:
        """Raise ModelError for options that requests under these settings can't have."""
        if self.likeliest:
            raise ModelError("the run records the distribution of each token, which options of a call would change")
        if options.grammar is not None:
            vocabulary = int(self.network.causal.get_output_embeddings().weight.shape[0])
            self._grammars_for((*self.stop_ids, *sampling.stop_ids), vocabulary).matcher(options.grammar)

    def _grammars_for(self, stop_ids: tuple[int, ...], vocabulary: int) -> Grammars:
        """Grammars of these end ids; the tokenizer's texts are read once for each set of them."""
        key = (stop_ids, vocabulary)
        if key not in self._grammars:
            self._grammars[key] = Grammars(self.tokenizer, vocabulary, stop_ids)
        return self._grammars[key]

    def _decode_soft_batch(
        self, rows: Sequence[_Row], state: Batch, sampling: SoftSampling, stopping: Stopping
    ) -> list[Completion]:
        """Decode soft samples, without caching them: no token ids could identify mixtures in a prompt."""
        longest, width = sampling.max_new_tokens, 1 + sampling.soft_top_k
        streams = uniforms([row.key for row in rows], longest * width).reshape(len(rows), longest, width)
        thinking_end = self._stopping_for(replace(sampling, stop=(sampling.end_text,)), state.logits.shape[1])
        embedding = self.network.causal.get_input_embeddings()
        return soft_decode(state, streams, sampling, stopping, thinking_end, embedding, self.policy_version)

    def _split_blocks(self, rows: Sequence[_Row]) -> Iterator[list[_Row]]:
        """Split rows into blocks of whole prompts of similar length: at most `batch_rows`, or one prompt.

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
        """Stop conditions of these settings, from the cache where possible."""
        ids = (*self.stop_ids, *sampling.stop_ids)
        # Building the flags looks at the text of every token, and evaluation and training alternate between settings.
        key = (sampling.stop, ids, vocabulary)
        if key not in self._stopping:
            if len(self._stopping) >= STOPPINGS:
                del self._stopping[next(iter(self._stopping))]
            self._stopping[key] = Stopping(ids, sampling.stop, self.tokenizer, vocabulary)
        return self._stopping[key]

    def _check_requests(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Raise ModelError for settings or requests that this model can't sample."""
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
            if request.options is not None and isinstance(sampling, SoftSampling):
                raise ModelError("soft thinking takes no options of a request: leave them out")
            if max(request.prompt) >= FIRST and not self.network.has_vision:
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
            # Of two samples under one name the second cache would replace the first.
            for name in request.keep:
                if name in names:
                    raise ModelError(f"two samples of one call are to be kept as {name!r}: give each its own name")
                names.add(name)


@dataclass(frozen=True)
class _Row:
    """One sample to draw: its place in the result (request, stream), its cache's name, its policy."""

    prompt: tuple[int, ...]
    key: StreamKey
    place: tuple[int, int]
    name: str | None
    policy: str
    options: TokenOptions | None = None


def _single_policy(policy: str) -> AbstractContextManager[None]:
    """Accept requests for the policy "main" alone."""
    if policy != "main":
        raise ModelError(f"a request is for policy {policy!r}, and the engine knows one policy, 'main'")
    return nullcontext()
