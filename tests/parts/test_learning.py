"""Outputs by name, the policies' log-probs, and signals of a step."""

from __future__ import annotations

import types

import pytest
import torch

import gxpo
from gxpo.base.errors import MissingSignal
from gxpo.parts.learning import Output, PolicyTokens, Signals, learns_from_equal_groups

# prompt 1 2; answers 3 4, 5 and 6: six stored tokens, four path tokens, three trajectories
FOREST = gxpo.Forest.from_completions(
    [[1, 2]], [[[3, 4], [5], [6]]], [[1.0, 0.0, 0.5]], logprobs=[[[-1.0, -2.0], [-3.0], [-4.0]]]
)


def tokens(*x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def test_an_output_is_its_name_and_reads_it_back():
    output = Output("logprob", 0.25, normed=False)
    assert output == "unnormed_logprob@0.25" and {output: 1}["unnormed_logprob@0.25"] == 1
    for read in (output, Output("unnormed_logprob@0.25")):
        assert (read.kind, read.at, read.normed) == ("logprob", "0.25", False)
    plain = Output("mean_logprob")
    assert (plain, plain.kind, plain.at, plain.normed) == ("mean_logprob", "mean_logprob", "", True)
    assert (Output("value@low").kind, Output("value@low").at) == ("value", "low")


def test_policy_tokens_take_the_names_of_trl_and_verl():
    now, old, rollout = tokens(-1.0), tokens(-2.0), tokens(-3.0)
    policy = PolicyTokens(now, rollout_logprob=rollout, old_logprob=old)
    assert policy.behaviour_logprob is policy.rollout_logprob is rollout
    assert policy.proximal_logprob is policy.old_logprob is old
    with pytest.raises(TypeError, match="rollout_logprob and behaviour_logprob are one: give one of them"):
        PolicyTokens(now, behaviour_logprob=rollout, rollout_logprob=rollout)


def test_policy_tokens_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"PolicyTokens\.entropy has shape \(1,\), logprob has \(2,\)"):
        PolicyTokens(tokens(-1.0, -2.0), tokens(-1.0, -2.0), entropy=tokens(0.5))


def test_policy_tokens_are_indexed_with_all_their_outputs():
    policy = PolicyTokens(
        tokens(-1.0, -2.0, -3.0), tokens(-4.0, -5.0, -6.0), value=tokens(1.0, 2.0, 3.0), outputs={"x": tokens(7, 8, 9)}
    )
    part = policy.index(torch.tensor([2, 0]))
    assert (part.logprob.tolist(), part.behaviour_logprob.tolist()) == ([-3.0, -1.0], [-6.0, -4.0])
    assert part.value is not None and part.value.tolist() == [3.0, 1.0] and part.outputs["x"].tolist() == [9, 7]
    assert part.entropy is part.reference_logprob is part.proximal_logprob is None


def test_signals_of_a_step_start_from_the_samplers_log_probs():
    signals = Signals.of(FOREST)
    assert signals["behaviour_logprob"].tolist() == signals["proximal_logprob"].tolist() == [-1.0, -2.0, -3.0, -4.0]
    rollout = tokens(-5.0, -5.0, -5.0, -5.0)
    both = Signals.of(FOREST, {"rollout_logprob": rollout, "old_logprob": tokens(-6.0, -6.0, -6.0, -6.0)})
    assert both["behaviour_logprob"] is both["rollout_logprob"] is rollout
    assert both["old_logprob"].tolist() == [-6.0] * 4 and len(both) == 2
    assert Signals.of(FOREST, {"rollout_logprob": rollout})["proximal_logprob"] is rollout


def test_a_missing_signal_is_described():
    with pytest.raises(MissingSignal, match=r"'entropy' is missing \(entropy of the policy's distribution"):
        Signals()["entropy"]
    with pytest.raises(MissingSignal, match=r"'value@low' is missing \(the value head's estimate"):
        Signals()["value@low"]
    with pytest.raises(MissingSignal, match=r"'mine' is missing \(no part .* pass it as signals=\{'mine': \.\.\.\}"):
        Signals()["mine"]
    assert "mine" not in Signals() and Signals().get("mine") is None


def test_axes_are_stated_built_in_or_path_tokens():
    signals = Signals({}, {"rate": "R"})
    assert [signals.axis(name) for name in ("rate", "hidden", "entropy", "mine")] == ["R", "T", "P", "P"]
    assert Signals.of(FOREST, signals, {"move": "S"}).axes == {"rate": "R", "move": "S"}


def test_signals_are_selected_on_their_own_axis():
    values = {"mine": tokens(10, 20, 30, 40), "rate": tokens(1, 2, 3), "hidden": torch.arange(12).view(6, 2), "n": 5}
    signals = Signals(values, {"rate": "R"}).select(FOREST, torch.tensor([True, False, True]))
    assert signals["mine"].tolist() == [10, 20, 40] and signals["rate"].tolist() == [1, 3] and signals["n"] == 5
    assert signals["hidden"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [10, 11]]  # without the token 5
    assert signals.axes == {"rate": "R"}
    with pytest.raises(ValueError, match="signal 'rate' has 2 rows; axis R of this forest has 3"):
        Signals({"rate": tokens(1, 2)}, {"rate": "R"}).select(FOREST, torch.tensor([0]))


def test_parts_learn_from_equal_groups_only_if_they_say_so():
    assert not learns_from_equal_groups(object())
    assert learns_from_equal_groups(types.SimpleNamespace(learns_from_equal_groups=True))
