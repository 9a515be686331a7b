"""Sampling from an OpenAI-compatible server that takes token ids and gives token ids and log-probs back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gxpo.engines.remote_http import Line
from gxpo.engines.remote_requests import check, seed_of
from gxpo.errors import ModelError
from gxpo.protocols import Completion, Request, Sampling

PREFIX = "token_id:"  # how a token is written where ids are asked for
NOTHING = -9000.0  # log-probs below this stand for minus infinity, which JSON has not
SLACK = 8  # ids asked for beyond top_k: equal logits at its edge are all kept
SURE = 1e-3  # nats: the log-prob of a token that was the only one allowed
PROBE = Sampling(max_new_tokens=4, top_k=1)


class OpenAIEngine:
    """Completions of a server such as `vllm serve MODEL --logprobs-mode processed_logprobs`.

    server      its address, as http://localhost:8000/v1
    model       as the server calls it; None: the only one that it has
    tokenizer   for the end-of-sequence id
    stop_ids    end-of-sequence ids; default: the tokenizer's
    policy      the name of the one policy that samples
    version     says which version of the policy the server holds, where somebody updates it; asked before and after
                each call, which fails if the two differ
    stale       sample on although the policy has moved and the server's weights have not
    batch_rows  requests that are under way at once
    timeout     seconds for one answer

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
        policy: str = "main",
        version: Callable[[], int] | None = None,
        stale: bool = False,
        batch_rows: int = 256,
        timeout: float = 600.0,
    ) -> None:
        self._line = Line(server, timeout=timeout)
        end = getattr(tokenizer, "eos_token_id", None)
        self.stop_ids = tuple(stop_ids) if stop_ids is not None else (() if end is None else (end,))
        self.policy, self.batch_rows = policy, batch_rows
        self._version, self._stale = version, stale
        self.policy_version = 0
        self.prefilled_tokens = self.reused_tokens = 0
        self._model, self.positions = self._find(model)
        self._processed: bool | None = None  # whether log-probs are those of the processed distribution

    def _find(self, name: str | None) -> tuple[str, int | None]:
        said = self._line.get("/models")
        found = {m["id"]: m.get("max_model_len") for m in said.get("data", [])} if isinstance(said, dict) else {}
        if name is None and len(found) == 1:
            name = next(iter(found))
        if name is None or name not in found:
            asked = "several models" if name is None else f"no model {name!r}"
            raise ModelError(
                f"{self._line.url} has {asked} ({', '.join(found) or 'none'}): "
                "name one in sampling.engine_options={model: NAME}"
            )
        return name, found[name]

    # ------------------------------------------------------------ what the server is
    def _probe(self, prompt: Sequence[int]) -> None:
        """Ask for tokens that are certain: what comes back shows how the server answers."""
        said = self._line.post("/completions", self._body(prompt, 0, PROBE))
        completion = self._completion(said, prompt, Sampling(), 0)  # what was possible is known
        self._processed = all(x > -SURE for x in completion.logprobs)

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
        """One completion for every stream of every request, in their order."""
        place = f"max_model_len of {self._line.url}"
        check(requests, sampling, policy=self.policy, positions=self.positions, limit=place)
        rows = [(r.prompt, seed_of(key)) for r in requests for key in r.streams]
        if not rows:
            return [[] for _ in requests]
        if self._processed is None:
            self._probe(rows[0][0])
        self._check_logprobs(sampling)
        version = self._check_version()

        def draw(row: tuple[Sequence[int], int]) -> tuple[Completion, int, int]:
            prompt, seed = row
            said = self._line.post("/completions", self._body(prompt, seed, sampling))
            usage = said.get("usage") or {}
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            return self._completion(said, prompt, sampling, version), len(prompt) - cached, cached

        with ThreadPoolExecutor(min(len(rows), self.batch_rows)) as threads:
            done = list(threads.map(draw, rows))
        if self._check_version() != version:
            raise ModelError(f"{self._line.url} was given other weights while it sampled: update it between steps")
        self.prefilled_tokens += sum(new for _, new, _ in done)
        self.reused_tokens += sum(cached for _, _, cached in done)
        found = iter(completion for completion, _, _ in done)
        return [[next(found) for _ in r.streams] for r in requests]

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

    def _completion(self, said: Any, prompt: Sequence[int], s: Sampling, version: int) -> Completion:
        try:
            (choice,) = said["choices"]
            ids, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {})
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ModelError(f"{self._line.url} answers with something that is no completion") from error
        written = logprobs.get("tokens") or []
        if ids is None and written and all(str(t).startswith(PREFIX) for t in written):
            ids = [int(t.removeprefix(PREFIX)) for t in written]
        if ids is None:
            raise ModelError(
                f"{self._line.url} answers in text without token ids: tokenised again it may be other tokens than were "
                "sampled. Use a server that returns ids, such as `vllm serve`"
            )
        own = logprobs.get("token_logprobs")
        if own is None or len(own) != len(ids) or None in own:
            raise ModelError(f"{self._line.url} gives no log-prob for every token that it sampled")
        finish = choice.get("finish_reason")
        if finish not in ("stop", "length"):
            raise ModelError(f"{self._line.url} gave up a sample (finish_reason {finish!r})")
        read = choice.get("prompt_token_ids")
        if read is not None and list(read) != list(prompt):
            raise ModelError(f"{self._line.url} read other tokens than the prompt that it was sent")
        return Completion(
            tokens=[int(t) for t in ids],
            logprobs=[0.0] * len(ids) if s.temperature == 0 else [float(x) for x in own],
            finish=finish,
            support=self._support(logprobs, s) if s.truncated_support else None,
            policy_version=version,
        )

    def _support(self, logprobs: Mapping[str, Any], s: Sampling) -> np.ndarray:
        """[tokens, widest] int64, padded with -1."""
        asked, rows = s.top_k + SLACK, []
        for found in logprobs.get("top_logprobs") or []:
            row = sorted(int(t.removeprefix(PREFIX)) for t, x in found.items() if x > NOTHING)
            if len(row) >= asked:
                raise ModelError(
                    f"top_k and top_p left {asked} tokens or more at one position, and no more were asked of "
                    f"{self._line.url}: set sampling.top_k, or sample without both"
                )
            rows.append(row)
        out = np.full((len(rows), max(map(len, rows), default=0)), -1, dtype=np.int64)
        for place, row in zip(out, rows, strict=True):
            place[: len(row)] = row
        return out

    def release(self, names: Sequence[str] | None = None) -> None:
        """Nothing is kept by name."""

    def close(self) -> None:
        """Close the connections to the server, which goes on."""
        self._line.close()
