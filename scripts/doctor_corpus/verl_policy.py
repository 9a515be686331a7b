"""A character model that adds, in plain transformers: its task, its warm start, how it is sampled and read.

Prompts are what is left of a chat template when special tokens are skipped; answers end in `#### N`, as GSM8K's do.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

CHARACTERS = "\n 0123456789+-=?#.,:abcdefghijklmnopqrstuvwxyzWTIPA{}"
PAD, EOS, BOS = 0, 1, 2
IDS = {c: i + 3 for i, c in enumerate(CHARACTERS)}
TEXT = {i: c for c, i in IDS.items()}


def encode(text: str) -> list[int]:
    return [IDS[c] for c in text]


def decode(ids: list[int]) -> str:
    return "".join(TEXT.get(i, "") for i in ids)


# ---------------------------------------------------------------- task
def render(question: str) -> str:
    """Return what is left of the chat template when special tokens are skipped."""
    return f"user\n{question}\nassistant\n"


def question(a: int, b: int) -> str:
    return f"What is {a} + {b}?"


def solution(a: int, b: int, err: Callable[[int], int] = lambda x: x) -> str:
    """Write the sum column by column, as the demonstrations have it."""
    ones = err(a % 10 + b % 10)
    tens = err(a // 10 + b // 10 + ones // 10)
    carry = "+1" if ones >= 10 else ""
    return f"{a % 10}+{b % 10}={ones}, {a // 10}+{b // 10}{carry}={tens}\n#### {tens}{ones % 10}"


def sums(n: int, seed: int, low: int = 10, high: int = 100) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    pairs: dict[tuple[int, int], None] = {}
    while len(pairs) < n:
        pairs[(rng.randrange(low, high), rng.randrange(low, high))] = None
    return [(question(a, b), str(a + b)) for a, b in pairs]


def extract_answer(response: str) -> str | None:
    answers = re.findall(r"#### (\d+)", response)
    return answers[-1] if answers else None


def gsm8k(prompt: str, response: str, truth: str, step: int) -> dict[str, Any]:
    """verl's strict scoring of GSM8K: 1 for the right number after ####."""
    pred = extract_answer(response)
    return {"score": float(pred == truth), "acc": float(pred == truth), "pred": pred or ""}


# ---------------------------------------------------------------- model
def model() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(CHARACTERS) + 3,
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=256,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
        )
    )


def warm_start(path: Path, low: float, high: float, noise: float) -> LlamaForCausalLM:
    """Load a policy after supervised training on solutions with errors, whose greedy accuracy lies between `low` and
    `high`; made once."""
    if (path / "config.json").exists():
        return LlamaForCausalLM.from_pretrained(path)
    torch.manual_seed(11)
    rng, policy = random.Random(11), model()
    optimiser = torch.optim.AdamW(policy.parameters(), lr=2e-3)
    rows = sums(200, 99)
    for step in range(1, 3001):
        batch = []
        for _ in range(96):
            a, b = rng.randrange(10, 100), rng.randrange(10, 100)
            text = solution(a, b, lambda x: max(0, x + rng.choice((-2, -1, 1, 2))) if rng.random() < noise else x)
            batch.append((encode(render(question(a, b))), [*encode(text), EOS]))
        longest = max(len(p) + len(r) for p, r in batch)
        ids = torch.tensor([[BOS, *p, *r] + [PAD] * (longest - len(p) - len(r)) for p, r in batch])
        labels = torch.full_like(ids, -100)
        for i, (p, r) in enumerate(batch):
            labels[i, 1 + len(p) : 1 + len(p) + len(r)] = torch.tensor(r)
        for group in optimiser.param_groups:
            group["lr"] = 2e-3 * min(1.0, step / 50)
        loss = policy(input_ids=ids, attention_mask=(ids != PAD).long(), labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimiser.step()
        if step % 25 == 0 and step >= 100:
            samples = sample(policy, [q for q, _ in rows], {"temperature": 0.0}, 56, [0] * len(rows))
            right = sum(extract_answer(decode(r)) == t for (r, _), (_, t) in zip(samples, rows, strict=True)) / len(
                rows
            )
            print("warm", step, loss.item(), right, file=sys.stderr, flush=True)
            if low <= right <= high:
                policy.save_pretrained(path)
                return policy
    raise RuntimeError("the warm start missed its band")


@torch.no_grad()
def sample(
    policy: LlamaForCausalLM, questions: list[str], how: dict[str, Any], limit: int, seeds: list[int]
) -> list[tuple[list[int], list[float]]]:
    """Sample responses (with the end token) and the log-probs that the engine reports: of the distribution drawn
    from."""
    prompts = [[BOS, *encode(render(q))] for q in questions]
    widest = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (widest - len(p)) + p for p in prompts])
    mask = (ids != PAD).long()
    noise = torch.stack([torch.rand(limit, generator=torch.Generator().manual_seed(s)) for s in seeds])
    out: list[list[int]] = [[] for _ in prompts]
    logprobs: list[list[float]] = [[] for _ in prompts]
    is_done = torch.zeros(len(prompts), dtype=torch.bool)
    stop, past, feed = how.get("stop", EOS), None, ids
    position = mask.cumsum(-1) - 1
    temperature = how.get("temperature", 1.0)
    for t in range(limit):
        output = policy(
            input_ids=feed,
            attention_mask=mask,
            position_ids=position.clamp_min(0),
            past_key_values=past,
            use_cache=True,
        )
        past, logits = output.past_key_values, output.logits[:, -1].float()
        if temperature == 0:
            token = logits.argmax(-1)
            logp = torch.zeros_like(token, dtype=torch.float32)
        else:
            logits = logits / temperature
            if k := how.get("top_k"):
                logits = logits.masked_fill(logits < logits.topk(k).values[:, -1:], -torch.inf)
            if (p := how.get("top_p", 1.0)) < 1:
                ordered, index = logits.softmax(-1).sort(descending=True)
                cut = ordered.cumsum(-1) - ordered >= p
                logits = logits.masked_fill(torch.zeros_like(cut).scatter(1, index, cut), -torch.inf)
            logprob_V = logits.log_softmax(-1)
            token = (logprob_V.exp().cumsum(-1) < noise[:, t : t + 1]).sum(-1).clamp_max(logprob_V.shape[1] - 1)
            logp = logprob_V.gather(1, token[:, None])[:, 0].clamp_min(-50)
        for i in torch.nonzero(~is_done)[:, 0].tolist():
            out[i].append(int(token[i]))
            logprobs[i].append(float(logp[i]))
        is_done |= token == stop
        if bool(is_done.all()):
            break
        feed = token[:, None]
        mask = torch.cat([mask, torch.ones(len(prompts), 1, dtype=mask.dtype)], 1)
        position = position[:, -1:] + 1
    return list(zip(out, logprobs, strict=True))


def pad_batch(
    questions: list[str], responses: list[list[int]], limit: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return prompts (left), responses (right, to the limit), attention mask, response mask, as verl has them."""
    prompts = [[BOS, *encode(render(q))] for q in questions]
    widest = max(map(len, prompts))
    left = torch.tensor([[PAD] * (widest - len(p)) + p for p in prompts])
    right = torch.tensor([r + [PAD] * (limit - len(r)) for r in responses])
    response_mask = torch.tensor([[1] * len(r) + [0] * (limit - len(r)) for r in responses])
    return left, right, torch.cat([(left != PAD).long(), response_mask], 1), response_mask


def forward(
    policy: LlamaForCausalLM, left: torch.Tensor, right: torch.Tensor, attention: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probs of the responses and entropy, [batch, limit] each."""
    length = int(attention[:, left.shape[1] :].sum(-1).max())
    ids = torch.cat([left, right[:, :length]], 1)
    mask = attention[:, : ids.shape[1]]
    logits = (
        policy(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp_min(0)).logits.float()[
            :, left.shape[1] - 1 : -1
        ]
        / temperature
    )
    logprob_V = logits.log_softmax(-1)
    outputs = logprob_V.gather(-1, right[:, :length, None])[..., 0], -(logprob_V.exp() * logprob_V).sum(-1)
    logp, entropy = (torch.nn.functional.pad(x, (0, right.shape[1] - length)) for x in outputs)
    return logp, entropy
