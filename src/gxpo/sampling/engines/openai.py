"""Engine for OpenAI-compatible servers that take token ids and return token ids with log-probs."""

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
from gxpo.sampling.engines.openai_reply import SLACK, SURE, Reply, completion, max_reply_bytes
from gxpo.sampling.engines.pool import Job, SamplerPool
from gxpo.sampling.engines.remote_requests import check, seed_of
from gxpo.sampling.engines.replica import Replica
from gxpo.sampling.engines.vllm import DISAGREE
from gxpo.sampling.engines.weight_transfer import WeightFiles

PROBE = Sampling(max_new_tokens=4, top_k=1)
COMPARISON = Sampling(max_new_tokens=24)  # tokens whose log-probs are compared with the learner's, once per server


class OpenAIEngine:
    """Engine for servers such as `vllm serve MODEL --logprobs-mode processed_logprobs`.

    servers     addresses, as http://localhost:8000/v1: a list, or one as a string
    model       the servers' name of the model; None: the only one that they have
    tokenizer   for the end-of-sequence id
    stop_ids    end-of-sequence ids; default: the tokenizer's
    vocabulary  size of the policy's vocabulary; None: unknown
    policy      name of the one policy that samples
    version     returns the policy version on the servers, if another program updates them; called before and after each
                call, which fails if the two differ
    learner     the learner's model, whose weights are published to the servers through the folder `weights`
    weights     folder that servers and learner see by the same path; None: nothing is published
    stale       sample on although the policy was updated and the servers' weights were not
    batch_rows  concurrent requests at each server
    key_from, timeout, retries, min_replicas, patience, publish_timeout  as of `gxpo.sampling.engines.pool.SamplerPool`
    notify      called with a line for each server that is down at the start

    A server that is busy, slow or gone costs time: its requests go to others, with the same seeds. A request that no
    server answers, or whose responses break the protocol everywhere, is a `ModelError`: a group without one of its
    samples would be another group.

    With `weights`, sampling starts with a publication if `policy_version` changed or torch counted a write to the model
    since the last one; only servers that acknowledged it and its checksums get requests. The acknowledged state is
    compared again after every call, and responses of a server that restarted meanwhile are requested again. Without
    `weights`, the servers hold version 0 for good, or the one that `version` returns, and samples for a later
    `policy_version` are refused, unless `stale`: these keep the stamp 0, so the step's metrics tell how old they are.

    A probe comes before a server's first sample: a server that answers in text alone is refused (text that is tokenised
    again may be other tokens than were sampled), and one whose log-probs are those before temperature and top-k is
    refused for every sampling in which the two differ. Every stream is a request with a seed of its own (`seed_of`);
    equal seeds need not give equal tokens: that is up to the server.
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
        # The servers' own end-of-sequence rule is switched off in every request, so the ids have to come from here.
        end = getattr(tokenizer, "eos_token_id", None)
        self.stop_ids = tuple(stop_ids) if stop_ids is not None else (() if end is None else (end,))
        self.policy, self._vocabulary = policy, vocabulary
        self._version, self._stale = version, stale
        self.policy_version = 0
        self.prefilled_tokens = self.reused_tokens = 0
        self.publish_seconds = 0.0
        self._probe_prompt: Sequence[int] = ()
        self._files: WeightFiles | None = None
        self._publication_stamp: tuple[int, int] | None = None  # version and count of writes of what was published
        self._publish_lock = threading.Lock()
        # Fails here rather than at the first sample, which follows minutes of other preparations.
        self.positions = self.pool.start(model)
        for problem in self.pool.down:
            notify(f"sampling without a server for now: {problem}")
        if weights is not None:
            self._files = WeightFiles(learner, weights)

    # ------------------------------------------------------------ servers
    @property
    def servers(self) -> str:
        """Addresses of the servers, for error messages."""
        return ", ".join(r.url for r in self.pool.replicas)

    async def _probe(self, replica: Replica) -> None:
        """Request tokens of probability 1 (top-k 1): the response shows what kind of log-probs the server gives."""
        sample = await self._request_sample(
            replica, self._probe_prompt, PROBE, replace(PROBE, top_k=0)
        )  # what was possible is known
        replica.has_processed_logprobs = all(x > -SURE for x in sample.logprobs)
        if self._files is not None:
            await self._compare_with_learner(replica)

    async def _compare_with_learner(self, replica: Replica) -> None:
        """Raise ValueError unless the server's log-probs are the learner's for the same weights."""
        files, stamp = self._files, self._publication_stamp
        assert files is not None
        sample = await self._request_sample(replica, self._probe_prompt, COMPARISON, COMPARISON)
        if stamp is None or files.parameter_version() != stamp[1]:
            return  # the learner has moved on
        # In a thread: the pool's event loop goes on serving other requests during the learner's forward pass.
        gap, tolerance = await asyncio.to_thread(_logprob_gap, files.model, self._probe_prompt, sample)
        if not gap <= tolerance:
            raise ValueError(
                f"computes something else from the learner's weights: log-probs of the same tokens differ by {gap:.1%}."
                " Serve the model that is trained, in its dtype"
            )

    async def _request_sample(
        self, replica: Replica, prompt: Sequence[int], request_sampling: Sampling, sampling: Sampling
    ) -> Completion:
        body = {"model": self.pool.model, **self._request_body(prompt, 0, request_sampling)}
        reply = await replica.line.once(
            "POST", "/completions", body, Reply, max_reply_bytes(len(prompt), request_sampling)
        )
        return self._read(reply, prompt, sampling, 0)

    def _read(self, reply: Reply, prompt: Sequence[int], sampling: Sampling, version: int) -> Completion:
        ends = {*self.stop_ids, *sampling.stop_ids}
        return completion(reply, prompt, sampling, ends=ends, vocabulary=self._vocabulary, version=version)

    # ------------------------------------------------------------ weights
    @property
    def publishes(self) -> bool:
        """True if the learner's weights are published to the servers."""
        return self._files is not None

    def move_to(self, model: Any) -> None:
        """Publish from now on the weights of this copy of the model, which is not being trained."""
        if self._files is not None:
            self._files.model, self._publication_stamp = model, None

    def publish(self) -> None:
        """Publish the learner's weights unless the servers have them; `SamplersLost` if too few servers load them."""
        files = self._files
        if files is None:
            return
        with self._publish_lock:
            target = (self.policy_version, files.parameter_version())
            if target == self._publication_stamp:
                return
            start = time.perf_counter()
            # None until all servers have it: after a failure the next call publishes again.
            self._publication_stamp, publication = None, files.write(self.policy_version)
            self.pool.publish(publication)
            files.keep_only(publication)
            self._publication_stamp = target
            self.publish_seconds += time.perf_counter() - start

    def _server_version(self) -> int | None:
        """Policy version on the servers; None if weights are published, where each server acknowledges its own."""
        if self._files is not None:
            return None
        if self._version is not None:
            return self._version()
        if self.policy_version != 0 and not self._stale:
            raise ModelError(
                f"the policy is at version {self.policy_version}, and nobody updates the weights of {self.servers}: "
                "publish them with sampling.engine_options={weights: FOLDER}, train with sampling.engine=vllm or "
                "torch, or set sampling.engine_options={stale: true}"
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
        # Any prompt of the run does for the probe: it is one that the model and its context can take.
        self._probe_prompt = self._probe_prompt or rows[0][0]
        self.publish()
        version = self._server_version()
        samples = self._sample_rows(rows, sampling, version)
        if version is not None and self._server_version() != version:
            raise ModelError(f"{self.servers} was given other weights while it sampled: update it between steps")
        n_cached = sum(part for _, part in samples)
        self.prefilled_tokens += sum(len(prompt) for prompt, _, _ in rows) - n_cached
        self.reused_tokens += n_cached
        remaining = iter(completion for completion, _ in samples)
        return [[next(remaining) for _ in r.streams] for r in requests]

    def _sample_rows(
        self, rows: Sequence[tuple[Sequence[int], Any, str | None]], sampling: Sampling, version: int | None
    ) -> list[tuple[Completion, int]]:
        """Sample each row; return completions with their numbers of cached prompt tokens."""

        def read(row: int, reply: Reply, served_version: int) -> tuple[Completion, int]:
            return self._read(
                reply, rows[row][0], sampling, served_version if version is None else version
            ), reply.n_cached

        # Processed and raw log-probs differ only under a temperature other than 1 or a truncated support.
        needs_processed = sampling.temperature != 0 and (sampling.truncated_support or sampling.temperature != 1)
        jobs = [
            Job(
                self._request_body(prompt, seed_of(key), sampling),
                len(prompt) + sampling.max_new_tokens,
                max_reply_bytes(len(prompt), sampling),
                home,
                needs_processed,
            )
            for prompt, key, home in rows
        ]
        return self.pool.complete(jobs, read)

    def _request_body(self, prompt: Sequence[int], seed: int, sampling: Sampling) -> dict[str, Any]:
        return {
            "prompt": list(prompt),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed,
            "logprobs": sampling.top_k + SLACK if sampling.truncated_support else 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "ignore_eos": True,  # the ids below end an action, and nothing else
            "stop_token_ids": [*self.stop_ids, *sampling.stop_ids],
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            **({"top_k": sampling.top_k} if sampling.top_k else {}),
            **({"stop": list(sampling.stop)} if sampling.stop else {}),
        }

    def release(self, names: Sequence[str] | None = None) -> None:
        """Forget which servers these episodes were sent to; the servers keep no caches by name."""
        self.pool.forget(names)

    def figures(self) -> dict[str, float]:
        """Counters since the engine was made, by the names of their metrics."""
        return {
            "sampler_failures": self.pool.failures,
            "time_publish_s": self.publish_seconds,
            "time_wait_servers_s": self.pool.seconds_waited,
        }

    def close(self) -> None:
        """Close the connections and remove published files; the servers keep running."""
        self.pool.close()
        if self._files is not None:
            self._files.close()


@torch.no_grad()
def _logprob_gap(model: Any, prompt: Sequence[int], sample: Completion) -> tuple[float, float]:
    """Relative gap between the log-probs of a sample and the model's, and the largest gap allowed for its dtype."""
    first = next(model.parameters())
    tokens = torch.tensor([[*prompt, *sample.tokens]], device=first.device)
    logits = model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    model_logprobs = logits.log_softmax(-1).gather(1, tokens[0, len(prompt) :, None]).squeeze(1).cpu()
    gap = (model_logprobs - torch.tensor(sample.logprobs)).abs().sum() / model_logprobs.abs().sum()
    return float(gap), DISAGREE.get(first.dtype, DISAGREE[torch.float32])
