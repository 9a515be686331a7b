"""A judge that is a model in this process."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tests.environments.rewards.scored_tasks import Source

from gxpo.base.judges import meter
from gxpo.environments.local_judge import LocalJudge
from gxpo.environments.rewards import RewardSet
from gxpo.environments.rewards.judge import JudgeFailure
from gxpo.environments.rewards.judged import Pairwise, Rubric
from gxpo.forest.forest import Forest
from gxpo.models.cache import cache_directory
from gxpo.models.tiny import character_tokenizer
from gxpo.parts.protocols import Task
from gxpo.training.models.load import load

ASKED = [{"role": "user", "content": "How good?"}]


def grown(groups, compared=None):
    """{group: [text, ...]} -> forest, texts, tasks."""
    records = [
        {"schema": "gxpo.rollouts/1", "group": g, "task": g, "id": f"{g}/{i}", "prompt": [1],
         "turns": [{"action": [2]}], "compared": (compared or {}).get(f"{g}/{i}", True)}
        for g, texts in groups.items() for i in range(len(texts))
    ]  # fmt: skip
    forest = Forest.from_records(records)
    return forest, [t for texts in groups.values() for t in texts], [Task(g, f"task {g}") for g in forest.task]


def judged(judge, groups, compared=None):
    with RewardSet.make(judge, source=Source(lambda text, task: {"correct": 0.0}, trusted=True)) as rewards:
        return rewards.score(*grown(groups, compared)).outcome, rewards


# ---------------------------------------------------------------- local models
def test_tiny_model_judges_greedily_and_nonsense_is_unscored():
    cold = load("tiny:cold", task="arithmetic")
    judge = LocalJudge(cold.model, cold.tokenizer, max_new_tokens=4)
    ids = cold.tokenizer("How good?\n", return_tensors="pt").input_ids
    with torch.no_grad():  # the first token by hand
        first = int(cold.model(input_ids=ids).logits[0, -1].argmax())
    outcome, rewards = judged(Rubric(judge), {"g": ["4", "5"]})
    assert outcome.isnan().all() and rewards.counts["nonsense"] == 2
    with pytest.raises(JudgeFailure, match="cut off after 4 tokens: raise max_new_tokens"):
        judge.ask(ASKED)
    cold.model.generation_config.eos_token_id = first
    before = meter.tokens
    assert judge.ask(ASKED) == cold.tokenizer.decode([first], skip_special_tokens=True)
    assert meter.tokens - before == 1
    with pytest.raises(JudgeFailure, match="leaves no room"):
        judge.ask([{"role": "user", "content": "x" * 3000}])


@pytest.mark.parametrize("template", [None, "{% for m in messages %}{{ m.content + eos_token }}{% endfor %}"])
def test_what_is_judged_writes_no_control_token_of_the_judge(template):
    judged_ids = []

    def generate(ids, **kwargs):
        judged_ids.append(ids[0].tolist())
        return ids

    tokenizer = character_tokenizer()
    tokenizer.chat_template = template
    ends = SimpleNamespace(eos_token_id=tokenizer.eos_token_id)
    judge = LocalJudge(SimpleNamespace(config=None, device="cpu", generate=generate, generation_config=ends), tokenizer)
    for text in ("How good is x?", "How good is a<eos>b?"):
        judge.ask([{"role": "user", "content": text}])
    assert (
        judged_ids[0].count(tokenizer.eos_token_id)
        == judged_ids[1].count(tokenizer.eos_token_id)
        == (template is not None)
    )
    assert "a<eos>b?" in tokenizer.decode(judged_ids[1])


@pytest.mark.thorough
def test_smollm2_judges_a_pair_when_it_is_on_this_machine():
    if not (cache_directory() / "smollm2-135m" / "model.safetensors").is_file():
        pytest.skip("smollm2-135m is not in the cache of models: `gxpo train --set model=smollm2-135m` fetches it")
    model = load("smollm2-135m", task="arithmetic")
    judge = LocalJudge(model.model, model.tokenizer, max_new_tokens=8)
    assert "7" in judge.ask([{"role": "user", "content": "Say the number seven as a digit."}])
    for reward in (Pairwise(judge, workers=1), Rubric(judge, workers=1)):
        outcome, rewards = judged(reward, {"g": ["4", "a boat"]})
        scored = outcome[outcome.isfinite()]
        assert bool(((scored >= 0) & (scored <= 1)).all()) and len(scored) + rewards.counts["nonsense"] == 2
