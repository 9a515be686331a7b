"""The confidence of prompts, against the learner's own log-probs of each prompt written out as an answer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tests.learning.llamas import VOCABULARY, clean_llama, random_forest

from gxpo.algorithms.signals.policy_outputs import prompt_confidence, prompts_of
from gxpo.base.errors import GxpoError
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.definition import kind_of

PromptConfidence = kind_of(prompt_confidence)

LEARNER = TorchLearner(clean_llama(), lr=0.0)
TOOLS = SimpleNamespace(learner=LEARNER, decode=str, blank_id=0, step=1, seed=0)


def confidence(ids):
    """By the model itself, a token at a time."""
    if len(ids) < 2:
        return 1.0
    with torch.no_grad():
        logprob = LEARNER.model(torch.tensor([ids])).logits[0].double().log_softmax(1)
    return float(torch.stack([logprob[i, ids[i + 1]] for i in range(len(ids) - 1)]).mean().exp())


def record(i, prompt, **fields):
    turn = {"action": [3, 4], "logprob": [-1.0, -1.0]}
    own = {"schema": "gxpo.rollouts/1", "group": f"g{i % 2}", "id": f"t{i}", "prompt": prompt, "turns": [turn]}
    return own | {"reward": 1.0} | fields


def test_it_is_the_models_own_geometric_mean():
    prompts = [[1, 5, 6, 7], [1, 5, 6, 7], [1, 5, 9], [2], [1, 5, 6]]
    forest = Forest.from_records([record(i, p, sampling={"temperature": 0.5}) for i, p in enumerate(prompts)])
    found = PromptConfidence().compute(forest, {}, TOOLS)["prompt_confidence"]
    assert found.tolist() == pytest.approx([confidence(p) for p in prompts], abs=1e-9)
    assert len(prompts_of(forest)[0]) < len(prompts), "a prompt that answers share is read once"


@pytest.mark.parametrize("seed", range(6))
def test_of_any_forest_it_is_what_stands_before_the_first_action(seed):
    forest = random_forest(seed)
    found = PromptConfidence().compute(forest, {}, TOOLS)["prompt_confidence"]
    for r in range(forest.n_trajectories):
        entries = forest.path_of(r)
        expected = 1.0
        if len(entries):
            node = int(forest.token_node[forest.path_token[entries[0]]])
            expected = confidence(forest.context(int(forest.parent[node])))
        assert float(found[r]) == pytest.approx(expected, abs=1e-9)


def test_order_does_not_matter_and_nothing_gives_nothing():
    forest = Forest.from_records([record(i, [1, 2 + i % 3, i % VOCABULARY]) for i in range(6)])
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    found = PromptConfidence().compute(forest, {}, TOOLS)["prompt_confidence"]
    again = PromptConfidence().compute(forest.select(order), {}, TOOLS)["prompt_confidence"]
    assert torch.allclose(again, found[order], atol=1e-12)
    assert PromptConfidence().compute(Forest.from_records([]), {}, TOOLS)["prompt_confidence"].shape == (0,)


def test_text_without_ids_is_refused():
    turn = {"action_text": "yes"}
    text = {"schema": "gxpo.rollouts/1", "group": "g", "id": "t", "prompt_text": "how many?", "turns": [turn]}
    with pytest.raises(GxpoError, match="needs token ids"):
        PromptConfidence().compute(Forest.from_records([text | {"reward": 1.0}]), {}, TOOLS)
