"""Other trainers' numbers: one reward group, groups of one, batch normalisers, in each of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
import torch

import gxpo
from gxpo.algorithms.objectives import Clip, DualClip, PolicyGradient
from gxpo.forest.forest import Forest
from gxpo.methods import METHODS
from gxpo.methods.compat import COMPAT
from gxpo.parts.definition import same

Row = tuple[str, float, Sequence[int]]  # group, reward, tokens of each turn


def forest_of(rows: Sequence[Row], components: Sequence[dict[str, float]] | None = None) -> Forest:
    records = []
    for i, (group, reward, lengths) in enumerate(rows):
        turns = [{"observation": [2], "action": [3] * n, "logprob": [-1.0] * n} for n in lengths]
        record = {"schema": "gxpo.rollouts/1", "group": group, "id": f"t{i}", "prompt": [1], "turns": turns}
        records.append(record | {"reward": reward} | ({"rewards": components[i]} if components else {}))
    return Forest.from_records(records)


def credit(spec: str, rows: Sequence[Row], components: Sequence[dict[str, float]] | None = None) -> list[float]:
    """One value a trajectory."""
    forest = forest_of(rows, components)
    # the policy is its own reference: a KL in the reward is 0
    same_everywhere = torch.full((forest.n_entries,), -1.0)
    where: dict[str, torch.Tensor] = {"proximal_logprob": same_everywhere, "reference_logprob": same_everywhere}
    method = gxpo.method(spec)
    actual = method.advantages(forest, where if "reference_logprob" in method.needs else None)
    return [float(actual[forest.path_of(r)[0]]) for r in range(len(rows))]


WINNER: list[Row] = [("a", 1.0, [2]), *[("a", 0.0, [2])] * 7]


@pytest.mark.parametrize(
    ("system", "winner", "loser"),
    [
        ("trl", 2.474174, -0.353453),  # sample std .353553; .875 / .353653
        ("areal", 2.474804, -0.353543),
        ("verl", 2.474867, -0.353552),
        ("skyrl", 2.474867, -0.353552),
        ("slime", 2.474867, -0.353552),
        ("trinity", 2.474867, -0.353552),
        ("openrlhf", 2.474874, -0.353553),
        ("rllm", 2.645743, -0.377963),  # population std .330719
        ("nemo-rl", 1.0, -0.377963),  # the others of the winner are equal; those of a loser: mean 1/7, std .377964
        ("tinker", 0.875, -0.125),
    ],
)
def test_one_winner_of_eight(system: str, winner: float, loser: float) -> None:
    assert credit(f"grpo@{system}", WINNER) == pytest.approx([winner] + [loser] * 7, abs=1e-6)


def test_verl_agent_counts_turns() -> None:
    # 2 rows of 1 and 70 of 0: mean 2/72, sample std .165490
    rows: list[Row] = [("a", 1.0, [1, 1]), *[("a", 0.0, [1] * 10)] * 7]
    assert credit("grpo@verl-agent", rows) == pytest.approx([5.874817] + [-0.167852] * 7, abs=1e-6)
    # with one turn each it is verl
    assert credit("grpo@verl-agent", WINNER) == pytest.approx(credit("grpo@verl", WINNER), abs=1e-12)


@pytest.mark.parametrize("spec", ["dr_grpo@trl", "dr_grpo@verl", "dr_grpo@openrlhf"])
def test_dr_grpo(spec: str) -> None:
    assert credit(spec, WINNER) == pytest.approx([0.875] + [-0.125] * 7)


@pytest.mark.parametrize("spec", ["rloo@trl", "rloo@verl", "rloo@openrlhf", "rloo@nemo-rl"])
def test_rloo(spec: str) -> None:
    assert credit(spec, WINNER) == pytest.approx([1.0] + [-1 / 7] * 7)


def test_rloo_of_trl_takes_the_kl_off_the_reward() -> None:
    """rloo_trainer.py (1.16.0), lines 1664-1690: r_i - .05 sum_t (old - ref), less the mean of the others.

    KL .2 - .1, .4 and 0: rewards .995, -.02 and 0; less -.01, .4975 and .4875. Whitened (line 1696) by their mean, 0,
    and std: squares 1.010025, .267806, .237656, over 2, root .870484.
    """
    forest = forest_of([("a", 1.0, [2]), ("a", 0.0, [1]), ("a", 0.0, [1])])
    old = torch.tensor([-1.0, -2.0, -0.5, -0.7], dtype=torch.float64)
    reference = old - torch.tensor([0.2, -0.1, 0.4, 0.0], dtype=torch.float64)
    signals = {"proximal_logprob": old, "reference_logprob": reference}
    plain = [0.995 + 0.01, -0.02 - 0.4975, 0.0 - 0.4875]
    actual = gxpo.method("rloo@trl").advantages(forest, signals)
    assert actual.tolist() == pytest.approx([plain[0], *plain], abs=1e-9)
    std = math.sqrt(sum(x * x for x in plain) / 2)
    for name in ("reinforce_pp", "reinforce_pp_baseline"):
        actual = gxpo.method(f"{name}@trl").advantages(forest, signals)
        assert actual[1:].tolist() == pytest.approx([x / (std + 1e-4) for x in plain], abs=1e-9)


RAW = [
    "grpo@verl",
    "grpo@trinity",
    "grpo@skyrl",
    "gspo@verl",
    "grpo@rllm",
    "grpo@verl-agent",
    "rloo@verl",
    "dr_grpo@verl",
    "asymre@trinity",
]
ZERO = ["grpo@trl", "grpo@roll",
        "grpo@openrlhf", "grpo@areal", "grpo@nemo-rl", "grpo@tinker", "rloo@trl", "rloo@nemo-rl",
        "rloo@skyrl",
        "dr_grpo@trl", "grpo", "asymre"]  # fmt: skip


@pytest.mark.parametrize("spec", [*RAW, *ZERO])
def test_a_group_of_one(spec: str) -> None:
    # T2
    actual = credit(spec, [("a", 0.3, [2]), ("b", 1.0, [1]), ("b", 0.0, [1])])
    assert actual[0] == pytest.approx(0.3 if spec in RAW else 0.0, abs=1e-6) and actual[1] > 0 > actual[2]
    assert spec in RAW or actual[0] == 0.0


@pytest.mark.parametrize("system", COMPAT)
def test_equal_rewards_have_exactly_no_credit(system: str) -> None:
    # T1: in float32 some of these systems divide a residue by eps
    for value in (0.1, 0.7, 1 / 3):
        assert credit(f"grpo@{system}", [("a", value, [1 + i % 3]) for i in range(8)]) == [0.0] * 8


# ---------------------------------------------------------------- batch normalisers
@pytest.mark.parametrize(
    ("system", "right", "wrong"),
    [
        ("verl", 1.207615, -0.724569),  # 8 tokens, mean .375, variance .267857
        ("openrlhf", 1.290994, -0.774597),  # variance .234375
        ("nemo-rl", 1.290994, -0.774597),
        ("trl", 0.865913, -0.865913),  # by trajectory, less the others' mean: +-2/3, std .769800; .666667 / .769900
    ],
)
def test_reinforce_pp(system: str, right: float, wrong: float) -> None:
    rows: list[Row] = [("a", r, [n]) for r, n in zip([1.0, 0, 0, 1], [1, 3, 2, 2], strict=True)]
    assert credit(f"reinforce_pp@{system}", rows) == pytest.approx([right, wrong, wrong, right], abs=1e-6)


@pytest.mark.parametrize(
    ("system", "rare", "common"),
    [
        ("verl", 1.620185, 0.540062),  # .75 and .25 over .462910
        ("openrlhf", 1.732051, 0.577350),  # over .433013
        ("nemo-rl", 1.732051, 0.577350),
        ("trl", 1.619923, 0.539974),  # 1 and 1/3 over .617313
    ],
)
def test_reinforce_pp_baseline(system: str, rare: float, common: float) -> None:
    rows: list[Row] = [*[("a", r, [1]) for r in (1.0, 0, 0, 0)], *[("b", r, [1]) for r in (1.0, 1, 1, 0)]]
    expected = [rare] + [-common] * 3 + [common] * 3 + [-rare]
    assert credit(f"reinforce_pp_baseline@{system}", rows) == pytest.approx(expected, abs=1e-6)


def test_reinforce_pp_baseline_with_a_group_of_one() -> None:
    rows: list[Row] = [("a", 1.0, [1]), ("a", 0.0, [1]), ("b", 1.0, [1])]
    # .5, -.5 and the raw 1: mean 1/3, variance .583333
    expected = [0.218218, -1.091089, 0.872872]
    assert credit("reinforce_pp_baseline@verl", rows) == pytest.approx(expected, abs=1e-6)
    # .5, -.5 and 0: population variance 1/6
    expected = [1.224745, -1.224745, 0.0]
    assert credit("reinforce_pp_baseline@openrlhf", rows) == pytest.approx(expected, abs=1e-6)


TWO = [{"correct": 1.0, "format": 1.0}, {"correct": 1.0, "format": 0.0}, *[{"correct": 0.0, "format": 0.0}] * 2]


def test_gdpo() -> None:
    # T27. Of four answers of one token the two ports agree but for eps; of lengths 1 1 1 5 they don't: verl's mean is
    # over eight tokens, -.683012
    rows: list[Row] = [("g", 1.0, [1])] * 4
    assert credit("gdpo_multi@trl", rows, TWO) == pytest.approx([1.332031, 0.206077, -0.769054, -0.769054], abs=1e-6)
    assert credit("gdpo_multi@verl", rows, TWO) == pytest.approx([1.332111, 0.206078, -0.769095, -0.769095], abs=1e-6)
    rows = [*rows[:3], ("g", 1.0, [5])]
    assert credit("gdpo_multi@trl", rows, TWO) == pytest.approx([1.332031, 0.206077, -0.769054, -0.769054], abs=1e-6)
    assert credit("gdpo_multi@verl", rows, TWO) == pytest.approx([2.220691, 0.764041, -0.497455, -0.497455], abs=1e-6)


def test_gdpo_with_a_group_of_one() -> None:
    rows: list[Row] = [*[("g", 1.0, [1])] * 4, ("h", 1.0, [1])]
    components = [*TWO, {"correct": 1.0, "format": 0.5}]
    actual = credit("gdpo_multi@verl", rows, components)  # its raw 1.5 is whitened with the others
    assert actual == pytest.approx([1.231168, 0.039345, -0.992804, -0.992804, 0.715094], abs=1e-6)
    assert credit("gdpo_multi@trl", rows, components)[4] == 0.0


# ---------------------------------------------------------------- against loops written from each system's formula
def verl_loop(rewards: list[float], turns: list[int]) -> list[float]:
    if len(rewards) == 1:
        return [rewards[0] / (1 + 1e-6)]
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return [(r - mean) / (std + 1e-6) for r in rewards]


def verl_agent_loop(rewards: list[float], turns: list[int]) -> list[float]:
    wide = [r for r, n in zip(rewards, turns, strict=True) for _ in range(n)]
    actual = verl_loop(wide, [])
    return [actual[sum(turns[:i])] for i in range(len(rewards))]


def rllm_loop(rewards: list[float], turns: list[int]) -> list[float]:
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
    return verl_loop(rewards, []) if len(rewards) == 1 else [(r - mean) / (std + 1e-6) for r in rewards]


def nemo_loop(rewards: list[float], turns: list[int]) -> list[float]:
    out = []
    for i, r in enumerate(rewards):
        others = rewards[:i] + rewards[i + 1 :]
        if not others:
            out.append(0.0)
            continue
        mean = sum(others) / len(others)
        square = sum((o - mean) ** 2 for o in others) / (len(others) - 1) if len(others) > 1 else 0.0
        out.append((r - mean) / (math.sqrt(square) + 1e-6) if len(set(others)) > 1 else r - mean)
    return out


@pytest.mark.parametrize(
    ("system", "loop"),
    [("verl", verl_loop), ("verl-agent", verl_agent_loop), ("rllm", rllm_loop), ("nemo-rl", nemo_loop)],
)
def test_loops(system: str, loop: Callable[[list[float], list[int]], list[float]]) -> None:
    rng = random.Random(5)
    for _ in range(25):
        rows, expected = [], []
        for g in range(rng.randrange(1, 4)):
            size = rng.randrange(1, 7)
            rewards = [rng.choice((0.0, 1.0, 0.25, 0.5)) for _ in range(size)]
            turns = [rng.randrange(1, 4) for _ in range(size)]
            rows += [(f"g{g}", r, [1] * n) for r, n in zip(rewards, turns, strict=True)]
            expected += loop(rewards, turns)
        assert credit(f"grpo@{system}", rows) == pytest.approx(expected, abs=1e-9)


# ---------------------------------------------------------------- the table itself
def test_every_entry_names_a_method_and_states_only_differences() -> None:
    for system, table in COMPAT.items():
        assert "grpo" in table, system
        for name, keys in table.items():
            plain = gxpo.method(name).keys
            for key, value in keys.items():
                stated_value = plain[key].value if key in plain else None  # a bound of a gate that the method has not
                assert name in METHODS and not same(stated_value, value), f"{name}@{system} repeats {key}"
            method = gxpo.method(f"{name}@{system}")
            for key, value in keys.items():
                assert same(method.keys[key].value, value) and method.keys[key].origin == f"{name}@{system}"


def test_objectives() -> None:
    dual = PolicyGradient(surrogate=DualClip(0.2, 0.2, 3.0), aggregate="token_mean")
    for name in ("grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "gdpo_multi"):
        assert gxpo.method(f"{name}@verl").terms == {"policy": dual}
    assert gxpo.method("dr_grpo@verl").terms["policy"] == PolicyGradient(surrogate=DualClip(), aggregate="sequence_sum")
    assert gxpo.method("grpo@trl").terms["policy"] == PolicyGradient(surrogate=Clip(), aggregate="token_mean")
    # A = -1 and a ratio of 5: verl's loss is 3, the base's 5
    forest = forest_of([("a", 1.0, [1]), ("a", 0.0, [1])])
    old = torch.full((2,), -1.0, dtype=torch.float64)
    policy = gxpo.PolicyTokens(old + torch.tensor([0.0, math.log(5.0)]), old, proximal_logprob=old)
    advantages = torch.tensor([0.0, -1.0], dtype=torch.float64)
    for spec, expected in (("grpo@verl", 1.5), ("grpo@trl", 2.5), ("grpo", 2.5)):
        assert float(gxpo.method(spec).loss(forest, policy, advantages=advantages).value) == pytest.approx(expected)


def test_a_system_for_a_whole_composition() -> None:
    method = gxpo.method("grpo+gdpo_multi", compat="verl")
    assert (method.credit.batch_unit, method.credit.eps, method.credit.singleton) == ("tokens", 1e-6, "raw")
    assert gxpo.method("grpo+dapo", compat="areal").credit.eps == 1e-5


# ---------------------------------------------------------------- turns
Episode = tuple[tuple[str, ...], tuple[float, ...]]  # the states acted in, and what each action paid


def episodes(rows: Sequence[Episode]) -> Forest:
    """One group."""
    return Forest.from_records(
        [
            {
                "schema": "gxpo.rollouts/1",
                "group": "g",
                "id": str(i),
                "prompt": [1],
                "reward": sum(paid),
                "success": sum(paid) > 0,
                "turns": [
                    {"observation": [2], "action": [3], "state": s, "reward": r}
                    for s, r in zip(states, paid, strict=True)
                ],
            }
            for i, (states, paid) in enumerate(rows)
        ]
    )


ANCHORS: list[Episode] = [(("s0", "s1"), (0.0, 10.0)), (("s0", "s0", "s2"), (0.0, 0.0, 0.0))]
WAYS: list[Episode] = [
    (("s0", "s1", "s2"), (0.0, 0.0, 1.0)),
    (("s0", "s1", "s2"), (0.0, 0.0, 0.0)),
    (("s0", "s3", "s2"), (0.0, 0.0, 1.0)),
]


@pytest.mark.parametrize(
    ("spec", "rows", "expected"),
    [
        # rows 10 10 0 0 0, mean 4; returns 9.5 10 0 0 0, in s0 mean 19/6
        ("gigpo@verl-agent", ANCHORS, [12.333333, 6, -7.166667, -7.166667, -4]),
        # discount 1: returns 10 10 0 0 0, in s0 mean 10/3
        ("gigpo@trinity", ANCHORS, [11.666667, 5, -8.333333, -8.333333, -5]),
        # std over rows 5.477226: 1.095445 and -.730297; in s0 1.154700 and -.577350
        ("gigpo@roll", ANCHORS, [2.250145, 1.095445, -1.307647, -1.307647, -0.730297]),
        # of the first's s2: levels .707105 .999998 .999998 by 2 3 4, over 9
        (
            "hgpo@verl-agent",
            WAYS,
            [0.707105, 0.999998, 0.934911, -1.414210, -0.999998, -1.092045, 0.707105, 0, 0.707105],
        ),
    ],
)
def test_credit_of_states(spec: str, rows: list[Episode], expected: list[float]) -> None:
    assert gxpo.method(spec).advantages(episodes(rows)).tolist() == pytest.approx(expected, abs=2e-6)
