"""SDPO's teacher and loss against plain loops that do what the authors' code does."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.learning.llamas import clean_llama

import gxpo
from gxpo.algorithms.objectives.distillation import Distillation
from gxpo.algorithms.signals import Signals, SignalTools
from gxpo.algorithms.signals.self_teacher import SelfTeacher
from gxpo.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import PolicyTokens

TEMPLATE = "{prompt} [shown] {solution} [now solve it]"
QUESTIONS = {"g": "add?", "h": "halve?"}
# of each rollout: group, reward, text
ROLLOUTS = [
    ("g", 0.0, "one"),
    ("g", 1.0, "<think>one and\none</think>\n two"),
    ("h", 1.0, "<think>half</think>three"),
    ("g", 1.0, "<think>a<think>b</think>c</think> two!"),
    ("h", 0.0, "<think>four"),
    ("g", 0.0, "three"),
]


def ids(text: str) -> list[int]:
    return [ord(c) for c in text]


def rollouts() -> Forest:
    records = [
        {
            "schema": "gxpo.rollouts/1",
            "group": group,
            "task": group,
            "id": str(i),
            "prompt": ids(f"U:{QUESTIONS[group]}A:"),
            "turns": [{"action": ids(text), "logprob": [-1.0] * len(text)}],
            "reward": reward,
            "success": reward >= 0.5,
        }
        for i, (group, reward, text) in enumerate(ROLLOUTS)
    ]
    return Forest.from_records(records)


def theirs() -> list[list[int] | None]:
    """What stands before each rollout's own tokens for the teacher; None: it is not taught."""
    out: list[list[int] | None] = []
    for i, (group, _, _) in enumerate(ROLLOUTS):
        solved = [j for j, (g, reward, _) in enumerate(ROLLOUTS) if g == group and reward >= 0.5 and j != i]
        if not solved:
            out.append(None)
            continue
        text, kept_text = ROLLOUTS[solved[0]][2], ""
        while "<think>" in text and "</think>" in text.partition("<think>")[2]:
            before, _, rest = text.partition("<think>")
            kept_text += before
            text = rest.partition("</think>")[2].lstrip()
        message = TEMPLATE.replace("{prompt}", QUESTIONS[group]).replace("{solution}", kept_text + text)
        out.append(ids(f"U:{message}A:"))
    return out


class Watched:
    """A teacher that remembers what it was given to read."""

    def __init__(self) -> None:
        self.read: list[Forest] = []

    def outputs(self, forest: Forest, names: Any) -> dict[str, torch.Tensor]:
        self.read.append(forest)
        n = forest.n_entries
        actual = (torch.zeros(n, 1), torch.zeros(n, 2), torch.zeros(n))
        return dict(zip(names, actual, strict=True))


def written_out(forest: Forest, p: int) -> list[int]:
    token = int(forest.path_token[p])
    node = int(forest.token_node[token])
    own_token = forest.token[int(forest.first_token[node]) : token].tolist()
    return forest.context(int(forest.parent[node])) + own_token


def test_the_prompt_of_the_teacher() -> None:
    """lasgroup/SDPO@0e6d510 verl/trainer/ppo/ray_trainer.py lines 645-760, verl/trainer/config/actor/actor.yaml lines
    107-147: the first success of the group that is not the rollout itself, its thinking taken out, in the user's
    message by a template; the rollout's own tokens follow."""
    forest, watched = rollouts(), Watched()

    def asked(task: str, template: str, said: Any) -> list[int]:
        return ids(f"U:{template.format(prompt=QUESTIONS[task], **said)}A:")

    part = SelfTeacher(template=TEMPLATE)
    part.memory["model"] = watched
    tools = SignalTools(None, lambda t: "".join(map(chr, t)), 0, reword=asked)  # type: ignore[arg-type]
    actual = part.compute(forest, Signals.of(forest), tools)
    (read,) = watched.read
    expected = {i: context for i, context in enumerate(theirs()) if context is not None}
    taught = [bool(actual["teacher_entropy"][forest.path_of(i)].isfinite().all()) for i in range(len(ROLLOUTS))]
    assert taught == [i in expected for i in range(len(ROLLOUTS))] == [True, True, False, True, True, True]
    seen_outs = {}
    for r in range(read.n_trajectories):
        entries = read.path_of(r)
        text = "".join(chr(t) for t in read.token[read.path_token[entries]].tolist())
        seen_outs[next(i for i, (_, _, own_value) in enumerate(ROLLOUTS) if own_value == text)] = written_out(
            read, int(entries[0])
        )
    assert seen_outs == expected
    assert "".join(map(chr, expected[0])) == "U:add? [shown] two [now solve it]A:"
    assert "".join(map(chr, expected[1])) == "U:add? [shown] c</think> two! [now solve it]A:"  # to the first end tag


@pytest.mark.parametrize(("top_k", "alpha"), [(22, 0.5), (22, 0.25), (22, 0.0), (22, 1.0), (5, 0.5)])
def test_the_loss(top_k: int, alpha: float) -> None:
    """verl/trainer/ppo/core_algos.py, `compute_self_distillation_loss`: buckets and a tail, the two divergences to the
    mixture, alpha of the one and 1 - alpha of the other, min(ratio, 2), a mean over the tokens that are taught. Of 23
    ids 22 leave a tail of one, so that whose likeliest ids they are does not matter; of 5 they are the teacher's here
    and the student's there, the stated difference."""
    torch.manual_seed(3)
    records = [
        {
            "schema": "gxpo.rollouts/1",
            "group": "g",
            "id": str(i),
            "prompt": [1, 2],
            "turns": [{"action": action, "logprob": [-1.0] * len(action)}],
            "reward": reward,
            "success": bool(reward),
        }
        for i, (action, reward) in enumerate([([5, 6, 7], 0.0), ([9], 1.0), ([4, 3], 1.0)])
    ]
    forest = Forest.from_records(records)
    student, old = TorchLearner(clean_llama(0), lr=0.1), TorchLearner(clean_llama(2), lr=0.1)
    m = gxpo.method("sdpo_self", {"objective.alpha": alpha, "signal.self_teacher.top_k": top_k})
    (part,) = m.signals.values()
    part.memory["model"] = TorchLearner(clean_llama(1), lr=0.0)
    tools = SignalTools(student, lambda t: "", 0, reword=lambda *_: None)
    signals = Signals.of(forest, part.compute(forest, Signals.of(forest), tools))
    constants = {name: signals[name] for name in ("teacher_ids", "teacher_logprob")}
    term = Distillation(alpha=alpha)
    now = student.outputs(forest, ("logprob", term.name), constants=constants)
    below = old.outputs(forest)["logprob"]
    policy = PolicyTokens(now["logprob"], below, proximal_logprob=below, outputs=now)
    blank = torch.ones(forest.n_entries, dtype=torch.float64)
    actual = float(m.loss(forest, policy, advantages=blank, signals=signals).value)

    def model(seed: int, context: list[int]) -> list[float]:
        with torch.no_grad():
            return clean_llama(seed)(torch.tensor([context])).logits[0, -1].log_softmax(-1).tolist()

    losses = []
    for r, peer in ((0, 1), (1, 2), (2, 1)):
        output = [1, 2, *records[peer]["turns"][0]["action"], 1, 2]
        action = records[r]["turns"][0]["action"]
        for t, chosen in enumerate(action):
            s, u = model(0, [1, 2, *action[:t]]), model(1, output + action[:t])
            kept_value = sorted(range(len(u)), key=lambda v: -u[v])[:top_k]
            p = [math.exp(s[v]) for v in kept_value]
            q = [math.exp(u[v]) for v in kept_value]
            p, q = [*p, 1 - math.fsum(p)], [*q, 1 - math.fsum(q)]
            if alpha == 0.0:
                far = math.fsum(b * math.log(b / a) for a, b in zip(p, q, strict=True))
            elif alpha == 1.0:
                far = math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
            else:
                mixed = [(1 - alpha) * a + alpha * b for a, b in zip(p, q, strict=True)]
                of_teacher = math.fsum(b * math.log(b / m) for b, m in zip(q, mixed, strict=True))
                of_student = math.fsum(a * math.log(a / m) for a, m in zip(p, mixed, strict=True))
                far = (1 - alpha) * of_student + alpha * of_teacher
            ratio = math.exp(s[chosen] - model(2, [1, 2, *action[:t]])[chosen])
            losses.append(far * min(ratio, 2.0))
    assert actual == pytest.approx(math.fsum(losses) / len(losses), abs=1e-9)


def test_sdpo_self_has_the_settings_of_the_code() -> None:
    """verl/trainer/config/actor/actor.yaml, `self_distillation`, and verl/trainer/config/sdpo.yaml: alpha 0.5, the top
    100 ids and a tail, ratios up to 2, a teacher that takes 0.05 of the policy after each step."""
    m = gxpo.method("sdpo_self")
    (term,), (teacher,) = (list(parts.values()) for parts in (dict(m.terms), m.signals))
    assert (term.alpha, term.ratio_max, term.mean_over) == (0.5, 2.0, "taught")
    assert (teacher.top_k, teacher.rate) == (100, 0.05)
