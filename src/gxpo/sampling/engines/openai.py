"""Sampling from OpenAI-compatible servers that take token ids and return token ids and log-probs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from gxpo.base.errors import ModelError
from gxpo.parts.protocols import Completion, Request, Sampling
from gxpo.sampling.engines.openai_reply import SLACK, SURE, Reply, completion, longest
from gxpo.sampling.engines.pool import Job, SamplerPool
from gxpo.sampling.engines.publish import WeightFiles
from gxpo.sampling.engines.remote_requests import check, seed_of
from gxpo.sampling.engines.replica import Replica
from gxpo.sampling.engines.vllm import DISAGREE

PROBE = Sampling(max_new_tokens=4, top_k=1)
READ = Sampling(max_new_tokens=24)  # what both sides read once a server has the learner's weights


class OpenAIEngine:
    """Engine for servers such as `vllm serve MODEL --logprobs-mode processed_logprobs`.

    servers     their addresses, as http://localhost:8000/v1; one may stand as a text
    model       as the servers call it; None: the only one that they have
    tokenizer   for the end-of-sequence id
    stop_ids    end-of-sequence ids; default: the tokenizer's
    vocabulary  how many tokens the policy knows; None: unknown
    policy      the name of the one policy that samples
    version     says which version of the policy the servers hold, if somebody else updates them; asked before and after
                each call, which fails if the two differ
    learner     the learner's model, whose weights are published to the servers through the folder `weights`
    weights     a folder that servers and learner see by the same path; None: nothing is published
    stale       sample on although the policy has moved and the servers' weights have not
    batch_rows  requests that are under way at once at each server
    key_from, timeout, retries, min_replicas, patience, publish_timeout  of `gxpo.sampling.engines.pool.SamplerPool`
    notify      called with a line where servers are missing at the start

    A server that is busy, slow or gone costs time: its requests go to others, with the same seeds. A request that no
    server answers, or whose answers break the protocol everywhere, is a `ModelError`: a group without one of its
    samples would be another group.

    With `weights` a sample is preceded by a publication if `policy_version` changed or torch counted a write to the
    model since the last one; each server acknowledges the publication and its checksums, and no other server is asked.
    What it acknowledged is compared again after every call, so that what a restarted server said is asked for again.
    Without, the servers hold version 0 for good, or what `version` says, and samples for a later `policy_version` are
    refused, unless `stale`: they keep the stamp 0, so the step's metrics tell how old they are.

    Before a server's first sample a prompt shows what it is: one that answers in text alone is refused (text that is
    tokenised again may be other tokens than were sampled), and one whose log-probs are those before temperature and
    top-k is refused for every sampling in which the two differ. Every stream is a request with a seed of its own
    (`seed_of`); whether the same seed gives the same tokens is the server's business.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        model: str | None = None,
        tokenizer: Any = None,
        stop_ids: Sequence[int] | None = None,
        vocabulary: int | None = None,
        policy: str = "main",
        version: Callable[[], int] | None = None,
        learner: Any = None,
        weights: str | None = None,
        stale: bool = False,
        batch_rows: int = 256,
        key_from: str | None = None,
        timeout: float = 600.0,
        retries: int = 3,
        min_replicas: int = 1,
        patience: float = 300.0,
        publish_timeout: float = 120.0,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.pool = SamplerPool(
            [servers] if isinstance(servers, str) else servers,
            key_from=key_from,
            at_once=batch_rows,
            timeout=timeout,
            retries=retries,
            min_replicas=min_replicas,
            patience=patience,
            publish_timeout=publish_timeout,
            probe=self._probe,
        )
        end = getattr(tokenizer, "eos_token_id", None)
        self.stop_ids = tuple(stop_ids) if stop_ids is not None else (() if end is None else (end,))
        self.policy, self._vocabulary = policy, vocabulary
        self._version, self._stale = version, stale
        self.policy_version = 0
        self.prefilled_tokens = self.reused_tokens = 0
        self.publish_seconds = 0.0
        self._prompt: Sequence[int] = ()
        self._files: WeightFiles | None = None
        self._sent: tuple[int, int] | None = None  # version and count of writes of what was published
        self._sending = threading.Lock()
        self.positions = self.pool.start(model)
        for why in self.pool.down:
            notify(f"sampling without a server for now: {why}")
        if weights is not None:
            self._files = WeightFiles(learner, weights)

    # ------------------------------------------------------------ what a server is
    @property
    def servers(self) -> str:
        """The addresses, as errors name them."""
        return ", ".join(r.url for r in self.pool.replicas)

    async def _probe(self, replica: Replica) -> None:
        """Request tokens that are certain: the response shows how the server answers."""
        found = await self._ask(replica, self._prompt, PROBE, replace(PROBE, top_k=0))  # what was possible is known
        replica.processed = all(x > -SURE for x in found.logprobs)
        if self._files is not None:
            await self._compare(replica)

    async def _compare(self, replica: Replica) -> None:
        """Check that the server computes what the learner does from the same weights."""
        files, sent = self._files, self._sent
        assert files is not None
        found = await self._ask(replica, self._prompt, READ, READ)
        if sent is None or files.writes() != sent[1]:
            return  # the learner has moved on
        gap, allowed = await asyncio.to_thread(_gap, files.model, self._prompt, found)
        if not gap <= allowed:
            raise ValueError(
                f"computes something else from the learner's weights: log-probs of the same tokens differ by {gap:.1%}."
                " Serve the model that is trained, in its dtype"
            )

    async def _ask(self, replica: Replica, prompt: Sequence[int], asked: Sampling, s: Sampling) -> Completion:
        body = {"model": self.pool.model, **self._body(prompt, 0, asked)}
        said = await replica.line.once("POST", "/completions", body, Reply, longest(len(prompt), asked))
        return self._read(said, prompt, s, 0)

    def _read(self, said: Reply, prompt: Sequence[int], s: Sampling, version: int) -> Completion:
        ends = {*self.stop_ids, *s.stop_ids}
        return completion(said, prompt, s, ends=ends, vocabulary=self._vocabulary, version=version)

    # ------------------------------------------------------------ weights
    @property
    def publishes(self) -> bool:
        """Whether the servers are given the learner's weights."""
        return self._files is not None

    def move_to(self, model: Any) -> None:
        """Publish the weights of this copy of the model from now on, one that is not being trained."""
        if self._files is not None:
            self._files.model, self._sent = model, None

    def publish(self) -> None:
        """Give the servers the learner's weights, if they have others; `SamplersLost` where too few take them."""
        files = self._files
        if files is None:
            return
        with self._sending:
            wanted = (self.policy_version, files.writes())
            if wanted == self._sent:
                return
            began = time.perf_counter()
            self._sent, made = None, files.write(self.policy_version)
            self.pool.publish(made)
            files.keep_only(made)
            self._sent = wanted
            self.publish_seconds += time.perf_counter() - began

    def _held(self) -> int | None:
        """The version that the servers have; None: they acknowledge one each."""
        if self._files is not None:
            return None
        if self._version is not None:
            return self._version()
        if self.policy_version != 0 and not self._stale:
            raise ModelError(
                f"the policy is at version {self.policy_version}, and nobody updates the weights of {self.servers}: "
                "publish them with sampling.engine_options={weights: FOLDER}, train with sampling.engine=vllm or "
                "torch, or say sampling.engine_options={stale: true}"
            )
        return 0

    # ------------------------------------------------------------ sampling
    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        """Sample one completion for every stream of every request, in order; callable from several threads."""
        place = f"max_model_len of {self.servers}"
        check(requests, sampling, policy=self.policy, positions=self.positions, limit=place)
        rows = [(r.prompt, key, r.keep[i] if r.keep else None) for r in requests for i, key in enumerate(r.streams)]
        if not rows:
            return [[] for _ in requests]
        self._prompt = self._prompt or rows[0][0]
        self.publish()
        version = self._held()
        done = self._draw(rows, sampling, version)
        if version is not None and self._held() != version:
            raise ModelError(f"{self.servers} was given other weights while it sampled: update it between steps")
        cached = sum(part for _, part in done)
        self.prefilled_tokens += sum(len(prompt) for prompt, _, _ in rows) - cached
        self.reused_tokens += cached
        found = iter(completion for completion, _ in done)
        return [[next(found) for _ in r.streams] for r in requests]

    def _draw(
        self, rows: Sequence[tuple[Sequence[int], Any, str | None]], s: Sampling, version: int | None
    ) -> list[tuple[Completion, int]]:
        """A sample for each prompt and stream, with its cached prompt tokens."""

        def read(row: int, said: Reply, published: int) -> tuple[Completion, int]:
            return self._read(said, rows[row][0], s, published if version is None else version), said.cached

        processed = s.temperature != 0 and (s.truncated_support or s.temperature != 1)
        jobs = [
            Job(
                self._body(prompt, seed_of(key), s),
                len(prompt) + s.max_new_tokens,
                longest(len(prompt), s),
                home,
                processed,
            )
            for prompt, key, home in rows
        ]
        return self.pool.complete(jobs, read)

    def _body(self, prompt: Sequence[int], seed: int, s: Sampling) -> dict[str, Any]:
        return {
            "prompt": list(prompt),
            "max_tokens": s.max_new_tokens,
            "temperature": s.temperature,
            "top_p": s.top_p,
            "seed": seed,
            "logprobs": s.top_k + SLACK if s.truncated_support else 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "ignore_eos": True,  # the ids below end an action, and nothing else
            "stop_token_ids": [*self.stop_ids, *s.stop_ids],
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            **({"top_k": s.top_k} if s.top_k else {}),
            **({"stop": list(s.stop)} if s.stop else {}),
        }

    def release(self, names: Sequence[str] | None = None) -> None:
        """Episodes of these names need no server of their own any more; the servers keep no caches by name."""
        self.pool.forget(names)

    def figures(self) -> dict[str, float]:
        """What has been counted since the engine was made, by the names of the metrics."""
        return {
            "sampler_failures": self.pool.failures,
            "time_publish_s": self.publish_seconds,
            "time_wait_servers_s": self.pool.waited,
        }

    def close(self) -> None:
        """Close the connections and remove published files; the servers keep running."""
        self.pool.close()
        if self._files is not None:
            self._files.close()


@torch.no_grad()
def _gap(model: Any, prompt: Sequence[int], found: Completion) -> tuple[float, float]:
    """How far the log-probs of a sample are from the model's, relative to them, and how far they may be."""
    first = next(model.parameters())
    tokens = torch.tensor([[*prompt, *found.tokens]], device=first.device)
    logits = model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    own = logits.log_softmax(-1).gather(1, tokens[0, len(prompt) :, None]).squeeze(1).cpu()
    gap = (own - torch.tensor(found.logprobs)).abs().sum() / own.abs().sum()
    return float(gap), DISAGREE.get(first.dtype, DISAGREE[torch.float32])
