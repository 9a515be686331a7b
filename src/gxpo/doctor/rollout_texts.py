"""Text statistics of rollouts: unfinished or overrun completions, template markup, repeated prompts, leaks."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gxpo.doctor.rollouts import Rollouts

Flags = NDArray[np.bool_]

_MARKUP = re.compile(
    r"<\|(?:im_start|im_end|endoftext|eot_id|start_header_id|end_header_id|begin_of_text|user|assistant|system|end)\|>"
    r"|\[/?INST\]|<</?SYS>>|</?s>|<(?:start|end)_of_turn>|<\uff5c[^\uff5c]{1,40}\uff5c>"
    r"|^#{2,3} ?(?:Instruction|Response|Input|Human|Assistant)\b",
    re.MULTILINE,
)
_END_TOKENS = re.compile(r"(?:\s*(?:<\|(?:im_end|endoftext|eot_id|end)\|>|</s>|<end_of_turn>))+\s*")
_ROLE = re.compile(r"^(?:(?:user|assistant|system|human)[ \t]*(?::|$)|(?:question|problem|q)[ \t]*\d*:)", re.I | re.M)
_ANSWER = re.compile(r"\\boxed\s*\{|####|</answer>|final answer (?:is|:)", re.IGNORECASE)
_OPEN_END = re.compile(
    r"(?:[,;:+*/=(\[{<&|\\^-]|\b(?:and|or|the|a|an|of|to|is|so|then|we|that|because))\s*$", re.IGNORECASE
)
_TAGS = re.compile(r"<(/?)(think|answer|reasoning|tool_call|code)>", re.IGNORECASE)
_PAIRS = {")": "(", "]": "[", "}": "{"}


def markup(texts: list[str]) -> Flags:
    """Flag texts [n] that hold tokens or headings of a template (`<|im_start|>`, `[INST]`, `### Instruction`).

    Tokens that end a text, and padding after them, are no markup inside it.
    """
    matches = [_MARKUP.search(t) for t in texts]
    return np.array(
        [m is not None and not _END_TOKENS.fullmatch(t, m.start()) for m, t in zip(matches, texts, strict=True)],
        dtype=bool,
    )


def closed_only(texts: list[str]) -> tuple[str, Flags]:
    """Tag that most texts [n] close without having opened it, with flags of these: "" and none where there is no such.

    A chat template that ends in <think> leaves completions with </think> alone.
    """
    flags_by_tag: dict[str, list[bool]] = {}
    for i, text in enumerate(texts):
        tags = [(closing, name.lower()) for closing, name in _TAGS.findall(text)]
        for name in {name for closing, name in tags if closing and ("", name) not in tags}:
            flags_by_tag.setdefault(name, [False] * len(texts))[i] = True
    if not flags_by_tag:
        return "", np.zeros(len(texts), dtype=bool)
    name = max(flags_by_tag, key=lambda n: sum(flags_by_tag[n]))
    return name, np.array(flags_by_tag[name])


def unfinished(texts: list[str]) -> Flags:
    """Flag texts [n] that break off: at an operator, comma or article, or with an open bracket, tag or fence.

    A text that ends in a word or a number counts as finished, as many answers do.
    """
    return np.array([_unfinished(t) for t in texts], dtype=bool)


def _unfinished(text: str) -> bool:
    if not text.strip():
        return False
    if _OPEN_END.search(text[-40:]) or text.count("```") % 2:
        return True
    # a closing tag ends the first open one of its name; what remains open was cut
    tags: list[str] = []
    for closing, name in _TAGS.findall(text):
        if not closing:
            tags.append(name)
        elif name in tags:
            tags.remove(name)
    opened: list[str] = []
    # of the end alone: a bracket that was never closed long before is no sign of a cut
    for c in text[-400:]:
        if c in "([{":
            opened.append(c)
        elif c in _PAIRS and opened and opened[-1] == _PAIRS[c]:
            opened.pop()
    return bool(tags) or "{" in opened or "(" in opened


def goes_on(r: Rollouts) -> Flags:
    """Flag completions [n] that go on after an answer: a role's name or a new question at the head of a later line,
    a second final answer, the prompt's own beginning again, or an end that repeats a piece three times."""
    return np.array([_goes_on(p, c) for p, c in zip(r.prompt, r.completion, strict=True)], dtype=bool)


def _goes_on(prompt: str, completion: str) -> bool:
    body = completion.strip()
    if any(m.start() for m in _ROLE.finditer(body)):
        return True
    if len(_ANSWER.findall(body)) > 1 or repeats(body):
        return True
    opening = prompt.strip()[:40]
    return len(opening) >= 12 and opening in body


def repeats(text: str, times: int = 3, longest: int = 200) -> bool:
    """True if the text ends with one piece at least `times` in a row, over 12 characters or more in all."""
    end = text.rstrip()[-longest * times :]
    for size in range(1, min(longest, len(end) // times) + 1):
        piece = end[-size:]
        # short pieces more often: "no no no" is no loop
        n = max(times, -(-12 // size))
        if piece.strip() and len(end) >= n * size and end.endswith(piece * n):
            return True
    return False


def normal(prompt: str) -> str:
    """Normalise a prompt: lower case, single spaces."""
    return " ".join(prompt.lower().split())


@dataclass(frozen=True)
class Repeats:
    """Repeated training prompts in the sample.

    groups      groups in it
    prompts     distinct prompts of these
    within      share of groups whose prompt another group of the same step has, too
    steps_each  mean number of steps that a prompt was seen in (of the sample: a lower bound)
    """

    groups: int
    prompts: int
    within: float
    steps_each: float


def repeated_prompts(r: Rollouts) -> Repeats:
    """Count how often training prompts come again. Groups made by equal prompts can't repeat one within a step."""
    prompt_of_group: dict[int, tuple[int, str]] = {}
    for i in np.flatnonzero((r.group >= 0) & ~r.held_out).tolist():
        prompt_of_group.setdefault(int(r.group[i]), (int(r.step[i]), normal(r.prompt[i])))
    pairs = list(prompt_of_group.values())
    if not pairs:
        return Repeats(0, 0, float("nan"), float("nan"))
    counts: dict[tuple[int, str], int] = {}
    for pair in pairs:
        counts[pair] = counts.get(pair, 0) + 1
    prompts = {p for _, p in pairs}
    within = sum(counts[pair] > 1 for pair in pairs) / len(pairs)
    return Repeats(len(pairs), len(prompts), within, len(counts) / len(prompts))


@dataclass(frozen=True)
class Overlap:
    """Leak of training prompts into the evaluation.

    held_out  distinct held-out prompts
    shared    those of them that are training prompts
    rows      (held-out row, training row) of each of these
    """

    held_out: int
    shared: int
    rows: list[tuple[int, int]]


def overlap(r: Rollouts) -> Overlap:
    """Find held-out prompts that are training prompts, apart from case and white space.

    Games against others don't count: they begin with the same few positions, and the opponents make the difference.
    """
    train: dict[str, int] = {}
    held_out: dict[str, int] = {}
    for i, p in enumerate(r.prompt):
        if p.strip() and r.observation[i] is not None:
            (held_out if r.held_out[i] else train).setdefault(normal(p), i)
    rows = [(i, train[p]) for p, i in held_out.items() if p in train]
    return Overlap(len(held_out), len(rows), rows)
