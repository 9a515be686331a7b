"""How much an answer relies on its hint: by the policy's log-probs under both prompts."""

from __future__ import annotations

import torch
from tests.learning.llamas import clean_llama

import gxpo
from gxpo.algorithms.signals import SignalTools
from gxpo.algorithms.signals.policy_outputs import HintReliance
from gxpo.learning.torch import TorchLearner

PLAIN, HINTED = (5, 6), (5, 6, 7, 8)


def record(name: str, prompt: tuple[int, ...], action: list[int], **info: str) -> dict:
    return {"schema": "gxpo.rollouts/1", "task": "t", "group": name[0], "id": name, "prompt": list(prompt),
            "turns": [{"action": action}], "reward": 1.0, "success": True, "info": info}  # fmt: skip


def test_reliance_is_the_difference_of_two_readings() -> None:
    learner = TorchLearner(clean_llama(vocab_size=64), lr=0.0)
    actions = [[9, 10, 11], [12, 13]]
    rows = [record("h/0", (5, 20), [21]), *(record(f"r/{i}", HINTED, a, critique="h/0") for i, a in enumerate(actions))]
    forest = gxpo.Forest.from_records(rows)
    tools = SignalTools(learner, lambda ids: "", 2, reword=lambda task, template, fields: PLAIN)
    proximal = learner.outputs(forest, ("logprob",))["logprob"]
    reliance = HintReliance().compute(forest, {"proximal_logprob": proximal}, tools)["reliance"]
    expected = []
    for action in actions:
        means = [
            float(learner.outputs(gxpo.Forest.from_completions([list(p)], [[action]]), ("logprob",))["logprob"].mean())
            for p in (PLAIN, HINTED)
        ]
        expected.append(means[0] - means[1])
    assert reliance.isnan().tolist() == [True, False, False]
    assert torch.allclose(reliance[1:].float(), torch.tensor(expected), atol=1e-5) and abs(expected[0]) > 1e-3


def test_a_prompt_that_cannot_be_rewritten_is_unknown() -> None:
    forest = gxpo.Forest.from_records([record("r/0", HINTED, [9], critique="h/0")])
    tools = SignalTools(None, lambda ids: "", 2, reword=lambda *_: None)
    assert HintReliance().compute(forest, {}, tools)["reliance"].isnan().tolist() == [True]
