"""What a method asks of rollouts is found by what its parts declare and by trying them."""

import pytest

import gxpo
from gxpo.adapters import asks
from gxpo.base.errors import GxpoError


def with_credit(rule):
    """GRPO with the credit that `rule(forest, signals, step)` gives to each path token."""
    return gxpo.method("grpo", {"credit": rule})


def of_ids(forest, signals, step):
    return forest.token[forest.path_token].double()


def of_truncated(forest, signals, step):
    return forest.to_path(forest.truncated.double(), "R")


def of_step(forest, signals, step):
    return forest.to_path(forest.outcome, "R") * step


def of_logprobs(forest, signals, step):
    return signals["behaviour_logprob"].double()


def of_components(forest, signals, step):
    return forest.to_path(forest.components[:, 0], "R")


@pytest.mark.parametrize(
    ("rule", "fact"),
    [
        (of_ids, "ids"),
        (of_truncated, "truncated"),
        (of_step, "step"),
        (of_logprobs, "logprobs"),
        (of_components, "components"),
    ],
)
def test_facts_that_a_credit_reads_are_found_by_trying(rule, fact):
    composed = with_credit(rule)
    assert asks.facts_read(composed) == {fact: "credit"}
    (reason,) = asks.refusals(composed, "a trainer", facts=[f for f in asks.FACTS if f != fact])
    assert reason.startswith("credit=") and asks.FACTS[fact] in reason and "a trainer" in reason
    assert asks.refusals(composed, "a trainer", facts=asks.FACTS) == []


@pytest.mark.parametrize("name", ["grpo", "rloo", "dr_grpo", "opo", "ngrpo"])
def test_outcome_methods_read_rewards_groups_and_lengths_only(name):
    assert asks.facts_read(gxpo.method(name)) == {}
    assert asks.refusals(gxpo.method(name), "a trainer") == []


def test_a_part_that_fails_on_what_is_there_is_the_reason():
    def broken(forest, signals, step):
        raise GxpoError("it needs the moon")

    assert "credit" in asks.refusals(with_credit(broken), "a trainer")[0]
    assert "the moon" in asks.refusals(with_credit(broken), "a trainer")[0]


def test_a_signal_that_needs_the_model_is_refused_by_key():
    (reason,) = asks.refusals(gxpo.method("poise"), "a trainer", signals=("entropy", "hidden"), facts=asks.FACTS)[:1]
    assert reason.startswith("signal.")


def test_verdicts_are_asked_for_where_a_part_can_not_do_without():
    composed = gxpo.method("grpo_lead")
    assert "verdict" in asks.refusals(composed, "a trainer", facts=asks.FACTS)[0]
    assert asks.refusals(composed, "a trainer", facts=asks.FACTS, verdicts=True) == []


@pytest.mark.parametrize("name", ["mt_grpo", "matchtir"])
def test_rewards_of_turns_are_refused(name):
    messages = asks.refusals(gxpo.method(name), "a trainer", facts=asks.FACTS, verdicts=True)
    assert (
        messages[0].startswith("reward.step.")
        and "what came back to each turn, which a trainer does not give" in messages[0]
    )


def test_own_rewards_are_applied_in_the_order_shape_then_add():
    composed = gxpo.method("grpo", {"reward.add.length": "length", "reward.add.length.max_length": 4,
                                    "reward.add.length.answers": "all"})  # fmt: skip
    forest = gxpo.Forest.from_completions([[1]], [[[2, 3], [2, 3, 4, 5]]], [1.0, 0.0])
    shaped = composed.shaped(forest)
    assert shaped.outcome.tolist() == [1.0 - 0.5 * 2 / 4, 0.0 - 0.5]
    assert shaped.component_names == ("length",)


def test_only_parts_that_keep_something_remember():
    assert asks.stateful_keys(gxpo.method("grpo")) == []
    assert asks.stateful_keys(gxpo.method("v05")) == ["signal.task_mean"]


@pytest.mark.parametrize(("name", "reads"), [("erpo", True), ("knapsack_rl", True), ("scaf_grpo", True),
                                             ("repo_replay", False), ("tree_grpo", False)])  # fmt: skip
def test_rollouts_that_read_verdicts_are_found_by_growing_some(name, reads):
    offers = {"signals": ("entropy",), "facts": asks.FACTS, "lends": asks.SERVICES}
    grows = ("task_temperature", "adaptive_group_size", "retry", "replay", "tree")
    composed = gxpo.method(name)
    reasons = asks.refusals(composed, "TRL", grows=grows, **offers)
    assert len(reasons) == reads and all("needs verdicts: give success_at" in r for r in reasons)
    assert asks.refusals(composed, "TRL", grows=grows, verdicts=True, **offers) == []
    assert asks.refusals(composed, "TRL", **offers)[0].startswith("rollout=")


def test_a_rollout_that_no_row_holds_is_refused():
    (reason,) = asks.refusals(gxpo.method("dr_mas"), "TRL", grows=("team",), facts=asks.FACTS)
    assert reason.startswith("rollout=team") and "acts in several contexts" in reason


def test_a_rollouts_memory_is_state():
    assert asks.has_state(gxpo.method("repo_replay").rollout) and not asks.has_state(gxpo.method("ghpo").rollout)
