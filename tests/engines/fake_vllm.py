"""The worker's program with a package `vllm` that is a small loop over transformers: `fake_vllm.py WORKER LINE PARENT`.

What it lacks of vLLM is speed, and the cache. It shows what it was given where vLLM would not: `num_cached_tokens` of a
request is 1 if its cache salt was seen before.
"""

from __future__ import annotations

import runpy
import sys
from types import ModuleType, SimpleNamespace
from typing import Any


class SamplingParams:
    def __init__(
        self, *, temperature=1.0, top_k=0, top_p=1.0, max_tokens=16, seed=None, stop_token_ids=(), stop=(),
        ignore_eos=False, logprobs=None, prompt_logprobs=None, include_stop_str_in_output=False,
        skip_special_tokens=True, detokenize=True,
    ) -> None:  # fmt: skip
        assert ignore_eos and (include_stop_str_in_output or prompt_logprobs is not None)
        assert detokenize == bool(stop)
        self.__dict__.update({k: v for k, v in locals().items() if k != "self"})


class LLM:
    def __init__(self, *, model: str, dtype: str, max_logprobs: int, logprobs_mode: str, load_format: str, **_: Any):
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        assert (logprobs_mode, load_format) == ("processed_logprobs", "dummy")
        torch.set_num_threads(1)
        torch.manual_seed(123)
        config = AutoConfig.from_pretrained(model)
        self.model = AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype)).eval()
        self.tokenizer = None if _["skip_tokenizer_init"] else AutoTokenizer.from_pretrained(model)
        self.most, self.seen = max_logprobs, set()
        self.model.load_weights = self._load
        runner = SimpleNamespace(model=self.model)
        self.llm_engine = SimpleNamespace(
            model_executor=SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        )

    def _load(self, weights: Any) -> None:
        own = dict(self.model.named_parameters())
        for name, x in weights:
            own[name].copy_(x)

    def reset_prefix_cache(self) -> bool:
        return True

    def generate(self, prompts: list[dict[str, Any]], params: Any, *, use_tqdm: bool) -> list[Any]:
        import torch

        each = params if isinstance(params, list) else [params] * len(prompts)
        with torch.no_grad():
            return [self._one(prompt, p) for prompt, p in zip(prompts, each, strict=True)]

    def _one(self, prompt: dict[str, Any], p: SamplingParams) -> Any:
        import torch

        ids, salt = list(prompt["prompt_token_ids"]), prompt.get("cache_salt")
        cached = int(salt in self.seen)
        self.seen.add(salt)
        logits = self.model(input_ids=torch.tensor([ids])).logits[0].float()
        read = logits.log_softmax(-1)
        before = [None, *({ids[i]: SimpleNamespace(logprob=float(read[i - 1, ids[i]]))} for i in range(1, len(ids)))]
        drawn, found, finish = [], [], "length"
        seed = torch.Generator().manual_seed(p.seed if p.seed is not None else 0)
        while len(drawn) < p.max_tokens and finish == "length":
            logits = self.model(input_ids=torch.tensor([ids + drawn])).logits[0, -1].float()
            logprob = self._processed(logits, p)
            token = (
                int(logits.argmax()) if p.temperature == 0 else int(torch.multinomial(logprob.exp(), 1, generator=seed))
            )
            drawn.append(token)
            top = logprob.topk(min(p.logprobs or 0, logprob.numel())).indices.tolist()
            found.append({t: SimpleNamespace(logprob=float(logprob[t])) for t in (token, *top)})
            text = self.tokenizer.decode(drawn) if p.stop else ""
            finish = "stop" if token in p.stop_token_ids or any(s in text for s in p.stop) else "length"
        out = SimpleNamespace(token_ids=drawn, logprobs=found, finish_reason=finish)
        return SimpleNamespace(outputs=[out], num_cached_tokens=cached, prompt_token_ids=ids, prompt_logprobs=before)

    def _processed(self, logits: Any, p: SamplingParams) -> Any:
        """By sorting, with loops: not as the source or vLLM does it."""
        import torch

        x = (logits / p.temperature if p.temperature else logits).tolist()
        order = sorted(range(len(x)), key=lambda i: -x[i])
        allowed = order[: p.top_k] if p.top_k else order
        total = torch.tensor([x[i] for i in allowed]).softmax(0).tolist()
        kept, reached = [], 0.0
        for i, mass in zip(allowed, total, strict=True):
            if reached >= p.top_p:
                break
            kept.append(i)
            reached += mass
        mask = torch.full_like(logits, -torch.inf)
        mask[kept] = torch.tensor([x[i] for i in kept])
        return mask.log_softmax(-1)


if __name__ == "__main__":
    module = ModuleType("vllm")
    module.LLM, module.SamplingParams, module.__version__ = LLM, SamplingParams, "fake"
    sys.modules["vllm"] = module
    runpy.run_path(sys.argv[1], run_name="__main__")
