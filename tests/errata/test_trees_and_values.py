"""docs/errata/trees_and_values.md: values, probes and trees, as published and as released.

Each test restates a released formula in its own words; where gxpo has a part of it, against that part's number.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import gxpo
from gxpo.algorithms.credit import CreditPart, advantage, group_relative
from gxpo.algorithms.credit.gae import Gae
from gxpo.algorithms.credit.gae_hierarchical import Decisions, hierarchical_gae
from gxpo.algorithms.credit.node_value import by_ancestors
from gxpo.algorithms.credit.pooled_turns import pooled_turns
from gxpo.algorithms.credit.recursion import next_in
from gxpo.algorithms.credit.search_value import search_value
from gxpo.algorithms.credit.value_delta import VALUE, ValueDelta
from gxpo.algorithms.credit.value_trend import trend_return
from gxpo.algorithms.signals.effective_rank import rank_bonus
from gxpo.algorithms.weighting.token_curves import raised
from gxpo.environments.rewards.agreement import cosine
from gxpo.forest.forest import Forest
from gxpo.parts.registry import CREDITS
from gxpo.sampling.rollouts.branching import surprise
from gxpo.sampling.rollouts.regenerate import first_failing
from gxpo.sampling.rollouts.search_nodes import uct

SearchValue = CREDITS["search_value"]

F64 = torch.float64
NAN = math.nan


def column(*x: float) -> Tensor:
    return torch.tensor(x, dtype=F64)


def record(name: str, reward: float, turns: Sequence[dict[str, Any]], **rest: Any) -> dict[str, Any]:
    inputs = {
        "schema": "gxpo.rollouts/1",
        "group": "g",
        "id": name,
        "reward": reward,
        "turns": list(turns),
        **rest,
    }
    return inputs if "fork" in rest else {**inputs, "prompt": [1]}


def answers(*rows: tuple[str, float, int, tuple[str, int] | None]) -> Forest:
    """(name, outcome, tokens of its own, (base, tokens kept) or None)."""
    return Forest.from_records(
        [
            record(
                name,
                reward,
                [{"action": [2 + (i + n) % 7 for i in range(n)]}],
                **({} if base is None else {"fork": {"of": base[0], "turn": 0, "token": base[1]}}),
            )
            for name, reward, n, base in rows
        ]
    )


def by_row(part: CreditPart, forest: Forest) -> list[list[float]]:
    credit = part(forest, {}, 0)
    return [credit[forest.path_of(r)].tolist() for r in range(forest.n_trajectories)]


# ---------------------------------------------------------------- critics
def turns(*paid: tuple[int, float], truncated: bool = False) -> Forest:
    """(tokens, step reward) of each turn of one episode."""
    own_fields = [{"observation": [2], "action": [3] * n, "reward": r} for n, r in paid]
    return Forest.from_records([record("a", sum(r for _, r in paid), own_fields, truncated=truncated)])


def test_equal_discounts_are_not_one_discount() -> None:
    """VAGEN warns that g = gH and lambda 1 is GAE over tokens. Two turns, the second of two tokens and paid 1, all
    discounts .5, V = 0: .5 * 1 at the first turn; over tokens .5 * .5 * 1."""
    forest, signals = turns((1, 0.0), (2, 1.0)), {"value": column(0, 0, 0)}
    both = Gae(level="both", discount=0.5, anchor="last")(forest, signals, 0)
    assert both.tolist() == pytest.approx([0.5, 0.5, 1.0])
    assert Gae(discount=0.5)(forest, signals, 0).tolist() == pytest.approx([0.25, 0.5, 1.0])


def test_a_cut_episode_that_is_over() -> None:
    """Zeros after the last turn: 0 + 0 - .5. Cut by a limit, it goes on from where it is: 0 + .5 - .5."""
    forest, signals = turns((1, 0.0), truncated=True), {"value": column(0.5)}
    assert Gae(level="turn")(forest, signals, 0).tolist() == [-0.5]
    assert Gae(level="turn", truncation="extend")(forest, signals, 0).tolist() == [0.0]


def test_a_value_read_in_one_place_and_trained_in_many() -> None:
    """One turn of three tokens, paid 1: the advantage reads V of the first alone; all three are trained to 1."""
    forest, signals = turns((3, 1.0)), {"value": column(0.25, 7.0, -7.0)}
    assert Gae(level="turn")(forest, signals, 0).tolist() == [0.75] * 3
    released = Gae(level="turn").targets(forest, signals, 0)["value_target"].tolist()
    where_it_is_read = Gae(level="turn", target_at="anchor").targets(forest, signals, 0)["value_target"].tolist()
    assert released == [1.0, 1.0, 1.0] and where_it_is_read == pytest.approx([1.0, NAN, NAN], nan_ok=True)


def test_two_ends_of_an_option() -> None:
    """Two options of one turn, r = [0, 1], VL = .5, VH = .2: 0 + .5 - .5 by the first recursion, 0 + .2 - .5 by the
    second; the last turn 1 - .5."""
    reward, low, high = [0.0, 1.0], 0.5, 0.2
    released = [reward[0] + low - low, reward[1] - low]
    value = Decisions(column(low, low), column(high, high), column(0, 0))
    actual, _ = hierarchical_gae(column(*reward), torch.ones(2).bool(), value, torch.zeros(2, dtype=torch.int64))
    assert released == [0.0, 0.5] and actual.low.tolist() == pytest.approx([-0.3, 0.5])


def test_the_state_after_is_the_state_before() -> None:
    """A turn that was cut, V = .5 before it, g = .95: .95 * .5 - .5. The state after it was worth .8: .95 * .8 - .5."""
    value = Decisions(column(0.5), column(0.0), column(0.0))
    one, cut = (column(0.0), torch.tensor([True]), value, torch.tensor([0])), torch.tensor([True])
    assert hierarchical_gae(*one, discount=0.95, cut=cut)[0].low.tolist() == pytest.approx([-0.025])
    assert hierarchical_gae(*one, discount=0.95)[0].low.tolist() == [-0.5]
    assert pytest.approx(0.26) == 0.95 * 0.8 - 0.5


# ---------------------------------------------------------------- measured values
def valued(outcome: float, probability: Sequence[float], values: Sequence[float]) -> Forest:
    """One answer, the probabilities of its tokens and the values before them."""
    turn = {"action": [3] * len(values), "logprob": [math.log(p) for p in probability]}
    forest = Forest.from_records([record("a", outcome, [turn])])
    known_n_tokens = torch.full((forest.n_tokens,), NAN, dtype=F64)
    known_n_tokens[forest.path_token] = column(*values)
    return forest.replace(extras={**forest.extras, VALUE: known_n_tokens})


def test_a_step_that_changed_nothing() -> None:
    """V = .75, 1 and R = 1: .25 and 0. Less their mean .125, over their deviation .176777: .7071 and -.7071."""
    forest = valued(1.0, [0.5, 0.5], [0.75, 1.0])
    assert ValueDelta()(forest, {}, 0).tolist() == [0.25, 0.0]
    whitened = ValueDelta(whiten="token")(forest, {}, 0).tolist()
    assert whitened == pytest.approx([0.707107, -0.707107], abs=1e-6)


def test_a_mask_that_raises_the_others() -> None:
    """A = .5, two of four tokens below .9: SPO's code divides by 2, the token mean by 4."""
    forest = valued(1.0, [0.5, 0.95, 0.6, 0.99], [0.5, NAN, NAN, NAN])
    keys = {"credit": ValueDelta, "credit.max_probability": 0.9, "objective.aggregate": "token_mean"}
    logprob = forest.path_behaviour_logprob.clone().requires_grad_()
    loss = gxpo.method("grpo", keys).loss(forest, gxpo.PolicyTokens(logprob, forest.path_behaviour_logprob))
    (gradient,) = torch.autograd.grad(loss.value, logprob)
    released = [-0.5 / 2, 0.0, -0.5 / 2, 0.0]
    assert released == [-0.25, 0.0, -0.25, 0.0]
    assert gradient.tolist() == pytest.approx([-0.125, 0.0, -0.125, 0.0])


def test_a_reward_at_the_wrong_end_of_a_step() -> None:
    """Four tokens, steps begin at 0 and 2, values 0 and 1 there: the first step earned 1. Written on its first token,
    in a return its second has nothing."""
    rewards, released = [1.0, 0.0, 0.0, 0.0], [0.0] * 4
    for t in reversed(range(4)):
        released[t] = rewards[t] + (released[t + 1] if t < 3 else 0.0)
    assert released == [1.0, 0.0, 0.0, 0.0]
    actual = trend_return(column(0.0, NAN, 1.0, NAN), torch.zeros(4, dtype=torch.int64))
    assert actual.tolist() == [1.0, 1.0, 0.0, 0.0]


def test_a_thought_that_did_not_end() -> None:
    """find says -1, and -1 + 8 is 7."""
    end = "</think>"
    ended, endless = "two and two</think> 4", "two and two are"
    assert ended[: ended.find(end) + len(end)] == "two and two</think>"
    assert endless[: endless.find(end) + len(end)] == "two and"
    assert trend_return(column(0.25, NAN), torch.zeros(2, dtype=torch.int64)).tolist() == [0.0, 0.0]


# ---------------------------------------------------------------- trees
def test_a_group_counted_once_a_segment() -> None:
    """Leaves 1, 0 below one step and 1, 1 below another; each step is two segments: all (.25, 4 leaves), and .5 twice
    over 2 leaves, by 8, or once, by 6."""
    forest = answers(("a", 1.0, 3, None), ("b", 0.0, 1, ("a", 2)), ("c", 1.0, 4, None), ("d", 1.0, 1, ("c", 2)))
    released = (4 * 0.25 + 2 * 0.5 + 2 * 0.5) / 8
    once = by_row(advantage(by_ancestors, whiten="none"), forest)
    assert released == 0.375 and [row[0] for row in once] == pytest.approx([1 / 3, -2 / 3, 1 / 6, 1 / 6])


def test_a_branch_point_that_is_used_again() -> None:
    """-log p of three tokens: 2, .5, 1. Three branches leave at the first, or at one point each, the largest first."""
    metric = {0: 2.0, 1: 0.5, 2: 1.0}
    released = [max(metric, key=lambda t: metric[t]) for _ in range(3)]
    waiting, once = dict(metric), []
    while waiting:
        once.append(max(waiting, key=lambda t: waiting[t]))
        del waiting[once[-1]]
    assert released == [0, 0, 0] and once == [0, 2, 1]


def test_a_failure_that_sets_the_length() -> None:
    """Outcomes 1, 1, -1 of 4, 8, 1 tokens; mean 1/3, 2/3 for the right ones, times shortest / length. The shortest
    answer that isn't 0 has 1 token, the shortest right one 4."""
    forest = answers(("a", 1.0, 4, None), ("b", 1.0, 8, None), ("c", -1.0, 1, None))
    shortest = min(n for r, n in ((1.0, 4), (1.0, 8), (-1.0, 1)) if abs(r) > 1e-6)
    released = [2 / 3 * shortest / n for n in (4, 8)]
    assert released == pytest.approx([0.166667, 0.083333], abs=1e-6)
    actual = by_row(ValueDelta("branch_points", length_power=1.0), forest)
    assert [row[0] for row in actual] == pytest.approx([0.666667, 0.333333, -1.333333], abs=1e-6)


# ---------------------------------------------------------------- candidates, beliefs, bonuses
def test_advantages_that_nobody_reads() -> None:
    """Candidates scored 1, 1, 0 ... of three: mean 2/3. The chain that was taken is a group of one, paid 1."""
    score, group = column(1.0, 1.0, 0.0), torch.zeros(3, dtype=torch.int64)
    candidates = group_relative(score, group).tolist()
    chain = group_relative(score[:1], group[:1], singleton="raw").tolist()
    assert candidates == pytest.approx([0.577349, 0.577349, -1.154699], abs=1e-6)
    assert chain == pytest.approx([1.0], abs=1e-5)


def test_entropy_that_grows_with_the_action() -> None:
    """Tokens of entropy .6 in a first action of 5 and one of 20, V = 151643, log V = 11.929. P = .5 + .2 (H - H_1)."""
    size = math.log(151643)
    summed = [n * 0.6 / size for n in (5, 20)]
    assert 20 / size == pytest.approx(1.6766, abs=1e-4) and summed == pytest.approx([0.251488, 1.005952], abs=1e-4)
    assert 0.5 + 0.2 * (summed[1] - summed[0]) == pytest.approx(0.650893, abs=1e-5)
    first, later = (surprise({"action": [3] * n, "logprob": [-0.6] * n}, 20) for n in (5, 20))
    assert 0.5 + 0.2 * (later - first) == pytest.approx(0.5)


def test_a_baseline_of_one_position() -> None:
    """Turns of one token each. Third attempt, second turn: its return .1 less (1.2 + .3 + .1) / 3; and by the paper."""
    rewards = [[0.1, 0.2, 1.0], [0.0, 0.3], [-0.1, 0.1, 0.0, 0.0]]
    to_go = [[math.fsum(row[t:]) for t in range(len(row))] for row in rewards]
    released = to_go[2][1] - math.fsum(row[1] for row in to_go) / 3
    owner = torch.tensor([i for i, row in enumerate(rewards) for _ in row])
    flat = column(*(r for row in rewards for r in row))
    paper = float(pooled_turns(flat, torch.zeros_like(owner), next_in(owner))[6])
    assert released == pytest.approx(-0.433333, abs=1e-6) and paper == pytest.approx(-1.309857, abs=1e-6)


def test_centred_over_turns_not_over_attempts() -> None:
    """Turns paid 1 | 0 0 1: mean .5, deviation .57735. .5, and -.5 - .5 + .5, over that."""
    owner = torch.tensor([0, 1, 1, 1])
    actual = pooled_turns(column(1, 0, 0, 1), torch.zeros_like(owner), next_in(owner), eps=0.0).tolist()
    assert actual[:2] == pytest.approx([0.866025, -0.866025], abs=1e-6)


def test_averages_that_begin_at_nothing() -> None:
    """(x - 0) / 1e-8 is held at 5, whatever x is."""
    released = [math.tanh(min(max((x - 0.0) / (0.0 + 1e-8), -5.0), 5.0)) for x in (3.0, 9.0)]
    assert released == pytest.approx([0.999909, 0.999909], abs=1e-6)
    figures = torch.tensor([[9.0, 0.2, 0.1], [3.0, 0.1, 0.3]], dtype=F64)
    assert rank_bonus(figures, column(0, 0, 0)).tolist() == pytest.approx(released)
    assert rank_bonus(figures[:1], figures[0]).tolist() == [0.0]


def test_plans_of_the_wrong_answers() -> None:
    """A = .5 and -.5, alpha .2: .6 and -.4. The code asks for a right answer longer than the mean: -.5 stays."""
    credit, length, right = [0.5, -0.5], [9, 5], [True, False]
    mean = statistics.fmean(length)
    released = [a + 0.2 * abs(a) * (ok and n > mean) for a, n, ok in zip(credit, length, right, strict=True)]
    x = column(*credit)
    assert released == pytest.approx([0.6, -0.5])
    assert (x * raised(torch.tensor([True, True]), x)).tolist() == pytest.approx([0.6, -0.4])


def test_two_scales_in_one_batch() -> None:
    """Outcomes 1 0 0, turns .7 .2 and none. Sums 1.7 .2 0: mean .633333, deviation .929157. The last, without a
    result, has -.681620; the second, which failed too, (0 - 1/3) / .577350."""
    outcome, turn = [1.0, 0.0, 0.0], [0.7, 0.2, 0.0]
    total = [o + t for o, t in zip(outcome, turn, strict=True)]
    released = (total[2] - statistics.fmean(total)) / statistics.stdev(total)
    assert released == pytest.approx(-0.681620, abs=1e-5)
    records = [
        {"group": "g", "id": str(i), "reward": o, "turns": [{"action": [2], "reward": r} for r in rewards]}
        for i, (o, rewards) in enumerate(zip(outcome, ([0.7, None], [0.2, None], [None]), strict=True))
    ]
    forest = Forest.from_records([{"schema": "gxpo.rollouts/1", **record} for record in records])
    actual = gxpo.method("mt_grpo", {"credit.eps": 0.0}).advantages(forest)
    assert float(actual[4]) == pytest.approx(-0.577350, abs=1e-6)


def test_a_mean_over_tokens_of_judged_steps() -> None:
    """Nine tokens scored 1 and one scored 0: mean .9, deviation .3. Of two steps: .5 and .5."""
    score = column(*[1.0] * 9, 0.0)
    actual = group_relative(score, torch.zeros(10, dtype=torch.int64), ddof=0, eps=0.0).tolist()
    assert [actual[0], actual[9]] == pytest.approx([0.333333, -3.0], abs=1e-6)
    assert [(x - 0.5) / statistics.pstdev([1.0, 0.0]) for x in (1.0, 0.0)] == [1.0, -1.0]


# ---------------------------------------------------------------- calls that are made again
def test_a_prompt_that_nobody_sampled() -> None:
    """A vocabulary of a, b and ab: "ab" was sampled letter by letter, and is one token when it is read again."""
    words = {"ab": 3, "a": 1, "b": 2}
    sampled = [1, 2]
    text = "".join(next(w for w, i in words.items() if i == token) for token in sampled)
    again = [words[text]] if text in words else [words[letter] for letter in text]
    assert text == "ab" and again == [3] != sampled


def test_a_repair_where_nothing_failed() -> None:
    """Two turns that worked: some turn, or none. A row's answer 5 is judged by another prompt's 7."""
    worked: list[dict[str, Any]] = [{"info": {}}, {"info": {}}]
    released = next((i for i, turn in enumerate(worked) if turn["info"].get("action_error")), len(worked) - 1)
    assert released == 1 and first_failing(worked) is None
    truth, copied_from = {"p": "5", "q": "7"}, {"p": "q"}
    assert truth["p"] == "5" != truth[copied_from["p"]]


def test_a_likeness_of_meanings() -> None:
    """A word of two in common: 1 / 2. Of synonyms none, which are near each other as embeddings: (.8, .6), (.6, .8)."""
    assert cosine("red shoes", "blue shoes") == pytest.approx(0.5) and cosine("purchase trainers", "buy shoes") == 0.0
    assert torch.cosine_similarity(column(0.8, 0.6), column(0.6, 0.8), dim=0).item() == pytest.approx(0.96)


# ---------------------------------------------------------------- searches
def test_a_search_that_failed_as_a_whole() -> None:
    """Two attempts of two pieces end with -1. The first pieces are worth -2/3: (tanh(-2/3) + 1) / (0 + 1e-6)."""
    assert (math.tanh(-2 / 3) + 1) / 1e-6 == pytest.approx(417217, abs=1)
    pieces = [{"action": [5] * 3, "segments": [0, 2]}]
    forest = Forest.from_records([record(name, 0.0, pieces, success=False) for name in "ab"])
    assert SearchValue()(forest, {}, 0).tolist() == [0.0] * 6


def test_one_value_for_two_purposes() -> None:
    """A first piece of two that two successes passed, (1 + 1) / (3 + 1) each: 1.0, and 1.0 / 2 visits."""
    two, place = torch.tensor([1, 1]), torch.tensor([0, 0])
    actual = search_value(column(1, 1), two, torch.tensor([3, 3]), place, torch.ones(2).bool())
    assert actual.tolist() == [1.0, 1.0] and float(actual[0]) / 2 == 0.5


def test_a_search_that_takes_the_first() -> None:
    """Four new children, one visit each, nothing known: equal bounds, of which the first is the largest; drawn by
    softmax, each has 1/4."""
    bound = torch.tensor([uct(0.0, 1, 4, 2.0)] * 4, dtype=F64)
    assert float(bound[0]) == pytest.approx(2.354820, abs=1e-6)  # 2 sqrt(ln 4)
    assert int(bound.argmax()) == 0 and bound.softmax(0).tolist() == [0.25] * 4


def test_a_cross_entropy_without_a_minimum() -> None:
    """atanh(-.95) = -1.8318 as a label of log(1 + e^x) - y x: its slope sigmoid(x) - y is above 0 everywhere. Squares
    end at y."""
    y = math.atanh(-0.95)
    x = torch.tensor([-50.0, -1.8318, 0.0, 50.0], dtype=F64, requires_grad=True)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(x, torch.full((4,), y, dtype=F64), reduction="sum")
    (slope,) = torch.autograd.grad(loss, x)
    assert y == pytest.approx(-1.831781, abs=1e-6)
    assert slope.tolist() == pytest.approx([1.831781, 1.969805, 2.331781, 2.831781], abs=1e-5)
    square = torch.tensor([y], dtype=F64, requires_grad=True)
    assert torch.autograd.grad(((square - y) ** 2 / 2).sum(), square)[0].tolist() == [0.0]
