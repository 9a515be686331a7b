"""Draw docs/pictures/step_*.svg: one real step of GRPO on the tiny model, before and after.

    python scripts/pages/step.py

One training step of `tiny:arithmetic` on sums, seed 0. The group with the largest spread is drawn: its answers, rewards
and advantages, the probability of each
answer and of its tokens before and after the step, and the clip.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import torch

import gxpo
from gxpo.training.models import load

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
ROWS = [{"prompt": f"{a}+{b}=", "answer": a + b} for a in range(10, 60) for b in range(10, 60)]
SETTINGS = {"trainer.rollouts_every": 1, "eval.tasks": 1, "sampling.max_new_tokens": 24, "learner.dtype": "float32"}
ABOVE, BELOW, INK, GREY = "#2f6db5", "#d9822b", "#1f2328", "#8a9099"
TEXT = f'font-family="ui-monospace, Menlo, monospace" font-size="13" fill="{INK}"'


def is_right(completion: str, answer: int) -> bool:
    return completion.endswith(f"#{answer}")


@dataclass(frozen=True)
class Answer:
    """A rollout of the group: its text, reward and advantage, and the log-prob of each token before and after."""

    text: str
    reward: float
    advantage: float
    before: torch.Tensor
    after: torch.Tensor


def logprobs(model: Any, prompt: list[int], action: list[int]) -> torch.Tensor:
    """Return the log-prob [tokens] of each token of an answer."""
    ids = torch.tensor([prompt + action])
    with torch.no_grad():
        scores = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    return scores.gather(1, ids[0, len(prompt) :, None])[:, 0]


def trained_group() -> tuple[str, list[Answer]]:
    """Train one step; return prompt and answers of the group with the largest spread of rewards."""
    initial = load("tiny:arithmetic", task="sums").model
    with tempfile.TemporaryDirectory() as folder:
        run = gxpo.train("tiny:arithmetic", ROWS, "grpo", 1, is_right, out=f"{folder}/run", set=SETTINGS)
        lines = Path(folder, "run", "rollouts", "step-000001.jsonl").read_text().splitlines()
        groups: dict[str, list[dict[str, Any]]] = {}
        for record in map(json.loads, lines):
            groups.setdefault(record["group"], []).append(record)
        members = max(groups.values(), key=lambda g: statistics.pstdev(r["reward"] for r in g))
        answers = []
        for r in members:
            turn = r["turns"][0]
            before, after = (logprobs(m, r["prompt"], turn["action"]) for m in (initial, run.model))
            answers.append(Answer(turn["action_text"], r["reward"], r["info"]["advantage"], before, after))
        return members[0]["prompt_text"], answers


def svg(width: int, height: int, shapes: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="#ffffff"/>', *shapes, "</svg>\n"])


def label(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" {TEXT} {more}>{escape(text)}</text>'


def draw_group(prompt: str, answers: list[Answer]) -> str:
    """Draw a row per answer: text, reward, advantage as a bar, probability before and after."""
    scale, zero, top, row = 26.0, 400, 62, 27
    widest = max(abs(a.advantage) for a in answers)
    heads = ((16, "answer"), (232, "reward"), (zero, "advantage"), (560, "probability, before and after"))
    shapes = [label(16, 20, f"prompt {prompt}", 'font-weight="bold"')]
    shapes += [
        label(x, 46, text, f'fill-opacity="0.6" text-anchor="{"middle" if x == zero else "start"}"')
        for x, text in heads
    ]
    for i, a in enumerate(answers):
        y = top + row * i + 12
        colour, length = (ABOVE if a.advantage > 0 else BELOW), scale * abs(a.advantage) / widest * 2
        x = zero if a.advantage > 0 else zero - length
        before, after = (float(p.sum().exp()) for p in (a.before, a.after))
        sign = "\u2191" if after > before else "\u2193"
        shapes += [
            label(16, y, a.text),
            label(244, y, f"{a.reward:.0f}"),
            f'<rect x="{x:.0f}" y="{y - 11}" width="{length:.0f}" height="14" fill="{colour}"/>',
            label(zero + 62, y, f"{a.advantage:+.2f}"),
            label(560, y, f"{before:.3f}  {sign}  {after:.3f}", f'style="fill:{colour}"'),
        ]
    bottom = top + row * len(answers)
    shapes.append(f'<path d="M{zero} {top - 6} V{bottom - 6}" stroke="{GREY}"/>')
    return svg(800, bottom + 6, shapes)


def draw_tokens(answers: list[Answer]) -> str:
    """Draw each token of the first wrong and the first right answer, with its probability before and after."""
    shapes = [label(16, 20, "probability of each token, before (above) and after (below)", 'fill-opacity="0.6"')]
    examples = [next(a for a in answers if a.reward == r) for r in (0, 1)]
    for i, a in enumerate(examples):
        y, colour = 66 + 90 * i, (ABOVE if a.advantage > 0 else BELOW)
        shapes.append(label(16, y, f"reward {a.reward:.0f}"))
        for t, token in enumerate([*a.text, "end"]):
            x, before, after = 106 + 38 * t, float(a.before[t].exp()), float(a.after[t].exp())
            opacity = min(1.0, abs(math.log(after / before)))
            shapes += [
                f'<rect x="{x}" y="{y - 17}" width="34" height="24" rx="3" fill="{colour}" '
                f'fill-opacity="{opacity:.2f}" stroke="{GREY}" stroke-width="0.5"/>',
                label(x + 17, y, token, 'text-anchor="middle"'),
                label(x + 17, y - 23, f"{before:.2f}", 'text-anchor="middle" style="font-size:10px"'),
                label(x + 17, y + 20, f"{after:.2f}", 'text-anchor="middle" style="font-size:10px"'),
            ]
    return svg(800, 190, shapes)


def draw_clip(low: float = 0.8, high: float = 1.2) -> str:
    """Draw the clipped objective over the ratio, for an answer above and one below the mean."""
    shapes = []
    for panel, above in enumerate((True, False)):
        left, width, top, height = 40 + 390 * panel, 330, 40, 110
        colour = ABOVE if above else BELOW
        gain = [(r / 100, min(r / 100, high) if above else -max(r / 100, low)) for r in range(50, 151)]
        least, most = min(g for _, g in gain), max(g for _, g in gain)
        line = " ".join(
            f"{left + width * (r - 0.5):.1f},{top + height * (most - g) / (most - least):.1f}" for r, g in gain
        )
        title = "above the mean: flat from 1.2 on" if above else "below the mean: flat down from 0.8"
        shapes += [
            label(left, 20, title),
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>',
            f'<path d="M{left} {top + height + 10} H{left + width}" stroke="{GREY}"/>',
        ]
        for x in (0.5, 0.8, 1.0, 1.2, 1.5):
            shapes.append(label(left + width * (x - 0.5), top + height + 28, f"{x:g}", 'text-anchor="middle"'))
    return svg(800, 190, shapes)


def main() -> None:
    prompt, answers = trained_group()
    for a in answers:
        before, after = (float(p.sum().exp()) for p in (a.before, a.after))
        print(f"{prompt}{a.text}  {a.reward:.0f}  {a.advantage:+.3f}  {before:.3f} {after:.3f}")
    for name, picture in (
        ("group", draw_group(prompt, answers)),
        ("tokens", draw_tokens(answers)),
        ("clip", draw_clip()),
    ):
        (PICTURES / f"step_{name}.svg").write_text(picture)


if __name__ == "__main__":
    main()
