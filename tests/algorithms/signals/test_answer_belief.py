"""Belief in the right answer: the card's numbers, the model by itself at every boundary, where answers come from."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.learning.llamas import clean_llama, random_forest

from gxpo.algorithms.signals.answer_belief import AnswerBelief, answer_belief, boundaries, probes
from gxpo.algorithms.signals.base import SignalTools
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.environments import worlds
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import Reply, Sampling, Task
from gxpo.training.session import Session

F64 = torch.float64
SILENT = 1  # the end of sequence of the test model


class Counting(TorchLearner):
    """Remembers what it was asked to read."""

    def outputs(self, forest: Forest, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        self.__dict__.setdefault("read", []).append(forest)
        return super().outputs(forest, *args, **kwargs)


LEARNER = Counting(clean_llama(), lr=0.0)


def encode(text: str) -> list[int]:
    """A token a character."""
    return [2 + ord(c) % 20 for c in text]


def tools(answers: Any) -> Any:
    decode = lambda ids: "".join("" if i == SILENT else "x" for i in ids)  # noqa: E731  as short as it gets
    return SimpleNamespace(learner=LEARNER, decode=decode, encode=encode, answers=answers, step=1, seed=0)


def by_task(forest: Forest) -> list[str | None]:
    """Two tasks have answers, the others none."""
    return [{"task/0": "ab", "task/1": "c"}.get(task) for task in forest.task]


# ---------------------------------------------------------------- one number
def test_card_four_reductions() -> None:
    """Gold probabilities [.9, .8, .95]: mean 2.65 / 3; product .684; its cube root .881087 (the card rounds
    to .881088); .684 / 3 = .228."""
    x = torch.tensor([0.9, 0.8, 0.95, 0.5], dtype=F64).log()
    owner = torch.tensor([0, 0, 0, 2])
    expected = {"mean_prob": 0.883333, "exp_mean_log": 0.881087, "joint": 0.684, "joint_over_length": 0.228}
    for how, value in expected.items():
        actual = answer_belief(x, owner, 3, how).tolist()
        assert actual[0] == pytest.approx(value, abs=1e-6) and math.isnan(actual[1]) and actual[2] == pytest.approx(0.5)


def test_with_one_token_all_reductions_are_one() -> None:
    one = [float(answer_belief(torch.tensor([-0.7]), torch.tensor([0]), 1, how)) for how in ("joint", "mean_prob")]
    assert one == pytest.approx([math.exp(-0.7)] * 2)
    with pytest.raises(ConfigError, match="reduce is 'median'"):
        answer_belief(torch.tensor([-0.7]), torch.tensor([0]), 1, "median")


# errata
def test_a_product_over_the_number_of_tokens_never_saturates() -> None:
    """SPAE's released probe: of two tokens, both certain, it is 1/2, below its own threshold of .9."""
    certain = torch.zeros(2, dtype=F64)
    assert float(answer_belief(certain, torch.tensor([0, 0]), 1, "joint_over_length")) == 0.5
    assert float(answer_belief(certain, torch.tensor([0, 0]), 1, "mean_prob")) == 1.0


# ---------------------------------------------------------------- against the model, context by context
def written(forest: Forest, entry: int) -> list[int]:
    """All ids before an entry of P, walked node by node."""
    token = int(forest.path_token[entry])
    node = int(forest.token_node[token])
    return forest.context(int(forest.parent[node])) + forest.token[int(forest.first_token[node]) : token].tolist()


def units(forest: Forest, r: int, at: str) -> list[list[int]]:
    """The entries of each turn or segment of a trajectory, in time; those without a segment are in none."""
    out: dict[tuple[int, int], list[int]] = {}
    for p in forest.path_of(r).tolist():
        segment = int(forest.segment[forest.path_token[p]]) if at == "segment" else 0
        if segment >= 0:
            out.setdefault((int(forest.path_step[p]), segment), []).append(p)
    return list(out.values())


def probed(context: list[int], answer: str, cue: str) -> tuple[float, float]:
    """Geometric mean of the answer's probabilities and exp(-mean entropy), by the model itself."""
    ids = context + encode(cue + answer)
    n = len(encode(answer))
    with torch.no_grad():
        logp = LEARNER.model(torch.tensor([ids])).logits[0].double().log_softmax(1)
    rows = [len(ids) - n + k - 1 for k in range(n)]
    mean = sum(float(logp[i, ids[i + 1]]) for i in rows) / n
    entropy = sum(-float((logp[i].exp() * logp[i]).sum()) for i in rows) / n
    return math.exp(mean), math.exp(-entropy)


@pytest.mark.parametrize("at", ["turn", "segment"])
@pytest.mark.parametrize("seed", range(4))
def test_of_any_forest_it_is_the_models_own_at_every_boundary(seed: int, at: str) -> None:
    forest, cue = random_forest(seed), " so: "
    LEARNER.__dict__["read"] = []
    part = AnswerBelief(unit=at, cue=cue)  # type: ignore[arg-type]  # one of the two
    actual = part.compute(forest, {}, tools(by_task))
    answers = by_task(forest)
    expected = torch.full((3, forest.n_entries), math.nan, dtype=F64)
    for r in range(forest.n_trajectories):
        own_units = units(forest, r, at)
        answer = answers[r]
        if answer is None:
            continue
        for k, entries in enumerate(own_units):
            if k + 1 < len(own_units):
                after = written(forest, own_units[k + 1][0])
            else:
                last = int(forest.token[forest.path_token[entries[-1]]])
                after = written(forest, entries[-1]) + ([] if last == SILENT else [last])
            start = probed(written(forest, entries[0]), answer, cue)[0]
            expected[:, entries] = torch.tensor([start, *probed(after, answer, cue)], dtype=F64)[:, None]
    for name, x in zip(("belief_before", "belief_after", "answer_confidence"), expected, strict=True):
        assert torch.allclose(actual[name], x, atol=1e-9, rtol=0, equal_nan=True), name
    assert len(LEARNER.__dict__["read"]) <= 1, "all probes are one forest"


def test_gains_telescope_and_order_does_not_matter() -> None:
    forest = random_forest(3)
    actual = AnswerBelief().compute(forest, {}, tools(lambda f: ["ab"] * f.n_trajectories))
    gain = actual["belief_after"] - actual["belief_before"]
    for r in range(forest.n_trajectories):
        firsts = [entries[0] for entries in units(forest, r, "turn")]
        if firsts:
            full_belief = actual["belief_after"][firsts[-1]] - actual["belief_before"][firsts[0]]
            assert float(gain[firsts].sum()) == pytest.approx(float(full_belief), abs=1e-12)
    order = torch.arange(forest.n_trajectories).flip(0)
    again = AnswerBelief().compute(forest.select(order), {}, tools(lambda f: ["ab"] * f.n_trajectories))
    for name, x in actual.items():
        assert torch.allclose(again[name], x[forest.entries_of(order)], atol=1e-10)


def attempt(i: int, actions: list[list[int]], **fields: Any) -> dict[str, Any]:
    turns = [{"observation": [7, 8], "action": a, "logprob": [-1.0] * len(a)} for a in actions]
    own_fields = {
        "schema": "gxpo.rollouts/1",
        "group": "g",
        "id": f"t{i}",
        "task": "q",
        "prompt": [2, 3],
        "turns": turns,
    }
    return own_fields | {"reward": 1.0} | fields


def test_what_forks_share_is_asked_once_and_stored_once() -> None:
    """Two trajectories with the same two turns, and a third turn each: boundaries are before turn 1, 2, 3 (shared) and
    the two ends. Context tokens stand there once, each probe adds cue and answer."""
    fork = {"of": "t0", "turn": 2, "token": 0}
    second = {"action": [6, 6], "logprob": [-1.0, -1.0]}
    other = {k: v for k, v in attempt(1, []).items() if k != "prompt"}
    forest = Forest.from_records([attempt(0, [[4, 5], [4], [5, 5, 5]]), {**other, "fork": fork, "turns": [second]}])
    LEARNER.__dict__["read"] = []
    AnswerBelief(cue="a").compute(forest, {}, tools(lambda f: ["bc"] * 2))
    (requests,) = LEARNER.__dict__["read"]
    assert requests.n_trajectories == 5 and requests.n_tokens == forest.n_tokens + 5 * 3


def test_cuts_inside_a_node_keep_every_context() -> None:
    """One node of four tokens, asked after each of them and twice after the second."""
    forest = Forest.from_completions([[2, 3]], [[[4, 5, 6, 7], [8]]], [1.0, 0.0])
    at = torch.tensor([2, 3, 3, 5, 1])  # tokens 4, 5, 5, 7, and the prompt's last
    probes_of_forest = probes(forest, at, [[9], [10], [11], [12], [13, 14]], torch.zeros(5, dtype=torch.int64))
    contexts = [
        probes_of_forest.context(int(probes_of_forest.parent[probes_of_forest.last_action[i]])) for i in range(5)
    ]
    assert contexts == [[2, 3, 4], [2, 3, 4, 5], [2, 3, 4, 5], [2, 3, 4, 5, 6, 7], [2, 3]]
    assert (
        probes_of_forest.token[probes_of_forest.path_token].tolist() == [9, 10, 11, 12, 13, 14]
        and probes_of_forest.n_nodes == 2 + 1 + 2 + 5
    )
    nothing = probes(forest, torch.tensor([-1]), [[9]], torch.zeros(1, dtype=torch.int64))
    assert int(nothing.parent[nothing.last_action[0]]) == -1


def test_a_silent_end_is_left_out_and_only_at_the_end() -> None:
    forest = Forest.from_records([attempt(0, [[4, SILENT], [5, SILENT]]), attempt(1, [[SILENT, 6]])])
    first, before, after = boundaries(forest, forest.path_step, torch.tensor([SILENT]))
    tokens = forest.token.tolist()
    assert first.tolist() == [0, 2, 4]
    assert [tokens[i] for i in before.tolist()] == [8, 8, 8]
    assert after[0] == before[1] and [tokens[i] for i in after.tolist()[1:]] == [5, 6]


def test_no_probe_follows_a_unit_that_is_the_answer() -> None:
    forest, own_tools = random_forest(1), tools(lambda f: ["ab"] * f.n_trajectories)
    asked_answer_belief = AnswerBelief(unit="segment").compute(forest, {}, own_tools)
    actual = AnswerBelief(unit="segment", ends_with_answer=True).compute(forest, {}, own_tools)
    assert torch.allclose(actual["belief_before"], asked_answer_belief["belief_before"], equal_nan=True, atol=1e-12)
    for r in range(forest.n_trajectories):
        for k, entries in enumerate(cut := units(forest, r, "segment")):
            expected = asked_answer_belief["belief_after"] if k + 1 < len(cut) else asked_answer_belief["belief_before"]
            assert torch.allclose(actual["belief_after"][entries], expected[entries], atol=1e-12)


# ---------------------------------------------------------------- what is told
def test_cue_and_answer_are_encoded_together() -> None:
    """ "is " is [5, 6], "is 85" is [5, 9]: what is asked for is the 9 after the 5."""
    table = {"is ": [5, 6], "is 85": [5, 9]}
    forests: list[Forest] = []

    def outputs(forest: Forest, names: Any) -> dict[str, torch.Tensor]:
        forests.append(forest)
        logprob = torch.tensor([0.1, 0.5, 0.1, 0.25], dtype=F64).log()
        return {"logprob": logprob, "entropy": torch.tensor([9.0, 0.1, 9.0, 0.2], dtype=F64)}

    learner = SimpleNamespace(outputs=outputs)
    own_simple_namespace: Any = SimpleNamespace(
        learner=learner, decode=str, encode=table.__getitem__, answers=lambda f: ["85"]
    )
    actual = AnswerBelief(cue="is ").compute(Forest.from_completions([[2]], [[[3]]], [1.0]), {}, own_simple_namespace)
    assert forests[0].token[forests[0].path_token].tolist() == [5, 9, 5, 9]
    expected = {"belief_before": 0.5, "belief_after": 0.25, "answer_confidence": math.exp(-0.2)}
    assert {name: float(x) for name, x in actual.items()} == pytest.approx(expected)


def test_without_an_answer_nothing_is_known_and_nothing_is_read() -> None:
    forest = Forest.from_completions([[2], [2, 3]], [[[4, 5]], [[6]]], [1.0, 0.0])
    LEARNER.__dict__["read"] = []
    part, own_tools = AnswerBelief(cue="a"), tools(lambda f: [None, ""])
    actual = part.compute(forest, {}, own_tools)
    assert all(bool(x.isnan().all()) and x.shape == (3,) for x in actual.values()) and not LEARNER.__dict__["read"]
    assert part.learn(forest, actual, own_tools) == {"belief_unknown": 1.0}
    empty = Forest.from_records([])
    assert part.compute(empty, {}, tools(lambda f: []))["belief_after"].shape == (0,)


def test_figures_are_of_first_and_last() -> None:
    """Beliefs .1 -> .2 -> .6 in the first trajectory, .3 -> .4 in two tokens of the second, the third has none."""
    forest = Forest.from_records([attempt(0, [[4], [5]]), attempt(1, [[4, 4]]), attempt(2, [[4]])])
    before = torch.tensor([0.1, 0.2, 0.3, 0.3, math.nan], dtype=F64)
    after = torch.tensor([0.2, 0.6, 0.4, 0.4, math.nan], dtype=F64)
    figures = AnswerBelief().learn(forest, {"belief_before": before, "belief_after": after}, tools(by_task))
    moved = (0.1 + 0.4 + 2 * 0.1) / 4
    expected = {"belief_unknown": 1 / 3, "belief_start": 0.2, "belief_end": 0.5, "belief_moved": moved}
    assert figures == pytest.approx(expected)


def test_settings() -> None:
    assert AnswerBelief().requires == () and AnswerBelief(unit="segment").requires == ("segments",)
    for wrong in ({"unit": "token"}, {"reduce": "sum"}, {"cue": ""}):
        with pytest.raises(ConfigError, match=r"signal\.answer_belief"):
            AnswerBelief(**wrong)  # type: ignore[arg-type]  # wrong on purpose
    lent = SignalTools(LEARNER, str, 0)
    with pytest.raises(GxpoError, match="not lent"):
        AnswerBelief().compute(random_forest(0), {}, lent)
    turn = {"action_text": "yes"}
    text = {"schema": "gxpo.rollouts/1", "group": "g", "id": "t", "prompt_text": "how many?", "turns": [turn]}
    with pytest.raises(GxpoError, match="needs token ids"):
        AnswerBelief().compute(Forest.from_records([text | {"reward": 1.0}]), {}, tools(by_task))


# ---------------------------------------------------------------- where answers come from
def test_a_session_asks_the_source_for_missing_answers() -> None:
    source = SimpleNamespace(draw=lambda n, step: [], answer=lambda task: {"b": "from the source"}.get(task.id))
    session = Session(
        source=source, engine=None, rewards=None, tokenizer=None, sampling=Sampling(), seed=0, step=1,  # type: ignore[arg-type]  # it needs neither
        chat=SimpleNamespace(stop_ids=()),  # type: ignore[arg-type]  # nor this
    )  # fmt: skip
    session.know([Task("a", "?", answer=12), Task("b", "?"), Task("c", "?")])
    forest = Forest.from_completions([[1]] * 4, [[[2]]] * 4, tasks=["b", "a", "c", "unheard of"])
    assert session.answers(forest) == ["from the source", "12", None, None]


def test_toolqa_says_what_is_right_before_an_episode_is_over() -> None:
    world = worlds.make("toolqa", seed=0, options={"style": "bare"})
    assert world.envs is not None and "answer" in world.envs.provides
    for task in world.source.draw(4, 1):
        answer = world.source.answer(task)  # type: ignore[attr-defined]  # instances of an environment
        world.envs.reset({"e": task.info["seed"]})
        step = world.envs.step({"e": Reply(f"#{answer}")})["e"]
        assert step.success is True  # type: ignore[union-attr]  # it did not break
    world.close()


def test_a_world_without_answers_has_none() -> None:
    world = worlds.make("frozenlake", seed=0)
    (task,) = world.source.draw(1, 1)
    assert world.source.answer(task) is None  # type: ignore[attr-defined]  # instances of an environment
    world.close()
