"""Reference answers in a group: when, in whose place, how they end, how they are scored, and what their ratio is."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling.rollouts.replay_session import END, UNSCORED, StepSession, right_first, tasks
from tests.sampling.rollouts.retry_parts import ReferenceOnFailure
from tests.sampling.rollouts.scripted_session import WRONG, ScriptedSession

import gxpo
from gxpo.base.errors import ConfigError, TaskError
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.definition import show
from gxpo.parts.protocols import Sampling, StreamKey
from gxpo.sampling.rollouts.reference import ReferenceInGroup
from gxpo.sampling.rollouts.retry import Retry
from gxpo.sampling.rollouts.rounds import Independent
from gxpo.training.models import load

GOLD = {name: "1 7 8 9" for name in ("a", "b", "c")}  # its first token is the verdict: accepted


def session(script=lambda s: WRONG, solutions=GOLD, **more) -> StepSession:
    return StepSession(script, solutions=solutions, **{"sampling": Sampling(max_new_tokens=8), **more})


def by_task(stream: StreamKey) -> int:
    """Task "a" fails always, "b" once in two, "c" can't be scored."""
    return {"a": WRONG, "b": stream.attempt % 2, "c": UNSCORED}[stream.task]


def row_credit(m: gxpo.Method, forest: Forest) -> list[float]:
    credit = m.advantages(forest)
    return [float(credit[forest.path_of(r)[0]]) for r in range(forest.n_trajectories)]


# ---------------------------------------------------------------- in place of a failure
def test_only_a_group_of_failures_is_given_the_reference_answer() -> None:
    s = session(by_task)
    forest = ReferenceOnFailure(4).grow(tasks("a", "b", "c"), s)
    assert forest.group == [f"s3/{name}" for name in "abc" for _ in range(4)]
    assert forest.origin == ["policy"] * 3 + ["demonstration"] + ["policy"] * 8
    assert forest.id[:4] == ["s3/a/0", "s3/a/1", "s3/a/2", "s3/a/reference"]
    assert forest.outcome[:4].tolist() == [0, 0, 0, 1] and forest.success[:4].tolist() == [0, 0, 0, 1]
    assert s.budget.rollouts == 12 and s.budget.discarded == 1
    plain = session(by_task)
    same = plain.score(Independent(4).grow(tasks("a", "b", "c"), plain))
    assert forest.select(range(4, 12)).to_records() == same.select(range(4, 12)).to_records()


def test_the_row_of_the_reference_answer() -> None:
    forest = ReferenceOnFailure(2).grow(tasks("a"), session())
    gold = forest.select([1])
    assert gold.action(0) == [1, 7, 8, 9, END]  # ended as the policy's answers are
    assert bool(gold.path_behaviour_logprob.isnan().all()) and bool(gold.path_trainable.all())
    assert gold.context(int(gold.prompt_node[0])) == list(b"a") and gold.step_finish == ["stop"]
    assert gold.task == ["a"] and gold.component_names == ("correct",) and gold.components.tolist() == [[1.0]]
    assert Forest.from_records(forest.to_records()).to_records() == forest.to_records()


def test_the_card_numbers() -> None:
    # eight rows, one of them right: std = sqrt(7/8 * 1/8 * 8/7) = sqrt(1/8); (7/8) / std = 2.474874, less by eps 1e-6
    forest = ReferenceOnFailure(8).grow(tasks("a"), session())
    credit = row_credit(gxpo.method("gcpo_gold"), forest)
    assert credit == pytest.approx([-0.353552] * 7 + [2.474867], abs=1e-6) and sum(credit) == pytest.approx(0)


@given(st.lists(st.sampled_from([0, 1, UNSCORED]), min_size=2, max_size=6))
def test_which_row_gives_way(verdicts: list[int]) -> None:
    s = session(lambda stream: verdicts[stream.attempt])
    if set(verdicts) == {UNSCORED}:
        assert set(ReferenceOnFailure(len(verdicts)).grow(tasks("a"), s).origin) == {"policy"}
        return
    forest = ReferenceOnFailure(len(verdicts)).grow(tasks("a"), s)
    expected = [f"s3/a/{i}" for i in range(len(verdicts))]
    if 1 not in verdicts:
        del expected[max(i for i, v in enumerate(verdicts) if v == 0)]
        expected.append("s3/a/reference")
    assert forest.id == expected


# ---------------------------------------------------------------- the ratio of the reference answer
def gold_loss(logprob: torch.Tensor, forest: Forest, **policy: torch.Tensor) -> torch.Tensor:
    m = gxpo.method("gcpo_gold", {"objective.clip_low": 0.2, "objective.clip_high": 0.2})
    given_policy_tokens = gxpo.PolicyTokens(logprob, forest.path_behaviour_logprob, **policy)
    (gradient,) = torch.autograd.grad(m.loss(forest, given_policy_tokens).value, logprob)
    return gradient[forest.path_of(1)]


def gold_forest() -> tuple[Forest, torch.Tensor, list[float]]:
    """Group of two, the second the reference answer (5 tokens); log-probs at the start of the step; credits."""
    forest = ReferenceOnFailure(2).grow(tasks("a"), session())
    start = torch.linspace(-2.0, -0.2, forest.n_entries, dtype=torch.float64)
    return forest, start, row_credit(gxpo.method("gcpo_gold"), forest)


def test_sequence_ratio_starts_at_one_drifts_and_is_clipped() -> None:
    forest, start, (_, credit) = gold_forest()
    entries = forest.path_of(1)
    on_start = start.clone().requires_grad_()
    # s = 1: -A / 2 rows / 5 tokens each
    assert gold_loss(on_start, forest, proximal_logprob=start).tolist() == pytest.approx([-credit / 10] * 5)
    drift = torch.zeros_like(start)
    drift[entries] = torch.tensor([0.3, 0.0, 0.1, 0.2, -0.1], dtype=torch.float64)  # mean 0.1: s = e^0.1 for each token
    moved = (start + drift).requires_grad_()
    expected = [-credit * math.exp(0.1) / 10] * 5
    assert gold_loss(moved, forest, proximal_logprob=start).tolist() == pytest.approx(expected)
    drift[entries] += 0.1  # mean 0.2: e^0.2 > 1.2
    assert not gold_loss((start + drift).requires_grad_(), forest, proximal_logprob=start).any()


def test_without_a_proximal_policy_it_stays_at_one() -> None:
    forest, start, (_, credit) = gold_forest()
    for shift in (0.0, 0.1, 1.0):
        gradient = gold_loss((start + shift).requires_grad_(), forest)
        assert gradient.tolist() == pytest.approx([-credit / 10] * 5)


def test_without_failed_groups_it_is_gspo() -> None:
    s = session(right_first(1))
    forest = ReferenceOnFailure(4).grow(tasks("a", "b"), s)
    now = (forest.path_behaviour_logprob + 1e-4 * torch.arange(forest.n_entries)).requires_grad_()
    policy = gxpo.PolicyTokens(now, forest.path_behaviour_logprob)
    values = [gxpo.method(name).loss(forest, policy).value for name in ("gcpo_gold", "gspo")]
    gradients = [torch.autograd.grad(v, now, retain_graph=True)[0] for v in values]
    assert torch.equal(values[0], values[1]) and torch.equal(gradients[0], gradients[1])


# ---------------------------------------------------------------- in every group
def test_every_group_has_samples_and_the_reference_answer() -> None:
    s = session(right_first(1))
    forest = ReferenceInGroup(4, 2).grow(tasks("a", "b"), s)
    assert forest.group == ["s3/a"] * 4 + ["s3/b"] * 4
    assert forest.origin == (["policy"] * 2 + ["demonstration"] * 2) * 2
    assert forest.outcome.tolist() == [1, 0, 1, 1] * 2
    assert s.budget.rollouts == 4 and s.budget.discarded == 0
    assert s.streams == [StreamKey(5, 3, name, i) for name in "ab" for i in range(2)]
    assert int((forest.kind == 0).sum()) == 2  # a prompt is stored once for samples and answers
    unknown = forest.path_behaviour_logprob.isnan()
    assert torch.equal(unknown, forest.to_path(torch.tensor([o == "demonstration" for o in forest.origin]), "R"))


def test_mixed_and_policy_statistics() -> None:
    # one of seven samples is right, and the answer: mean 2/8 = 0.25 -> answer and right sample 0.75, wrong -0.25
    m = gxpo.method("luffy")
    mixed = m.rollout.grow(tasks("a"), session(right_first(1)))
    assert row_credit(m, mixed) == pytest.approx([0.75] + [-0.25] * 6 + [0.75])
    # statistics of the samples alone: mean 1/7; the answer is measured against it: 1 - 1/7 = 0.857143
    m = gxpo.method("luffy", {"rollout.statistics": "policy"})
    split = m.rollout.grow(tasks("a"), session(right_first(1)))
    assert row_credit(m, split) == pytest.approx([6 / 7] + [-1 / 7] * 6 + [0.857143], abs=1e-6)
    # all right, the answer too: nothing is learnt
    assert not any(row_credit(m, m.rollout.grow(tasks("a"), session(right_first(8)))))


def test_luffys_loss_by_hand() -> None:
    m = gxpo.method("luffy").fill(horizon=8.0)
    forest = ReferenceInGroup(3).grow(tasks("a"), session(right_first(1)))
    credit = m.advantages(forest)
    behaviour = forest.path_behaviour_logprob
    generator = torch.Generator().manual_seed(0)
    now = -torch.rand(forest.n_entries, generator=generator, dtype=torch.float64) * 4
    start = now - 0.4  # what the trainer gives: the answer's tokens have no ratio all the same
    leaf = now.clone().requires_grad_()
    out = m.loss(forest, gxpo.PolicyTokens(leaf, behaviour, proximal_logprob=start), advantages=credit)
    (gradient,) = torch.autograd.grad(out.value, leaf)
    value, slopes = 0.0, []
    for r in range(3):
        for p in forest.path_of(r).tolist():
            a, x = float(credit[p]), math.exp(float(now[p]))
            if forest.origin[r] == "demonstration":
                loss, slope = -a * x / (x + 0.1), -a * 0.1 * x / (x + 0.1) ** 2
            else:
                loss = slope = -a * math.exp(0.4)  # no clip at 1.2
            value += loss / 8 / 3
            slopes.append(slope / 8 / 3)
    assert float(out.value.detach()) == pytest.approx(value, abs=1e-14)
    assert gradient.tolist() == pytest.approx(slopes, abs=1e-14)
    assert out.metrics["ratio_max"] == pytest.approx(math.exp(0.4))


def test_the_papers_constants_are_its_own() -> None:
    assert set(gxpo.method("luffy@paper").terms) == {"policy", "entropy"}
    assert set(gxpo.method("luffy").terms) == {"policy"}


# ---------------------------------------------------------------- answers that can't serve
@pytest.mark.parametrize(
    ("text", "limit", "why"),
    [("0 7", 8, "the verifier does not accept it"), ("2 7", 8, "could not score"), ("1 7 8 9", 4, "it has 5 tokens")],
)
@pytest.mark.parametrize("part", [ReferenceOnFailure(3), ReferenceInGroup(3)])
def test_a_bad_reference_answer_is_left_out_and_said(part, text: str, limit: int, why: str) -> None:
    # a success would keep ReferenceOnFailure from asking
    script = right_first(0) if isinstance(part, Retry) else right_first(1)
    s = session(script, {"a": text, "b": "1 5"}, sampling=Sampling(max_new_tokens=limit))
    with pytest.warns(UserWarning, match=f"1 of 2 reference answers are left out, first that of task 'a': .*{why}"):
        forest = part.grow(tasks("a", "b"), s)
    assert forest.scored.tolist() == [True, True, False, True, True, True]
    assert why in forest.info[2]["failure"] and forest.info[5] == {}
    assert bool(forest.success[2].isnan()) and bool(forest.components[2].isnan().all())  # nor a failure in any figure
    again = s.score(forest)  # the trainer scores what the rollout returns
    assert torch.equal(again.scored, forest.scored)
    credit = row_credit(gxpo.method("luffy"), forest)
    expected = [0, 0] if isinstance(part, Retry) else [0.5, -0.5]
    assert credit[:3] == pytest.approx([*expected, 0])


def test_a_task_without_a_reference_answer_is_named() -> None:
    for part in (ReferenceOnFailure(2), ReferenceInGroup(2)):
        with pytest.raises(TaskError, match=r"task 'a' has no reference answer.*info\['solution'\]"):
            part.grow(tasks("a"), session(solutions={}))
    # nobody asks for one that is not needed
    assert ReferenceOnFailure(2).grow(tasks("a"), session(right_first(1), {})).n_trajectories == 2


def test_what_can_not_work_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.references is 4.*group_size = 3"):
        ReferenceInGroup(3, 4)
    with pytest.raises(ConfigError, match=r"all 3 of a group are references"):
        ReferenceInGroup(3, 3, "policy")
    with pytest.raises(ConfigError, match=r"rollout\.statistics"):
        ReferenceInGroup(3, 1, "both")  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ConfigError, match=r"rollout\.group_size is 1; it must be 2 or more"):
        ReferenceOnFailure(1)
    with pytest.raises(ConfigError, match="needs verdicts"):
        ReferenceOnFailure(2).grow(tasks("a"), session(verdicts=False))


# ---------------------------------------------------------------- how an answer ends and is read
def test_an_answer_ends_as_the_policys_do() -> None:
    class Words(StepSession):
        def tokenize(self, text: str, *, markup: bool = False) -> tuple[int, ...]:
            return tuple({"1": 1}.get(c, ord(c)) for c in text)

    def ending(stop: tuple[str, ...], stop_ids: tuple[int, ...] = (END,)) -> list[int]:
        s = Words(right_first(1), solutions={"a": "1 ab; cd."}, sampling=Sampling(max_new_tokens=20, stop=stop))
        s.chat.stop_ids = stop_ids
        return ReferenceInGroup(2).grow(tasks("a"), s).action(1)

    assert ending(()) == [1, *b" ab; cd.", END]
    assert ending((".", ";")) == [1, *b" ab;"]  # the policy would have been stopped there
    assert ending(("#",)) == [1, *b" ab; cd.", END]
    assert ending((), ()) == [1, *b" ab; cd."]


def test_its_probability_is_read_over_the_whole_vocabulary() -> None:
    sampling = Sampling(temperature=0.7, top_k=5, top_p=0.9, max_new_tokens=8)
    for part in (ReferenceOnFailure(3), ReferenceInGroup(3)):
        script = right_first(0) if isinstance(part, Retry) else right_first(1)
        forest = part.grow(tasks("a"), session(script, sampling=sampling))
        assert [(s["temperature"], s["top_k"], s["top_p"]) for s in forest.sampling] == [(0.7, 5, 0.9)] * 2 + [
            (0.7, 0, 1)
        ]
        support = forest.extras["support"][forest.path_token]
        assert bool((support[forest.path_of(2)] == -1).all()) and bool((support[forest.path_of(0)] >= 0).any(1).all())


# ---------------------------------------------------------------- the demo task
@pytest.mark.slow
@pytest.mark.parametrize("method", ["gcpo_gold", "luffy"])
def test_a_cold_model_learns_to_write_the_worked_solutions(method: str, tmp_path: Path) -> None:
    keys = {"tasks.per_step": 2, "rollout.group_size": 3, "sampling.max_new_tokens": 22, "eval.tasks": 4,
            "optim.lr": 1e-3, "eval.every": 0}  # fmt: skip
    run = gxpo.train("tiny:cold", "arithmetic", method, 3, out=tmp_path / "run", set=keys)
    for row in run.metrics:  # the model itself never succeeds
        assert row["unscored"] == 0 and row["origin_demonstration"] == pytest.approx(1 / 3)
        assert row["reward_correct"] == 0 and row["on_policy"] == 1 and row["sampler_gap"] < 1e-4
        assert ("shaped_share" in row) == (method == "luffy")
    assert run.trainer.last_step is not None
    forest = run.trainer.last_step[0]
    given_origins = [r for r, origin in enumerate(forest.origin) if origin == "demonstration"]
    eos = run.trainer.tokenizer.eos_token_id
    assert all(forest.action(r)[-1] == eos and eos not in forest.action(r)[:-1] for r in given_origins)
    assert all("#" in run.trainer.tokenizer.decode(forest.action(r)) for r in given_origins)
    entries = torch.cat([forest.path_of(r) for r in given_origins])
    cold = TorchLearner(load("tiny:cold", task="arithmetic").model, lr=1.0).outputs(forest)["logprob"][entries].mean()
    assert float(run.trainer.learner.outputs(forest)["logprob"][entries].mean()) > float(cold) + 0.05


def test_the_parts_go_by_their_names() -> None:
    for name in ("replay", "retry", "reference_in_group"):
        assert show(gxpo.method("grpo", {"rollout": name}).rollout) == name


def test_step_session_samples_as_the_scripted_session() -> None:
    plain, stepped = ScriptedSession(by_task), StepSession(by_task)
    one, two = (s.score(Independent(2).grow(tasks("a", "b"), s)).to_records() for s in (plain, stepped))
    assert one == two
