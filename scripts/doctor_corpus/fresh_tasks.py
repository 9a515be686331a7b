"""Tasks, tokenizer and warm starts of the second corpus of TRL runs: sums, brackets, counting letters, sorting."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

WARM = Path("corpus/fresh/warm")
CHARACTERS = "0123456789+-=?:. abcdefghijklmnopqrstuvwxyz()[]{}<>\n"
TAGS = ["<think>", "</think>", "<answer>", "</answer>"]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PAIRS = {"(": ")", "[": "]", "{": "}", "<": ">"}


def tokenizer(chat: bool = False, eos: str | None = None) -> PreTrainedTokenizerFast:
    special = ["<pad>", "<eos>", "<unk>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {t: i for i, t in enumerate([*special, *TAGS])}
    for c in CHARACTERS:
        vocabulary.setdefault(c, len(vocabulary))
    t = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    t.decoder = decoders.Fuse()
    fast_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=t,
        pad_token="<pad>",
        eos_token=eos or ("<|im_end|>" if chat else "<eos>"),
        unk_token="<unk>",
        padding_side="left",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    fast_tokenizer.add_tokens(TAGS)
    fast_tokenizer.chat_template = CHATML if chat else None
    return fast_tokenizer


def sums(rng: random.Random, low: int = 10, high: int = 59, **_: Any) -> tuple[str, str, str]:
    x, y = rng.randint(low, high), rng.randint(low, high)
    return f"{x}+{y}=", str(x + y), str(max(0, x + y + rng.choice([-10, -1, 1, 10, 2])))


def brackets(rng: random.Random, n: int = 4, spread: int = 1, **_: Any) -> tuple[str, str, str]:
    opening = [rng.choice("([{<") for _ in range(rng.randint(max(1, n - spread), n + spread))]
    closing = [PAIRS[c] for c in reversed(opening)]
    wrong = list(closing)
    wrong[rng.randrange(len(wrong))] = rng.choice(")]}>")
    return "close " + "".join(opening) + ":", "".join(closing), "".join(wrong)


def sort(rng: random.Random, n: int = 5, **_: Any) -> tuple[str, str, str]:
    word = "".join(rng.choice("abcdefgh") for _ in range(n))
    right = sorted(word)
    wrong = list(right)
    i = rng.randrange(n - 1)
    wrong[i], wrong[i + 1] = rng.choice("abcdefgh"), wrong[i]
    return f"sort {word}", "".join(right), "".join(wrong)


def count(rng: random.Random, noise: float = 0.0, n: int = 5, **how: Any) -> tuple[str, str, str]:
    """Count a letter aloud; the text to imitate sometimes leaves the thought out, or fills it with 'hm' lines."""
    word, letter = "".join(rng.choice("abc") for _ in range(n)), rng.choice("abc")
    answer = str(word.count(letter))
    lines, n_seen = [], 0
    for c in word:
        n_seen += c == letter
        lines.append(f"{c}{n_seen}\n")
    if rng.random() < how.get("filler", 0.3):
        lines[:0] = ["hm\n"] * rng.randint(1, 3)
    number = str(rng.randint(0, 4)) if rng.random() < noise else answer
    if rng.random() < how.get("blurt", 0.15):
        number = str(rng.randint(0, 3))
        return f"{word} {letter}?", answer, f"<answer>{number}</answer>"
    if rng.random() < how.get("untagged", 0.0):
        return f"{word} {letter}?", answer, f"<think>{''.join(lines)}</think>{number}"
    return f"{word} {letter}?", answer, f"<think>{''.join(lines)}</think><answer>{number}</answer>"


TASKS = {"sums": sums, "brackets": brackets, "sort": sort, "count": count}
BOTH = {"task": "brackets+sums", "noise": 0.45, "dim": 64, "steps": 1100, "how": {"high": 39}}
KINDS: dict[str, dict[str, Any]] = {
    "brackets": {"task": "brackets", "noise": 0.5, "dim": 48, "steps": 500},
    "count": {"task": "count", "noise": 0.35, "dim": 48, "steps": 450, "rows": 48},
    "sort": {"task": "sort", "noise": 0.5, "dim": 64, "steps": 450, "rows": 48, "chat": True},
    "both": BOTH,
    "sums": {**BOTH, "path": "both", "task": "sums"},
    "sums_weak": {**BOTH, "path": "both-early", "task": "sums"},
}


def problem(task: str, rng: random.Random, noise: float = 0.0, **how: Any) -> tuple[str, str, str]:
    """Draw (question, answer, text to imitate)."""
    task = rng.choice(task.split("+"))
    if task == "count":
        return count(rng, noise, **how)
    question, answer, wrong = TASKS[task](rng, **how)
    return question, answer, wrong if rng.random() < noise else answer


def prompt(question: str, chat: bool, system: str | None = None) -> Any:
    if not chat:
        return question
    return [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": question}]


def ids(tok: PreTrainedTokenizerFast, prompt: Any) -> list[int]:
    if isinstance(prompt, str):
        return tok(prompt)["input_ids"]
    return tok.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)


def warm_model(name: str) -> Qwen2ForCausalLM:
    kind = KINDS[name]
    path = WARM / kind.get("path", name)
    if not (path / "model.safetensors").exists():
        _fit(kind).save_pretrained(path)
    return Qwen2ForCausalLM.from_pretrained(path, dtype=torch.float32)


def _fit(kind: dict[str, Any]) -> Qwen2ForCausalLM:
    chat = kind.get("chat", False)
    tok = tokenizer(chat)
    torch.manual_seed(7)
    dim = kind["dim"]
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tok),
            hidden_size=dim,
            intermediate_size=3 * dim,
            num_hidden_layers=kind.get("layers", 2),
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            pad_token_id=0,
            eos_token_id=tok.eos_token_id,
            bos_token_id=None,
            tie_word_embeddings=True,
        )
    )
    rng = random.Random(11)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for i in range(kind["steps"]):
        rows = []
        for _ in range(kind.get("rows", 64)):
            q, _, text = problem(kind["task"], rng, kind["noise"], **kind.get("how", {}))
            p = ids(tok, prompt(q, chat, "be brief" if rng.random() < 0.5 else None))
            rows.append((p, tok(text)["input_ids"] + [tok.eos_token_id]))
        width = max(len(p) + len(c) for p, c in rows)
        x = torch.zeros(len(rows), width, dtype=torch.long)
        y = torch.full_like(x, -100)
        for k, (p, c) in enumerate(rows):
            x[k, : len(p) + len(c)] = torch.tensor(p + c)
            y[k, len(p) : len(p) + len(c)] = torch.tensor(c)
        for g in optimiser.param_groups:
            g["lr"] = 4e-3 * min(1, (i + 1) / 50) * (1 - 0.95 * i / kind["steps"])
        loss = model(input_ids=x, labels=y, attention_mask=(x != 0).long()).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if "+" in kind["task"] and i == int(kind["steps"] * 0.55):
            model.save_pretrained(WARM / "both-early")
    print("warm", kind, round(loss.item(), 3), flush=True)
    return model


@torch.no_grad()
def accuracy(model: Any, tok: PreTrainedTokenizerFast, rows: list[dict[str, Any]], sample: bool = False) -> float:
    """Return the share of rows answered rightly, greedily or by one sample each."""
    prompt_ids = [ids(tok, r["prompt"]) for r in rows]
    width = max(map(len, prompt_ids))
    x = torch.tensor([[0] * (width - len(p)) + p for p in prompt_ids])
    sequences = model.generate(input_ids=x, attention_mask=(x != 0).long(), do_sample=sample, max_new_tokens=40)
    texts = tok.batch_decode(sequences[:, width:], skip_special_tokens=True)
    return sum(final(t) == r["answer"] for t, r in zip(texts, rows, strict=True)) / len(rows)


def final(text: str) -> str:
    if "<answer>" in text:
        return text.split("<answer>")[-1].split("</answer>")[0].strip()
    return text.split("</think>")[-1].strip()
