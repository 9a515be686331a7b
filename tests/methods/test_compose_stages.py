"""Stages beside credit and clip: signals, another objective, outcomes shaped, targets that a credit hands over."""

import dataclasses
from dataclasses import dataclass

import pytest
import torch

import gxpo
from gxpo.algorithms.credit import CreditPart, GroupRelative
from gxpo.algorithms.objectives import TermPart
from gxpo.algorithms.signals import SignalPart
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.environments.rewards import RewardPart, own
from gxpo.forest.forest import Forest
from gxpo.sampling.rollouts import Rollout


@dataclass(frozen=True)
class Lengths(SignalPart):
    """A number for each trajectory."""

    scale: float = 1.0

    provides = ("how_long",)
    axes = {"how_long": "R"}  # noqa: RUF012

    def compute(self, forest, signals, tools):
        return {"how_long": self.scale * forest.lengths().double()}


@dataclass(frozen=True)
class Beyond(CreditPart):
    """Outcome less the signal, and the signal as a target."""

    needs = ("how_long",)
    provides = ("goal",)

    def __call__(self, forest, signals, step):
        return forest.to_path(forest.outcome - signals["how_long"], "R")

    def targets(self, forest, signals, step):
        return {"goal": forest.to_path(forest.outcome + 100.0, "R")}


@dataclass(frozen=True)
class Regress(TermPart):
    """(logprob - goal)^2 / 2, summed."""

    factor: float = 1.0

    needs = ("goal",)
    reads_credit = False

    def __call__(self, forest, policy, credit, weight, signals, step):
        return self.factor * 0.5 * (policy.logprob - signals["goal"]).square().sum()

    def active(self, forest, credit, weight, signals=None):
        return forest.path_trainable


@dataclass(frozen=True)
class Doubled(RewardPart):
    def __call__(self, forest):
        return 2.0 * forest.outcome


FOREST = Forest.from_completions(
    [[1]], [[[2, 3], [4], [5]]], [[1.0, 0.0, None]], logprobs=[[[-1.0, -1.0], [-1.0], [-1.0]]]
)


def test_a_signal_part_is_a_stage_with_parameters():
    m = gxpo.method("grpo", {"signal.lengths": Lengths, "signal.lengths.scale": 0.5, "credit": Beyond})
    assert m.needs == () and m.axes == {"how_long": "R"} and m.signals["lengths"].scale == 0.5
    signals = {"how_long": torch.tensor([2.0, 1.0, 1.0])}
    # outcomes 1, 0 and unscored, less 2 and 1
    assert m.advantages(FOREST, signals).tolist() == [-1.0, -1.0, -1.0, 0.0]
    with pytest.raises(ConfigError, match="'how_long', which no part provides"):
        gxpo.method("grpo", {"credit": Beyond})
    with pytest.raises(ConfigError, match="both provide 'how_long'"):
        gxpo.method("grpo", {"signal.lengths": Lengths, "signal.other": Lengths, "credit": Beyond})


def test_another_term_stands_in_the_policy_gradient_s_place():
    keys = {"objective": Regress, "objective.factor": 2.0, "credit.add.beyond": Beyond, "signal.lengths": Lengths}
    m = gxpo.method("grpo", keys | {"objective.add.policy_gradient": "policy_gradient"})
    assert set(m.terms) == {"policy", "policy_gradient"} and m.terms["policy"].factor == 2.0
    signals = {"how_long": torch.zeros(3)}
    # the unscored trajectory is in no statistic and in no term; goals are 101, 101, 100
    assert m.targets(FOREST, signals)["goal"].tolist() == [101.0, 101.0, 100.0, 0.0]
    logprob = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    held_targets = signals | m.targets(FOREST, signals)
    m.terms["policy"](FOREST, gxpo.PolicyTokens(logprob, logprob.detach()), None, None, held_targets, 0).backward()
    assert logprob.grad.tolist() == [-202.0, -202.0, -200.0, -0.0]


def test_m_loss_hands_targets_over_by_itself():
    keys = {"objective": Regress, "objective.add.policy_gradient": "policy_gradient", "credit": Beyond}
    m = gxpo.method("grpo", keys | {"signal.lengths": Lengths})
    logprob = torch.zeros(4, dtype=torch.float64)
    out = m.loss(FOREST, gxpo.PolicyTokens(logprob, logprob), signals={"how_long": torch.ones(3)})
    # 0.5 (101^2 + 101^2 + 100^2) = 15201; credit is 0 for the first (1 - 1) and -1 for the second, whose one token has
    # ratio 1: the mean over two trajectories of -A is 0.5
    assert float(out.value) == pytest.approx(15201.5, abs=1e-9)


def test_a_credit_that_no_term_reads_is_refused():
    with pytest.raises(ConfigError, match="reads outcomes, not advantages"):
        gxpo.method("rloo", {"objective": Regress, "signal.lengths": Lengths, "credit.add.beyond": Beyond})


def test_a_sum_of_credits_hands_over_the_targets_of_its_parts():
    total = GroupRelative() + Beyond()
    assert total.provides == ("goal",) and set(total.targets(FOREST, {}, 0)) == {"goal"}
    with pytest.raises(ConfigError, match="both hand over goal"):
        Beyond() + dataclasses.replace(Beyond())


def test_outcomes_are_shaped_before_rewards_are_added(tmp_path):
    keys = {"reward.shape.doubled": Doubled, "reward.add.overlong": "overlong"}
    m = gxpo.method("grpo", keys)
    run = gxpo.train("tiny:cold", "arithmetic", m, 1, lambda tokens: float(len(tokens)), out=tmp_path / "run",
                     set={"tasks.per_step": 2, "sampling.max_new_tokens": 5, "eval.tasks": 2})  # fmt: skip
    row = run.metrics[-1]
    assert row["reward_doubled"] == pytest.approx(2 * row["length_mean"])
    assert row["reward_mean"] == pytest.approx(row["reward_doubled"] + row["reward_overlong"])


class Watching:
    """A task source, or with `of` another object, that notes what it is shown."""

    def __init__(self):
        self.shown = []

    def draw(self, n, step):
        return [{"id": f"t{i}", "prompt": f"{i}=", "answer": i} for i in range(n)]

    def held_out(self, n):
        return [{"id": f"h{i}", "prompt": f"{i}?", "answer": i} for i in range(n)]

    def observe(self, forest):
        self.shown.append(forest)


@dataclass(frozen=True)
class WatchingRollout(Rollout):
    group_size: int = 4
    shown: list = dataclasses.field(default_factory=list, compare=False)

    def grow(self, tasks, session):
        scored = session.score(super().grow(tasks, session))
        self.shown.append(scored.outcome)
        return scored

    def observe(self, forest):
        self.shown.append(forest)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        assert state == {}


def test_observers_see_the_shaped_outcome_and_the_task_s(tmp_path):
    """Length l; shaped 2 l, and 10 is added: outcome 2 l + 10 beside the task's own l."""
    rollout, source = WatchingRollout(), Watching()
    ten = lambda forest: torch.full((forest.n_trajectories,), 10.0)  # noqa: E731
    m = gxpo.method("grpo", {"rollout": rollout, "reward.shape.doubled": Doubled, "reward.add.ten": ten})
    gxpo.train("tiny:cold", source, m, 1, lambda tokens: float(len(tokens)), out=tmp_path / "run",
               set={"tasks.per_step": 2, "sampling.max_new_tokens": 5, "eval.tasks": 2})  # fmt: skip
    (first, forest), (same,) = rollout.shown[-2:], source.shown
    assert forest is same and torch.equal(forest.task_outcome, first)
    assert forest.task_outcome.tolist() == forest.lengths().tolist()
    assert forest.outcome.tolist() == [2 * x + 10 for x in forest.lengths().tolist()]
    part = Forest.concat([forest.select([1]), forest.select([0, 2])])
    assert part.task_outcome.tolist() == [first[1], first[0], first[2]]
    assert torch.equal(forest.with_rewards(first + 1).task_outcome, first + 1)  # scored anew


def test_step_rewards_of_the_task_stay_known():
    known_n_steps = torch.full((FOREST.n_steps,), torch.nan, dtype=torch.float64)
    known_n_steps[0] = 0.5
    plain = FOREST.replace(step_reward=known_n_steps)
    shaped = own.apply(plain, {}, {"a": EachStep()}, {})
    assert shaped.step_reward[0] == 0.5 and shaped.step_reward[1] == 1.0
    assert shaped.task_step_reward[0] == 0.5 and bool(shaped.task_step_reward[1:].isnan().all())
    only = own.apply(plain, {"two": lambda forest: 2 * forest.outcome}, {}, {})
    assert only.task_step_reward is only.step_reward
    assert [f.task_outcome[:2].tolist() for f in (plain, shaped, only)] == [[1.0, 0.0]] * 3
    assert only.outcome[:2].tolist() == [2.0, 0.0] and bool(only.task_outcome[2].isnan())


def test_the_context_is_one_of_two():
    assert gxpo.method("grpo", {"objective.context": "sampled"}).context == "sampled"
    with pytest.raises(ConfigError, match=r"objective\.context"):
        gxpo.method("grpo", {"objective.context": "hinted"})


@dataclass(frozen=True)
class EachStep(RewardPart):
    """A number for every step; none for the last."""

    def __call__(self, forest):
        x = torch.arange(forest.n_steps, dtype=torch.float64)
        x[-1] = torch.nan
        return x


def test_step_rewards_of_ones_own_are_added_to_the_steps(tmp_path):
    known_n_steps = torch.full((FOREST.n_steps,), torch.nan, dtype=torch.float64)
    known_n_steps[0], known_n_steps[1] = 0.5, -1.0
    actual = own.apply(
        FOREST.replace(step_reward=known_n_steps), {}, {"a": EachStep(), "b": EachStep()}, {}
    ).step_reward
    assert actual[:2].tolist() == [0.5, 1.0] and bool(actual[2].isnan()) and len(actual) == 3
    with pytest.raises(GxpoError, match=r"reward\.step\.c .*gave shape \(1,\); it has to give shape \(3,\)"):
        own.apply(FOREST, {}, {"c": lambda forest: torch.zeros(1)}, {})
    m = gxpo.method("gigpo", {"reward.step.paid": EachStep, "segment": "chunks", "segment.tokens": 2})
    run = gxpo.train("tiny:cold", "arithmetic", m, 1, lambda tokens: float(len(tokens)), out=tmp_path / "run",
                     set={"tasks.per_step": 2, "sampling.max_new_tokens": 5, "eval.tasks": 2})  # fmt: skip
    assert run.trainer.last_step is not None
    forest = run.trainer.last_step[0]
    assert forest.step_reward[:-1].tolist() == list(range(forest.n_steps - 1))
    assert int(forest.segment.max()) == 2
