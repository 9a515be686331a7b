"""Sampling from an OpenAI-compatible server that takes token ids and returns token ids and log-probs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gxpo.engines.openai_reply import SLACK, SURE, Models, Reply, completion, longest
from gxpo.engines.remote_requests import check, seed_of
from gxpo.errors import ModelError
from gxpo.protocols import Completion, Request, Sampling
from gxpo.remote import Line, Unanswered, plain

PROBE = Sampling(max_new_tokens=4, top_k=1)
LONGEST_LIST = 1 << 22  # bytes of a list of models


class OpenAIEngine:
    """Engine for a server such as `vllm serve MODEL --logprobs-mode processed_logprobs`.

    server      its address, as http://localhost:8000/v1
    model       as the server calls it; None: the only one that it has
    tokenizer   for the end-of-sequence id
    stop_ids    end-of-sequence ids; default: the tokenizer's
    vocabulary  how many tokens the policy knows; None: unknown
    policy      the name of the one policy that samples
    version     says which version of the policy the server holds, if it is updated; asked before and after
                each call, which fails if the two differ
    stale       sample on although the policy has moved and the server's weights have not
    batch_rows  requests that are under way at once
    key_from, timeout, retries  of `gxpo.remote.Line`

    A server that is busy, slow or gone is asked again, with the same seeds. One that still gives no answer, or one that
    breaks the protocol, is a `ModelError`: a group without one of its samples would be another group.

    Nothing here changes the server's weights. Without `version` it holds version 0 for good, and samples for a later
    `policy_version` are refused, unless `stale`: they keep the stamp 0, so the step's metrics tell how old they are.

    The first call sends a prompt that shows what the server is: one that answers in text alone is refused (text that is
    tokenised again may be other tokens than were sampled), and one whose log-probs are those before temperature and
    top-k is refused for every sampling in which the two differ. Every stream is a request with a seed of its own
    (`seed_of`); whether the same seed gives the same tokens is the server's business.
    """

    def __init__(
        self,
        server: str,
        *,
        model: str | None = None,
        tokenizer: Any = None,
        stop_ids: Sequence[int] | None = None,
        vocabulary: int | None = None,
        policy: str = "main",
        version: Callable[[], int] | None = None,
        stale: bool = False,
        batch_rows: int = 256,
        key_from: str | None = None,
        timeout: float = 600.0,
        retries: int = 3,
    ) -> None:
        self._line = Line(
            server,
            setting="sampling.server",
            asker="sampling.engine_options",
            key_from=key_from,
            timeout=timeout,
            retries=retries,
        )
        end = getattr(tokenizer, "eos_token_id", None)
        self.stop_ids = tuple(stop_ids) if stop_ids is not None else (() if end is None else (end,))
        self.policy, self.batch_rows, self._vocabulary = policy, batch_rows, vocabulary
        self._version, self._stale = version, stale
        self.policy_version = 0
        self.prefilled_tokens = self.reused_tokens = 0
        self._model, self.positions = self._find(model)
        self._processed: bool | None = None  # whether log-probs are those of the processed distribution

    def _find(self, name: str | None) -> tuple[str, int | None]:
        try:
            said = self._line.get("/models", Models, LONGEST_LIST)
        except Unanswered as error:
            raise ModelError(str(error)) from error
        found = {m.id: m.max_model_len for m in said.data}
        if name is None and len(found) == 1:
            name = next(iter(found))
        if name is None or name not in found:
            asked = "several models" if name is None else f"no model {name!r}"
            raise ModelError(
                f"{self._line.url} has {asked} ({plain(', '.join(found)) or 'none'}): "
                "name one in sampling.engine_options={model: NAME}"
            )
        return name, found[name]

    # ------------------------------------------------------------ what the server is
    def _probe(self, prompt: Sequence[int]) -> None:
        """Request tokens that are certain: the response shows how the server answers."""
        ((found, _),) = self._draw([(prompt, 0)], PROBE, replace(PROBE, top_k=0), 0)  # what was possible is known
        self._processed = all(x > -SURE for x in found.logprobs)

    def _check_logprobs(self, s: Sampling) -> None:
        if not self._processed and s.temperature != 0 and (s.truncated_support or s.temperature != 1):
            raise ModelError(
                f"{self._line.url} gives log-probs from before temperature, top_k and top_p: start it with "
                "--logprobs-mode processed_logprobs (vLLM), or sample at temperature 1 without top_k and top_p"
            )

    def _check_version(self) -> int:
        if self._version is not None:
            return self._version()
        if self.policy_version != 0 and not self._stale:
            raise ModelError(
                f"the policy is at version {self.policy_version}, and nobody updates the weights of {self._line.url}: "
                "train with sampling.engine=vllm or torch, or say sampling.engine_options={stale: true}"
            )
        return 0

    # ------------------------------------------------------------ sampling
    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        """Sample one completion for every stream of every request, in order."""
        place = f"max_model_len of {self._line.url}"
        check(requests, sampling, policy=self.policy, positions=self.positions, limit=place)
        rows = [(r.prompt, seed_of(key)) for r in requests for key in r.streams]
        if not rows:
            return [[] for _ in requests]
        if self._processed is None:
            self._probe(rows[0][0])
        self._check_logprobs(sampling)
        version = self._check_version()

        done = self._draw(rows, sampling, sampling, version)
        if self._check_version() != version:
            raise ModelError(f"{self._line.url} was given other weights while it sampled: update it between steps")
        cached = sum(part for _, part in done)
        self.prefilled_tokens += sum(len(prompt) for prompt, _ in rows) - cached
        self.reused_tokens += cached
        found = iter(completion for completion, _ in done)
        return [[next(found) for _ in r.streams] for r in requests]

    def _draw(
        self, rows: Sequence[tuple[Sequence[int], int]], asked: Sampling, s: Sampling, version: int
    ) -> list[tuple[Completion, int]]:
        """A sample for each prompt and seed, requested as `asked`, read as `s`, with its cached prompt tokens."""
        ends = {*self.stop_ids, *s.stop_ids}

        def read(row: int, said: Reply) -> tuple[Completion, int]:
            found = completion(said, rows[row][0], s, ends=ends, vocabulary=self._vocabulary, version=version)
            return found, said.cached

        bodies = [self._body(prompt, seed, asked) for prompt, seed in rows]
        most = longest(max(len(prompt) for prompt, _ in rows), asked)
        try:
            return self._line.post_all("/completions", bodies, Reply, most, read, self.batch_rows)
        except Unanswered as error:
            raise ModelError(str(error)) from error
        except ValueError as error:
            raise ModelError(f"{self._line.url} {error}") from error

    def _body(self, prompt: Sequence[int], seed: int, s: Sampling) -> dict[str, Any]:
        return {
            "model": self._model,
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
        """Does nothing: the server keeps no caches by name."""

    def close(self) -> None:
        """Close the connections; the server keeps running."""
        self._line.close()
