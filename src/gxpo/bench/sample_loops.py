"""Baseline decode loops without gxpo."""

from __future__ import annotations

import time
from typing import Any

from gxpo.bench.sample import Round, _model, _prompts, _speed


def bare_loop(path: str, dtype: str, work: dict[str, Any]) -> Round:
    """Naive decode loop: prefill each distinct prompt once, then one token of every row at a time."""
    import torch

    model, group, new = _model(path, dtype), work["group"], work["new"]
    prompts = torch.tensor(_prompts(path, work["rows"] // group, work["length"]))

    @torch.inference_mode()
    def once() -> dict[str, Any]:
        began = time.perf_counter()
        out = model(prompts, use_cache=True, logits_to_keep=1)
        cache, logits = out.past_key_values, out.logits[:, -1]
        if group > 1:
            cache.batch_repeat_interleave(group)
            logits = logits.repeat_interleave(group, 0)
        tokens = []
        while True:
            cumulative = logits.float().softmax(-1).cumsum(-1)
            drawn = torch.rand(len(logits), 1) * cumulative[:, -1:]
            tokens.append(torch.searchsorted(cumulative, drawn, right=True).clamp_max(logits.shape[1] - 1))
            if len(tokens) == new:
                break
            logits = model(tokens[-1], past_key_values=cache, use_cache=True).logits[:, -1]
        return _speed(torch.cat(tokens, 1).numel(), time.perf_counter() - began)

    return once


def static_loop(path: str, dtype: str, work: dict[str, Any], compiled: bool) -> Round:
    """Greedy decoding with a static cache, so that one compiled step serves every token."""
    import torch
    from transformers import StaticCache

    model, length, new = _model(path, dtype), work["length"], work["new"]
    prompts = torch.tensor(_prompts(path, work["rows"] // work["group"], length)).repeat_interleave(work["group"], 0)
    cache = StaticCache(config=model.config, max_cache_len=length + new)
    step = torch.compile(model.forward, dynamic=False) if compiled else model.forward
    cost: dict[str, float] = {}

    @torch.inference_mode()
    def once() -> dict[str, Any]:
        cache.reset()
        token = model(prompts, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
        began = time.perf_counter()
        for i in range(new - 1):
            token = step(token, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            if i == 1:  # the second call may compile once more
                cost.setdefault("compile_s", time.perf_counter() - began)
        seconds = time.perf_counter() - began
        return {"seconds": seconds, **cost, **_speed(token.numel() * (new - 1), seconds)}

    return once


def generate(path: str, dtype: str, work: dict[str, Any]) -> Round:
    """transformers' own `generate` on all rows."""
    import torch

    model, new = _model(path, dtype), work["new"]
    prompts = torch.tensor(_prompts(path, work["rows"] // work["group"], work["length"]))
    rows = prompts.repeat_interleave(work["group"], 0)
    how = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "pad_token_id": 0}

    @torch.inference_mode()
    def once() -> dict[str, Any]:
        began = time.perf_counter()
        out = model.generate(rows, attention_mask=torch.ones_like(rows), max_new_tokens=new, min_new_tokens=new, **how)
        return _speed(out[:, rows.shape[1] :].numel(), time.perf_counter() - began)

    return once
