"""Hierarchical GAE: the card's numbers, a loop over dictionaries, which token is given what, penalties, reductions."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import forests

import gxpo
from gxpo.algorithms.credit.gae import gae
from gxpo.algorithms.credit.gae_hierarchical import Decisions, HierarchicalGae, differs_from_before, hierarchical_gae
from gxpo.algorithms.segments import SegmentTools, Spans
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.forest.forest import Forest

F64 = torch.float64
NAN = float("nan")
RAW: dict[str, Any] = {"normalize": False}


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def one(n: int) -> torch.Tensor:
    return torch.zeros(n, dtype=torch.int64)


def episode(*turns: tuple[str, float | None], name: str = "t", **fields: Any) -> dict[str, Any]:
    """A record from labels: "0234" is a token of thinking, the switch, a sub-goal and an action; "134" keeps."""
    return {
        "schema": "gxpo.rollouts/1",
        "group": "g",
        "id": name,
        "prompt": [1],
        "turns": [
            {
                "observation": [2],
                "action": [10 + int(x) for x in labels],
                "logprob": [-1.0] * len(labels),
                "reward": reward,
                "extras": {"label": torch.tensor([int(x) for x in labels])},
            }
            for labels, reward in turns
        ],
        "reward": 1.0,
        **fields,
    }


def values(forest: Forest, low: float | torch.Tensor = 0.0, high: Any = 0.0, switch: Any = 0.0) -> dict[str, Any]:
    wide = torch.ones(forest.n_entries, dtype=F64)
    return {f"value@{name}": x * wide for name, x in (("low", low), ("high", high), ("switch", switch))}


# ---------------------------------------------------------------- worked numbers
CARD = {
    "reward": column(0, 0, 0.5, 0, 1),
    "begins": torch.tensor([1, 0, 1, 0, 0]).bool(),
    "value": Decisions(column(0.3, 0.4, 0.5, 0.6, 0.7), column(0.35, 0, 0.55, 0, 0), column(0, 0, 0, 0, 0)),
}


def test_card_of_two_options() -> None:
    """Options of turns 0-1 and 2-4, g = .9, l = .8, high .7. Low: 1 - .7 = .3; .9*.7 - .6 + .72*.3 = .246;
    .5 + .9*.6 - .5 + .72*.246 = .71712 | .9*.55 - .4 = .095; .9*.4 - .3 + .72*.095 = .1284.
    High: .5 + .81*1 - .55 = .76; .81*.55 - .35 + .81*.7*.76 = .52642. Returns: 1, .9, .5 + .81 | .495, .4455."""
    actual, targets = hierarchical_gae(**CARD, trajectory=one(5), discount=0.9, lam=0.8, high_lam=0.7)
    assert actual.low.tolist() == pytest.approx([0.1284, 0.095, 0.71712, 0.246, 0.3], abs=1e-12)
    assert actual.high.tolist() == pytest.approx([0.52642, 0, 0.76, 0, 0], abs=1e-12)
    assert actual.switch.tolist() == pytest.approx([0.4455, 0.495, 1.31, 0.9, 1.0], abs=1e-12)
    assert targets.low.tolist() == pytest.approx([0.4284, 0.495, 1.21712, 0.846, 1.0], abs=1e-12)
    assert targets.high.tolist() == pytest.approx([0.87642, NAN, 1.31, NAN, NAN], abs=1e-12, nan_ok=True)
    assert targets.switch.tolist() == pytest.approx([0.4455, 0.495, 1.31, 0.9, 1.0], abs=1e-12)


def test_card_where_the_episode_was_cut() -> None:
    """The last option goes on with a value of its own: low 1 + .9*.7 - .7 = .93; high .5 + .81 + .729*.55 - .55 =
    1.16095; return of the last turn 1 + .9*.55 = 1.495."""
    cut = torch.ones(5).bool()
    actual, _ = hierarchical_gae(**CARD, trajectory=one(5), discount=0.9, lam=0.8, high_lam=0.7, cut=cut)
    assert float(actual.low[4]) == pytest.approx(0.93) and float(actual.low[1]) == pytest.approx(0.095)
    assert float(actual.high[2]) == pytest.approx(1.16095) and float(actual.switch[4]) == pytest.approx(1.495)


def test_card_in_a_forest() -> None:
    """The same as turns of thinking, switch, sub-goal, action: values are read where the card says, the others are
    wild; each kind of token has its own credit, thinking and sub-goals that go on have none."""
    kinds = ["0234", "0134", "0234", "0134", "0134"]
    rewards = [0, 0, 0.5, 0, 1]
    forest = Forest.from_records([episode(*zip(kinds, rewards, strict=True))])
    low, high = torch.full((20,), 9.9, dtype=F64), torch.full((20,), 9.9, dtype=F64)
    low[3::4] = CARD["value"].low  # the first token after the sub-goal
    high[0], high[8] = 0.35, 0.55  # the first token of the turn
    fields = {"discount": 0.9, "lam": 0.8, "high_lam": 0.7, **RAW}
    part, signals = HierarchicalGae(**fields), values(forest, low, high)
    expected = [
        *(0, 0.4455, 0.52642, 0.1284),
        *(0, 0.495, 0, 0.095),
        *(0, 1.31, 0.76, 0.71712),
        *(0, 0.9, 0, 0.246),
        *(0, 1.0, 0, 0.3),
    ]
    assert part(forest, signals, 0).tolist() == pytest.approx(expected, abs=1e-12)
    actual = part.targets(forest, signals, 0)
    assert actual["value_target@low"][3::4].tolist() == pytest.approx([0.4284, 0.495, 1.21712, 0.846, 1.0])
    assert actual["value_target@high"].nansum() == pytest.approx(0.87642 + 1.31)
    assert actual["value_target@switch"][::4].tolist() == pytest.approx([0.4455, 0.495, 1.31, 0.9, 1.0])
    counts = {name: int(x.isfinite().sum()) for name, x in actual.items()}
    assert counts == {"value_target@low": 5, "value_target@high": 2, "value_target@switch": 5}


def test_each_kind_is_normalised_over_its_own_turns() -> None:
    """Low [2, 0], switch [2, 0], high of the one option alone: (x - 1) / (1 + 1e-8), and 0 for who is alone."""
    forest = Forest.from_records([episode(("234", 2.0), ("134", 0.0))])
    actual = HierarchicalGae(discount=0.0)(forest, values(forest), 0)
    assert actual.tolist() == pytest.approx([1.0, 0.0, 1.0, -1.0, 0.0, -1.0], abs=1e-7)


def test_who_is_not_compared_is_measured_by_the_others() -> None:
    records = [episode(("234", r), name=str(i), compared=i < 2) for i, r in enumerate((2.0, 0.0, 4.0))]
    forest = Forest.from_records(records)
    actual = HierarchicalGae()(forest, values(forest), 0)
    assert actual.tolist() == pytest.approx([1.0] * 3 + [-1.0] * 3 + [3.0] * 3, abs=1e-7)


# ---------------------------------------------------------------- against a loop
def by_hand(
    forest: Forest, heads: dict[str, Any], cut: bool, p_keep: float, each: bool, p_other: float
) -> tuple[list, dict]:
    """g = .9, l = .8, high .7, over lists of turns that are dictionaries."""
    g, lam, high_lam = 0.9, 0.8, 0.7
    credit = [0.0] * forest.n_entries
    targets = {name: [NAN] * forest.n_entries for name in ("low", "high", "switch")}
    label = forest.extras["label"].tolist()
    for r in range(forest.n_trajectories):
        steps = [s for s in range(forest.n_steps) if int(forest.step_trajectory[s]) == r]
        paid = {s: float(forest.step_reward[s]) for s in steps}
        unfinished = cut and bool(forest.truncated[r])
        if all(x != x for x in paid.values()):
            paid = dict.fromkeys(steps, 0.0)
            paid[steps[-1]] = float(forest.outcome[r])
        turns: list[dict[str, Any]] = []
        for s in steps:
            own_paths = [
                p
                for p in forest.path_of(r).tolist()
                if int(forest.path_step[p]) == s and bool(forest.path_trainable[p])
            ]
            if own_paths:
                kinds = [label[int(forest.path_token[p])] for p in own_paths]
                goal = [
                    int(forest.token[forest.path_token[p]]) for p, k in zip(own_paths, kinds, strict=True) if k == 3
                ]
                place = own_paths[0]
                for expected in ((1, 2), (3,)):
                    where = [i for i, k in enumerate(kinds) if k in expected]
                    if where and where[-1] + 1 < len(own_paths):
                        place = own_paths[where[-1] + 1]
                turns.append(
                    {"own": own_paths, "kinds": kinds, "goal": goal, "low": place, "switch": 2 in kinds, "r": 0.0}
                )
            if turns and paid[s] == paid[s]:
                turns[-1]["r"] += paid[s]
        for i, t in enumerate(turns):
            if not t["switch"]:
                share = 1.0 if each else (1 / len(turns) if len(turns) > 1 else 0.0)
                t["r"] += p_keep * share
                if i and t["goal"] and turns[i - 1]["goal"] and t["goal"] != turns[i - 1]["goal"]:
                    t["r"] += p_other
            t["VL"], t["VH"], t["VT"] = (
                float(heads[f"value@{n}"][p])
                for n, p in (("low", t["low"]), ("high", t["own"][0]), ("switch", t["own"][0]))
            )
        starts = [i for i, t in enumerate(turns) if i == 0 or t["switch"]]
        later = None  # (VH, AH) of the option after
        for k in reversed(range(len(starts))):
            begin, end = starts[k], starts[k + 1] if k + 1 < len(starts) else len(turns)
            mine, first = turns[begin:end], turns[begin]
            boot = later[0] if later else (first["VH"] if unfinished else 0.0)
            d = len(mine)
            earned = sum(g**j * t["r"] for j, t in enumerate(mine))
            high = earned + g**d * boot - first["VH"] + (g**d * high_lam * later[1] if later else 0.0)
            ahead, total = 0.0, boot
            for j, t in reversed(list(enumerate(mine))):
                then = mine[j + 1]["VL"] if j + 1 < d else (later[0] if later else (t["VL"] if unfinished else 0.0))
                ahead = t["r"] + g * then - t["VL"] + g * lam * ahead
                total = t["r"] + g * total
                next_value = {4: ahead, 1: total - t["VT"], 2: total - t["VT"], 3: high if j == 0 else 0.0, 0: 0.0}
                for p, kind in zip(t["own"], t["kinds"], strict=True):
                    credit[p] = next_value[kind] + (ahead if 4 not in t["kinds"] else 0.0)
                targets["low"][t["low"]], targets["switch"][t["own"][0]] = ahead + t["VL"], total
            targets["high"][first["own"][0]] = high + first["VH"]
            later = (first["VH"], high)
    return credit, targets


@settings(max_examples=60, deadline=None)
@given(
    forest=forests(unscored=False, texts=False, after=False, max_turns=5, vocab=3),
    seed=st.integers(0, 999),
    cut=st.booleans(),
    each=st.booleans(),
    tidy=st.booleans(),
)
def test_equals_a_loop_on_any_forest(forest, seed, cut, each, tidy) -> None:
    """Forks, empty actions, tokens of others; turns that lack a tag, and turns in which tags come back."""
    rng = random.Random(seed)
    kinds = [0, 1, 2, 3, 4, 3, 4]
    label = torch.tensor(
        [(i % 4 + 1 if tidy else rng.choice(kinds)) for i in range(forest.n_tokens)], dtype=torch.int64
    )
    truncated = torch.tensor([rng.random() < 0.5 for _ in range(forest.n_trajectories)]).bool()
    forest = forest.replace(extras={"label": label}, truncated=truncated)
    heads = {f"value@{n}": column(*[rng.uniform(-1, 1) for _ in range(forest.n_entries)]) for n in Decisions._fields}
    part = HierarchicalGae(
        0.9, 0.8, 0.7, -0.3, "each" if each else "shared", -0.4, normalize=False, truncation="extend" if cut else "end"
    )
    expected, targets = by_hand(forest, heads, cut, -0.3, each, -0.4)
    assert part(forest, heads, 0).tolist() == pytest.approx(expected, abs=1e-9)
    for name, column_ in part.targets(forest, heads, 0).items():
        assert column_.tolist() == pytest.approx(targets[name.split("@")[1]], abs=1e-9, nan_ok=True)


# ---------------------------------------------------------------- reductions, tags, penalties
def test_an_option_a_turn_is_gae_over_turns() -> None:
    reward, value = column(0, 0.2, 1, 0.5), column(0.4, 0.5, 0.6, 0.1)
    every, owner = torch.ones(4).bool(), torch.tensor([0, 0, 0, 1])
    actual, _ = hierarchical_gae(reward, every, Decisions(value, value, value), owner, 0.9, 0.8, 0.8)
    assert actual.high.tolist() == pytest.approx(gae(reward, value, owner, every, 0.9, 0.8).tolist())
    # the card of GAE over turns: R = [0, .2, 1], V = [.4, .5, .6], .9, .8
    assert actual.high[:3].tolist() == pytest.approx([0.430160, 0.528, 0.4])
    assert actual.low.tolist() == pytest.approx([0.05, 0.24, 0.4, 0.4])  # its own difference: nothing goes on


def test_one_option_is_gae_over_turns_for_its_actions() -> None:
    reward, value = column(0, 0.2, 1), column(0.4, 0.5, 0.6)
    never = torch.zeros(3).bool()
    actual, _ = hierarchical_gae(reward, never, Decisions(value, value, value), one(3), 0.9, 0.8, 0.3)
    assert actual.low.tolist() == pytest.approx([0.430160, 0.528, 0.4])


def test_a_switch_without_a_sub_goal_begins_an_option() -> None:
    """VH .2, rewards 0 and 1: the first option's action is paid .2, the second's 1; what its switch is worth is 1."""
    forest = Forest.from_records([episode(("234", 0.0), ("024", 1.0))])
    part, signals = HierarchicalGae(high_lam=0.0, **RAW), values(forest, high=0.2)
    assert part(forest, signals, 0).tolist() == pytest.approx([0.2, 0.0, 0.2, 0.0, 1.0, 1.0])
    at = part.targets(forest, signals, 0)
    assert at["value_target@low"].isfinite().tolist() == [False, False, True, False, False, True]
    assert at["value_target@high"].isfinite().tolist() == [True, False, False, True, False, False]


def test_a_turn_without_an_action_is_the_action_as_a_whole() -> None:
    """Values .1, .2, .3 of action, sub-goal and switch, one turn that earned 1: low .9, high .8, switch .7."""
    for labels, expected in (
        ("00", [0.9, 0.9]),
        ("0230", [0.9, 1.6, 1.7, 0.9]),
        ("013", [0.9, 1.6, 1.7]),  # the first turn begins an option, whatever it says
        ("034", [0.0, 0.8, 0.9]),
        ("04", [0.0, 0.9]),
    ):
        forest = Forest.from_records([episode((labels, 1.0))])
        actual = HierarchicalGae(**RAW)(forest, values(forest, 0.1, 0.2, 0.3), 0)
        assert actual.tolist() == pytest.approx(expected), labels


def test_where_the_value_of_acting_is_read() -> None:
    """After the sub-goal; where nothing follows that, after the switch; where nothing does, at the first token."""
    for labels, place in (("02304", 3), ("4023", 3), ("4302", 2), ("0", 0)):
        forest = Forest.from_records([episode((labels, 1.0))])
        actual = HierarchicalGae(**RAW).targets(forest, values(forest), 0)["value_target@low"]
        assert actual.isfinite().nonzero().tolist() == [[place]], labels


def test_what_keeping_costs() -> None:
    """Four turns of which two keep, penalty -.3: a quarter of it on each of those, or all of it on each."""
    forest = Forest.from_records([episode(("234", 0.0), ("134", 0.0), ("134", 0.0), ("234", 1.0))])
    fields = {"discount": 0.0, "keep_penalty": -0.3, **RAW}
    shared = HierarchicalGae(**fields)(forest, values(forest), 0)
    assert shared[2::3].tolist() == pytest.approx([0, -0.075, -0.075, 1.0])
    full_value = HierarchicalGae(keep_mode="each", **fields)(forest, values(forest), 0)
    assert full_value[2::3].tolist() == pytest.approx([0, -0.3, -0.3, 1.0])
    forest_of_one = Forest.from_records([episode(("134", 1.0))])  # the only turn begins an option, whatever it says
    assert HierarchicalGae(**fields)(forest_of_one, values(forest_of_one), 0).tolist() == pytest.approx([1.0] * 3)


def test_a_truncated_episode_is_paid_what_it_earned() -> None:
    """Cut, VL = .5: 1 + .5 - .5; over: 1 - .5. The value is trained on both, on 1.5 and 1."""
    forest = Forest.from_records([episode(("234", None), truncated=True)])
    signals = values(forest, low=0.5)
    for cut, credit, expected in (("extend", 1.0, 1.5), ("end", 0.5, 1.0)):
        part = HierarchicalGae(truncation=cut, **RAW)  # type: ignore[arg-type]  # a literal by the loop
        assert float(part(forest, signals, 0)[2]) == pytest.approx(credit)
        assert float(part.targets(forest, signals, 0)["value_target@low"][2]) == pytest.approx(expected)


def test_the_outcome_is_paid_beside_the_penalties() -> None:
    """An episode without step rewards: as step rewards, the penalties would take its outcome's place."""
    forest = Forest.from_records([episode(("234", None), ("134", None))])
    actual = HierarchicalGae(keep_penalty=-0.3, keep_mode="each", **RAW)(forest, values(forest), 0)
    assert actual[2::3].tolist() == pytest.approx([0.7, 0.7])


def test_keeping_with_another_subgoal_costs() -> None:
    records = [episode(*((x, 0.0) for x in ("2334", "1334", "1334", "134", "2334")))]
    records[0]["turns"][2]["action"][2] = 99  # one token is another
    forest = Forest.from_records(records)
    actual = HierarchicalGae(discount=0.0, consistency_penalty=-0.3, **RAW)(forest, values(forest), 0)
    actions = actual[forest.extras["label"][forest.path_token] == 4]
    assert actions.tolist() == pytest.approx([0, 0, -0.3, -0.3, 0])  # the fourth is shorter; the fifth switches


def test_others_than_before() -> None:
    """Steps of two trajectories: [5 6], [5 6], [5 7], none, [5] | [5], [5 5]."""
    token, step = torch.tensor([5, 6, 5, 6, 5, 7, 5, 5, 5, 5]), torch.tensor([0, 0, 1, 1, 2, 2, 4, 5, 6, 6])
    actual = differs_from_before(token, step, torch.tensor([0, 0, 0, 0, 0, 1, 1]))
    assert actual.tolist() == [False, False, True, False, False, False, True]
    assert differs_from_before(token[:0], step[:0], one(2)).tolist() == [False, False]


# ---------------------------------------------------------------- the method
def test_the_method_reads_the_tags_of_what_was_written() -> None:
    """From the text of two turns to credit: one letter a token. The thinking and what stands between tags have 0."""
    texts = [
        "hm<switch>SWITCH</switch> <subgoal>door</subgoal><action>up</action>.",
        "<switch> keep </switch><subgoal>door</subgoal><action>left</action>",
    ]
    turns = [{"observation": [2], "action": [ord(c) for c in t], "logprob": [-1.0] * len(t)} for t in texts]
    record = {"schema": "gxpo.rollouts/1", "group": "g", "id": "t", "prompt": [1], "turns": turns, "reward": 1.0}
    m = gxpo.method("hiper", {"credit.normalize": False, "credit.keep_penalty": 0.0})
    assert isinstance(m.segmenter, Spans) and set(m.value_heads) == {"value@low", "value@high", "value@switch"}
    forest = m.segmenter(Forest.from_records([record]), SegmentTools(lambda ids: "".join(map(chr, ids))))
    actual = m.advantages(forest, values(forest))
    text = "".join(texts)
    credited = "".join(c for c, a in zip(text, actual.tolist(), strict=True) if a != 0)
    tags = "<switch>SWITCH</switch><subgoal>door</subgoal><action>up</action><switch> keep </switch>"
    # in the second turn the sub-goal is the option's, decided before. In the first, VH = VL = 0 are bootstrapped
    assert credited == tags + "<action>left</action>"
    loss = m.loss(forest, _policy(forest), signals=values(forest))
    assert loss.metrics["value_loss@low"] == pytest.approx(0.5)  # targets 1, 1 against 0, lambda 1: (1 + 1) / 2 / 2


def _policy(forest: Forest) -> gxpo.PolicyTokens:
    zero = torch.zeros(forest.n_entries, dtype=F64)
    outputs = {f"value@{name}": zero for name in Decisions._fields}
    return gxpo.PolicyTokens(forest.path_behaviour_logprob, forest.path_behaviour_logprob, outputs=outputs)


def test_unscored_trajectories_have_no_credit_and_change_nothing() -> None:
    records = [episode(("234", None), name=str(i), reward=r) for i, r in enumerate((1.0, None, 0.0))]
    m, forest = gxpo.method("hiper"), Forest.from_records(records)
    forest_of_one = Forest.from_records([records[0], records[2]])
    actual, expected = (
        m.advantages(forest, values(forest)),
        m.advantages(forest_of_one, values(forest_of_one)),
    )
    assert actual[3:6].tolist() == [0.0] * 3 and torch.equal(actual[[0, 1, 2, 6, 7, 8]], expected)


def test_what_it_refuses() -> None:
    record = episode(("234", 1.0))
    del record["turns"][0]["extras"]
    forest = Forest.from_records([record])
    with pytest.raises(GxpoError, match="no labels of switch"):
        HierarchicalGae()(forest, values(forest), 0)
    labelled = Forest.from_records([episode(("234", 1.0))])
    with pytest.raises(GxpoError, match="the 'value@high' of 1 of 1"):
        HierarchicalGae()(labelled, values(labelled, high=NAN), 0)
    with pytest.raises(ConfigError, match=r"credit\.high_lam is 2"):
        HierarchicalGae(high_lam=2)
    with pytest.raises(ConfigError, match=r"credit\.keep_mode"):
        HierarchicalGae(keep_mode="fixed")  # type: ignore[arg-type]


# ---------------------------------------------------------------- errata
def test_a_sub_goal_earns_what_its_whole_option_does() -> None:
    """HiPER's first version bootstraps the low level with VL across an option's end; its second, like this, with VH.
    One turn an option, r = [0, 1], VL = .5, VH = .2, g = 1: .2 - .5 = -.3, not .5 - .5 = 0."""
    value = Decisions(column(0.5, 0.5), column(0.2, 0.2), column(0, 0))
    actual, _ = hierarchical_gae(column(0, 1), torch.ones(2).bool(), value, one(2))
    assert actual.low.tolist() == pytest.approx([-0.3, 0.5])
