"""Tokenizer, tasks and warm-started models of the corpus of TRL runs: characters, two layers, sums and reversals."""

from __future__ import annotations

import hashlib
import json
import random
import zlib
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WARM = Path("corpus/warm")
CHARACTERS = "0123456789+-*/=() abcdefghijklmnopqrstuvwxyz.,:?#>\n"
ROLES = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
CHAT = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
# roles in plain letters, as base models are often prompted
PLAIN_CHAT = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
WORDS = ["ok", "so", "hmm", "well", "now", "see"]


def tokenizer(template: str | None = None) -> PreTrainedTokenizerFast:
    vocabulary = {t: i for i, t in enumerate(["<pad>", "<eos>", "<unk>", *ROLES])}
    for c in CHARACTERS:
        vocabulary.setdefault(c, len(vocabulary))
    t = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    t.decoder = decoders.Fuse()
    fast_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=t,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        additional_special_tokens=ROLES,
    )
    fast_tokenizer.chat_template = template
    return fast_tokenizer


def problem(task: str, rng: random.Random, noise: float = 0.0, **how: Any) -> tuple[str, str, str]:
    """Draw (question, answer, text that the warm start imitates); with probability `noise` that text holds a wrong
    answer.

    `words` puts words before the answer, their mean number; the answer then stands behind '#', except in a share
    `unmarked`.
    """
    if task in ("reverse", "copy"):
        word = "".join(rng.choice("abcdefgh") for _ in range(how.get("n", 4)))
        question, answer = word + ">", word[::-1] if task == "reverse" else word
        i = rng.randrange(len(word))
        wrong = answer[:i] + rng.choice("abcdefgh") + answer[i + 1 :]
    else:
        x, y = rng.randint(0, how.get("first", 99)), rng.randint(0, how.get("second", 9))
        question, answer = f"{x}+{y}=", str(x + y)
        wrong = str(max(0, x + y + rng.choice([-10, -2, -1, 1, 2, 10])))
        if task == "class":  # a rule too hard to learn here, and one class is more common
            question, answer = f"{x}+{y}?", "yes" if zlib.crc32(f"{x},{y}".encode()) % 10 < how["share"] else "no"
            wrong = {"yes": "no", "no": "yes"}[answer]
    text = wrong if rng.random() < noise else answer
    if "words" in how:
        count = how.get("least", 0) + min(int(rng.expovariate(1 / how["words"])), how.get("most", 6))
        mark = "" if rng.random() < how.get("unmarked", 0.0) else "#"
        text = " ".join([*(rng.choice(WORDS) for _ in range(count)), mark + text])
    return question, answer, text


def render(question: str, completion: str, dress: str, tok: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """Return token ids of prompt and completion in the dress that the warm start is to learn."""

    def ids(text: str) -> list[int]:
        return tok(text)["input_ids"]

    eos = [tok.eos_token_id]
    if dress == "chat":
        return ids(f"<|user|>{question}<|end|><|assistant|>"), ids(completion) + eos
    if dress == "chat_end":  # ends its turns with <|end|>, as instruction models do
        return ids(f"<|user|>{question}<|end|><|assistant|>"), ids(completion + "<|end|>")
    if dress == "plain_chat":  # the whole dialogue is learnt, roles included
        return [], ids(f"user: {question}\nassistant: {completion}") + eos
    if dress == "packed":  # documents joined by newlines, no end token anywhere
        return ids(question), ids(completion + "\n")
    return ids(question), ids(completion) + eos


def _fit(model: LlamaForCausalLM, warm: dict[str, Any], tok: PreTrainedTokenizerFast) -> None:
    rng = random.Random(warm.get("seed", 0))
    steps, rate = warm["steps"], warm.get("lr", 3e-3)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    for i in range(steps):
        rows = []
        for _ in range(64):
            question, _, completion = problem(warm["task"], rng, **warm.get("how", {}))
            p, c = render(question, completion, warm.get("dress", "bare"), tok)
            if warm.get("dress") == "plain_chat" and rng.random() < 0.4:
                c = c[len("user: ") :]  # documents of the web are cut anywhere
            if warm.get("dress") == "packed":
                for _ in range(2):
                    question, _, completion = problem(warm["task"], rng, **warm.get("how", {}))
                    more = render(question, completion, "packed", tok)
                    c = c + more[0] + more[1]
            rows.append((p, c))
        width = max(len(p) + len(c) for p, c in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        labels = torch.full_like(ids, -100)
        for k, (p, c) in enumerate(rows):
            ids[k, : len(p) + len(c)] = torch.tensor(p + c)
            labels[k, len(p) : len(p) + len(c)] = torch.tensor(c)
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1, (i + 1) / 40) * (1 - 0.9 * i / steps)
        loss = model(input_ids=ids, labels=labels, attention_mask=(ids != 0).long()).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def warm_model(warm: dict[str, Any]) -> LlamaForCausalLM:
    """Load the model of a recipe after supervised steps; made once, and kept where TRL finds its reference, too."""
    tok = tokenizer()
    dim = warm.get("dim", 64)
    config = LlamaConfig(
        vocab_size=len(tok),
        hidden_size=dim,
        intermediate_size=4 * dim,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    torch.manual_seed(warm.get("seed", 0))
    model = LlamaForCausalLM(config)
    key = hashlib.sha256(json.dumps(warm, sort_keys=True).encode()).hexdigest()[:12]
    path = WARM / key
    if not (path / "model.safetensors").exists():
        _fit(model, warm, tok)
        model.save_pretrained(path)
    return LlamaForCausalLM.from_pretrained(path)


@torch.no_grad()
def greedy_accuracy(model: Any, tok: PreTrainedTokenizerFast, prompts: list[list[int]], answers: list[str]) -> float:
    """Return the share of greedy answers that hold the right one last (after '#', where there is one)."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    sequences = model.generate(
        input_ids=ids, attention_mask=(ids != 0).long(), do_sample=False, max_new_tokens=40, eos_token_id=[1, 6]
    )
    texts = tok.batch_decode(sequences[:, width:], skip_special_tokens=True)
    right = [t.split("\n")[0].split("#")[-1].split(": ")[-1].strip() == a for t, a in zip(texts, answers, strict=True)]
    return sum(right) / len(right)
