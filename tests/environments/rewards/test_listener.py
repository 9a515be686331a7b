"""The listener's probability of the right answer, against a forward pass of its own and the card's figures."""

import math

import pytest
import torch
from tests.environments.rewards.scored_tasks import Source
from tests.environments.rewards.test_judged import grown

from gxpo.environments.local_judge import LocalJudge
from gxpo.environments.rewards import RewardSet
from gxpo.environments.rewards.judge import judge_reward
from gxpo.parts.protocols import Task
from gxpo.training.models.load import load


@pytest.fixture(scope="module")
def cold():
    torch.manual_seed(0)
    return load("tiny:cold", task="arithmetic")


def test_the_log_prob_of_an_answer_is_the_models(cold):
    ids = torch.tensor([cold.tokenizer("3+4=7#7").input_ids])  # with what the tokenizer puts before a text
    with torch.no_grad():
        logits = cold.model(input_ids=ids).logits[0].double().log_softmax(-1)
    begin = len(cold.tokenizer("3+4=7").input_ids)
    expected = sum(float(logits[i - 1, ids[0, i]]) for i in range(begin, ids.shape[1]))
    assert LocalJudge(cold.model, cold.tokenizer).logprob("3+4=", "7", "#7") == pytest.approx(expected, abs=1e-9)


class Sure:
    """A listener that gives the answer 'yes' a probability of 0.4 after a text with x, and 0.2 after any other."""

    def __init__(self):
        self.read = []

    def ask(self, messages):
        raise AssertionError("it is not asked in words")

    def logprob(self, prompt, said, answer):
        self.read.append(said)
        return math.log(0.4 if "x" in said else 0.2) + (0.0 if answer == "yes" else math.log(0.5))


def heard(options, texts, task):
    listener = Sure()
    reward = judge_reward({"teacher": listener, "mode": "confidence", **options})
    forest, _, _ = grown({"g": texts})
    return reward(forest, texts, [task] * len(texts))["judge"].tolist(), listener, reward


def test_what_it_hears_and_what_it_does_not():
    task = Task("g", "really?", "yes")
    actual, listener, _ = heard({"cue": " so ", "answer_pattern": r"#"}, ["x#yes", "no # x#yes", "x#yes"], task)
    assert actual == pytest.approx([0.4, 0.4, 0.4])
    assert listener.read == ["x so ", "no # x so "]  # equal texts once; cut at the last match
    task = Task("g", "really?", "yes", info={"choices": ["yes", "no"]})
    assert heard({}, ["y"], task)[0] == pytest.approx([0.2 / (0.2 + 0.1)])
    actual, _, reward = heard({}, ["y"], Task("g", "really?"))
    assert math.isnan(actual[0]) and reward.failures()[0][0] == "nonsense"


def test_figures_of_the_card():
    """format + .5 correct + .5 p: 1.9 where right and convincing (.8 -> .4), 1.6 where right at .2, 1.1 where wrong."""
    belief = {"a": 0.8, "b": 0.2, "c": 0.2}

    class Listener(Sure):
        def logprob(self, prompt, said, answer):
            return math.log(belief[said[0]])

    source = Source(lambda text, task: {"correct": float(text != "c"), "format": 1.0}, trusted=True)
    options = {"judge": {"teacher": Listener(), "mode": "confidence"}}
    weights = {"format": 1.0, "correct": 0.5, "judge": 0.5}
    forest, texts, tasks = grown({"g": ["a", "b", "c"]})
    tasks = [Task(t.id, t.prompt, "yes") for t in tasks]
    with RewardSet.make(weights, source=source, options=options) as rewards:
        assert rewards.score(forest, texts, tasks).outcome.tolist() == pytest.approx([1.9, 1.6, 1.1])
