"""Engine for the samplers of a Tinker server: token ids in, token ids and log-probs out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from gxpo.base.errors import ModelError, need
from gxpo.parts.protocols import Completion, Request, Sampling
from gxpo.sampling.engines.remote_requests import check, seed_of

SEEDS = 1 << 31  # servers read a seed as a 32-bit number


class Published(Protocol):
    """Protocol of a training engine whose published weights can be sampled."""

    address: str
    version: int

    @property
    def sampler(self) -> Any: ...
    def publish(self, version: int, timeout: float) -> None: ...


class TinkerSampler:
    """Engine over the sampling client of a training engine (`gxpo.learning.remote.tinker.TinkerEngine`).

    trained     training engine; its weights are published when samples of a newer `policy_version` are requested
    tokenizer   for the end-of-sequence id
    vocabulary, positions  of the model; None: unknown
    timeout     seconds for publishing, and for one sample

    Every stream is a request with a seed of its own (`seed_of`, cut to 31 bits); all of a call run concurrently. Equal
    seeds need not give equal tokens: that is up to the server.
    """

    def __init__(
        self,
        train_engine: Published,
        *,
        tokenizer: Any = None,
        vocabulary: int | None = None,
        positions: int | None = None,
        policy: str = "main",
        timeout: float = 600.0,
    ) -> None:
        self._train_engine, self._types = train_engine, need("tinker", "tinker").types
        end = getattr(tokenizer, "eos_token_id", None)
        self.stop_ids = () if end is None else (end,)
        self.policy, self.positions, self._vocabulary, self._timeout = policy, positions, vocabulary, timeout
        self.policy_version = 0
        self.prefilled_tokens = self.reused_tokens = 0

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        """Sample one completion for every stream of every request, in order."""
        check(requests, sampling, policy=self.policy, positions=self.positions, limit="the model's positions")
        if sampling.stop:
            raise ModelError("a Tinker server stops at token ids: leave out sampling.stop")
        if sampling.truncated_support:
            raise ModelError(
                "a Tinker server does not say which tokens top_k and top_p left: set sampling.top_k=0, sampling.top_p=1"
            )
        # All requests are sent before the first result is awaited, so that the server can batch them.
        self._train_engine.publish(self.policy_version, self._timeout)
        client, ends = self._train_engine.sampler, sorted({*self.stop_ids, *sampling.stop_ids})
        server, t = self._train_engine.address, self._types
        try:
            futures = [
                [
                    client.sample(
                        t.ModelInput.from_ints(list(r.prompt)),
                        num_samples=1,
                        sampling_params=t.SamplingParams(
                            max_tokens=sampling.max_new_tokens,
                            temperature=sampling.temperature,
                            seed=seed_of(key) % SEEDS,
                            stop=ends,
                        ),
                    )
                    for key in r.streams
                ]
                for r in requests
            ]
            sequences = [[future.result(self._timeout).sequences[0] for future in row] for row in futures]
        except TimeoutError as error:
            raise ModelError(f"{server} did not answer a request for a sample within {self._timeout:g} s") from error
        except Exception as error:  # the SDK's, its HTTP library's and pydantic's
            message = " ".join(str(error).split())[:300] or type(error).__name__
            raise ModelError(f"{server} could not sample: {message}") from error
        self.prefilled_tokens += sum(len(r.prompt) * len(r.streams) for r in requests)
        return [[self._completion(s, sampling, ends) for s in row] for row in sequences]

    def _completion(self, sequence: Any, sampling: Sampling, ends: Sequence[int]) -> Completion:
        """Validate a sampled sequence; `ModelError` if it does not match the request."""
        tokens, logprobs, server = list(sequence.tokens), sequence.logprobs, self._train_engine.address
        if not 1 <= len(tokens) <= sampling.max_new_tokens or logprobs is None or len(logprobs) != len(tokens):
            raise ModelError(f"{server} gave {len(tokens)} tokens without a log-prob for each, or none, or too many")
        if self._vocabulary is not None and max(tokens) >= self._vocabulary:
            raise ModelError(f"{server} gave token {max(tokens)}, and the policy knows {self._vocabulary}")
        is_stopped = sequence.stop_reason == "stop"
        if is_stopped and tokens[-1] not in ends:
            raise ModelError(f"{server} stopped after token {tokens[-1]}, which ends no action, or left out the one")
        return Completion(
            tokens=tokens,
            logprobs=[0.0] * len(tokens) if sampling.temperature == 0 else [float(x) for x in logprobs],
            finish="stop" if is_stopped else "length",
            policy_version=self._train_engine.version,
        )

    def release(self, names: Sequence[str] | None = None) -> None:
        """Do nothing: the server keeps no caches by name."""
