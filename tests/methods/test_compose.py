"""Composition by leaf key: merging, conflicts, refusals, compat, and what the composed method does on a forest."""

import math
from dataclasses import dataclass

import pytest
import torch
from tests.methods.five_answers import forest

import gxpo
from gxpo.algorithms.credit import CreditPart, advantage
from gxpo.algorithms.credit.sets import pass_at_k
from gxpo.algorithms.objectives.penalty import Penalty
from gxpo.base.errors import ConfigError, GxpoError, MethodConflict, MissingSignal
from gxpo.forest.forest import Forest
from gxpo.methods import METHODS
from gxpo.parts import registry
from gxpo.parts.definition import SettingValue, show
from gxpo.parts.registry import RATIOS


@dataclass(frozen=True)
class NeedsValue(CreditPart):
    size: float

    def __call__(self, forest, signals, step):
        return forest.to_path(forest.outcome, "R")


def winner_of_eight(spec, **keys):
    """The advantage of the winner and of a loser in the reward group [1, 0, 0, 0, 0, 0, 0, 0]."""
    group = Forest.from_completions([[1]], [[[5]] * 8], [1.0, 0, 0, 0, 0, 0, 0, 0])
    a = gxpo.method(spec, keys).advantages(group)
    return float(a[0]), float(a[1])


@pytest.mark.parametrize(
    ("spec", "keys", "winner", "loser"),
    [  # what other systems compute for this group, run or read there (traps, first table)
        ("grpo@trl", {}, 2.474174, -0.353453),
        ("grpo", {}, 2.474867, -0.353552),
        ("grpo", {"credit.eps": 1e-5}, 2.474804, -0.353543),
        ("grpo", {"credit.eps": 1e-9}, 2.474874, -0.353553),
        ("grpo", {"credit.ddof": 0}, 2.645743, -0.377963),
        ("dr_grpo", {}, 0.875, -0.125),
        ("rloo", {}, 1.0, -0.142857),
    ],
)
def test_one_reward_group_in_other_systems(spec, keys, winner, loser):
    assert winner_of_eight(spec, **keys) == pytest.approx((winner, loser), abs=1e-6)


def test_an_unmet_requirement_is_refused_before_the_run(tmp_path):
    def with_value_head(forest, signals, step):
        return forest.to_path(forest.outcome, "R")

    with_value_head.requires = ("value_head",)
    m = gxpo.method("grpo", {"credit": with_value_head})
    assert m.requires == ("value_head",)
    with pytest.raises(ConfigError, match="grpo requires value_head, which neither the rollout nor task 'arithmetic'"):
        gxpo.train("tiny:cold", "arithmetic", m, 1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_methods_that_touch_different_keys_merge():
    both = gxpo.method("dr_grpo+gspo")
    assert both.credit.scale == "none"
    assert both.terms["policy"].aggregate == "sequence_sum"
    assert both.terms["policy"].ratio == RATIOS["sequence"]()
    assert both.keys["credit.scale"].origin == "dr_grpo"
    assert both.keys["objective.ratio"].origin == "gspo"
    assert both.keys["credit.ddof"].origin == "default"


def test_order_does_not_matter_without_conflict():
    a, b = gxpo.method("dr_grpo+gspo"), gxpo.method("gspo+dr_grpo")
    assert {k: s.value for k, s in a.keys.items()} == {k: s.value for k, s in b.keys.items()}


def test_equal_values_merge():
    assert gxpo.method("dr_grpo+rloo").credit.scale == "none"


def test_conflict_names_key_both_methods_and_a_fix_that_works():
    with pytest.raises(MethodConflict) as caught:
        gxpo.method("gigpo+opo")
    message = str(caught.value)
    assert "credit" in message and "gigpo" in message and "opo" in message and "--set credit=gigpo" in message
    assert gxpo.method("gigpo+opo", {"credit": "gigpo"}).credit == gxpo.method("gigpo").credit
    assert show(gxpo.method("gigpo+opo", {"credit": "opo"}).credit) == "length_weighted"


def test_levels_of_a_sum_go_with_their_methods_credit():
    """GiGPO's second level comes and goes with it, and has the statistic of the first unless its own is stated."""
    gigpo = gxpo.method("gigpo", {"credit.scale": "none", "credit.add.state.ddof": 0}).credit.parts
    assert [(p.scale, p.ddof) for p in gigpo] == [("none", 1), ("none", 0)]
    assert gxpo.method("grpo", {"credit": "gigpo"}).credit == gxpo.method("gigpo").credit
    assert type(gxpo.method("gigpo", {"credit": "relative"}).credit).__name__ == "Relative"
    assert show(gxpo.method("gigpo", {"credit": "opo"}).credit) == "length_weighted"
    with pytest.raises(MethodConflict, match="credit"):
        gxpo.method("gigpo+gae")
    assert [p.value for p in gxpo.method("gigpo+oprl").credit.parts] == ["outcome", "return", "process_reward"]


def test_a_stage_key_as_in_a_method_brings_its_parameters():
    method = gxpo.method("gigpo", {"credit": "reinforce_pp_baseline"})
    assert method.credit.center == "mean" and show(method.credit) == "batch_whiten"
    assert method.keys["credit.center"].origin == "override (as in reinforce_pp_baseline)"


def test_a_single_key_as_in_a_method():
    assert (
        gxpo.method(
            "gspo+dapo",
            {"objective.clip_high": "dapo", "objective.clip_low": "gspo", "objective.aggregate": "sequence_mean"},
        )
        .terms["policy"]
        .surrogate.clip_high
        == 0.28
    )


def test_refused_values_are_checked_after_the_merge():
    """T19: a sequence ratio under a token mean is no longer GSPO."""
    with pytest.raises(ConfigError, match=r"gspo can't work with objective.aggregate=token_mean"):
        gxpo.method("gspo", {"objective.aggregate": "token_mean"})
    with pytest.raises(ConfigError, match="gspo can't work with"):
        gxpo.method("gspo+cispo")


@pytest.mark.parametrize(
    ("spec", "keys", "message"),
    [
        ("grop", {}, "unknown method 'grop'; did you mean 'grpo'"),
        ("grpo@tlr", {}, "grpo@tlr is not known; there is paper, trl"),
        ("gigpo@trl", {}, "not known"),
        ("grpo", {"credit.centre": "mean"}, "unknown key 'credit.centre'; did you mean 'credit.center'"),
        ("grpo", {"credit": "relativ"}, "did you mean 'relative'"),
        ("grpo", {"credit.eps": "x"}, "credit.eps=x .*valid number"),
        ("grpo", {"credit.center": "middle"}, "credit.center is 'middle'; it is one of mean, "),
        ("grpo", {"objective.kl.estimator": "k4"}, "objective.kl.estimator is 'k4'; it is one of k1, abs, k2"),
        ("grpo", {"objective.kl.coef": -1.0}, "objective.kl.coef is -1.0; it is 0 or more"),
        ("grpo", {"rollout.group_size": 0}, "group_size"),
        ("rloo+opo", {}, "rloo sets credit.center, which credit length_weighted"),
        ("reinforce_pp+dapo", {}, "set rollout=independent"),
        ("grpo", {"credit": "nowhere.py:f"}, "no such file nowhere.py"),
        ("grpo", {"credit": "math:nothing"}, "math has no 'nothing'"),
        ("tis", {"objective.ratio_over": "behaviour"}, "tis can't work with"),
        ("grpo", {"objective.clip_low": math.nan}, "objective.clip_low=nan .*must be a finite number"),
        ("grpo", {"objective.kl.coef": math.inf}, "objective.kl.coef=inf .*must be a finite number"),
        ("cispo", {"objective.ratio_max": math.nan}, "objective.ratio_max=nan .*must be a finite number"),
        ("grpo", {"credit": "decoupled", "credit.weights": {"a": math.inf}}, "credit.weights=.*must be a finite"),
        ("grpo", {"objective.add.penalty": "penalty"}, "unknown term 'penalty'"),
        ("grpo", {"objective.add.mine": Penalty}, "can't be a term: it has no quantity"),
        ("grpo", {"credit": CreditPart}, "is a class but no dataclass"),
        ("grpo", {"rollout": winner_of_eight}, "can't be a rollout: it has no grow"),
        ("grpo", {"signal.mine": winner_of_eight}, "can't be a signal: it has no compute, provides"),
        ("grpo", {"objective.add.mine": winner_of_eight}, "can't be a term: it has no active, couples"),
        ("grpo", {"credit": NeedsValue}, "credit.size has no default: set it"),
        (["grpo"], {}, r"method=\['grpo'\] is not a name"),
    ],
)
def test_bad_compositions_are_one_line_errors(spec, keys, message):
    """T40: no typo is swallowed."""
    with pytest.raises(ConfigError, match=message) as caught:
        gxpo.method(spec, keys)
    assert "\n" not in str(caught.value)


def test_a_system_is_named_by_a_text():
    with pytest.raises(ConfigError, match=r"compat=\['trl'\] is not a name"):
        gxpo.method("grpo", compat=["trl"])


def test_infinity_is_taken_where_a_part_says_so():
    for spec, key in (("cispo", "objective.ratio_max"), ("disco", "objective.tau")):
        assert gxpo.method(spec, {key: math.inf}).keys[key].value == math.inf
    assert gxpo.method("opo", {"credit.bound": math.inf}).credit.bound == math.inf  # its default


def test_a_part_by_its_name():
    assert gxpo.method("grpo", {"credit": "pass_at_k"}).credit == advantage(pass_at_k)
    assert show(pass_at_k) == "pass_at_k"


def test_every_part_that_has_a_name_can_be_made():
    tables = [x for x in vars(registry).values() if isinstance(x, registry.Table)]
    assert len(tables) == 13
    for table in tables:
        for name, kind in table.items():
            try:
                kind()
            except ConfigError as error:  # a part that is nothing without its settings says which
                assert name in ("spans", "agent"), error


def test_a_function_as_credit_from_python_and_from_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def signed(forest, signals, step):\n    return forest.to_path(2 * forest.outcome - 1, 'R')\n")
    f = forest((1.0, 0.0, 1.0, 1.0, 0.0))
    expected = [1.0, 1, -1, 1, 1, 1, 1, 1, -1]
    assert gxpo.method("grpo", {"credit": f"{path}:signed"}).advantages(f).tolist() == expected
    method = gxpo.method("grpo", {"credit": lambda forest, signals, step: forest.to_path(2 * forest.outcome - 1, "R")})
    assert method.advantages(f).tolist() == expected


def test_a_callers_part_drops_the_methods_parameters():
    """dr_grpo's credit.scale belongs to the part that was replaced; a part that has it takes it."""
    method = gxpo.method("dr_grpo", {"credit": lambda forest, signals, step: forest.to_path(forest.outcome, "R")})
    assert "credit.scale" not in method.keys and method.terms["policy"].aggregate == "sequence_sum"
    assert gxpo.method("dr_grpo", {"credit": "pseudo_rollouts"}).credit.scale == "none"
    with pytest.raises(ConfigError, match=r"unknown key 'credit\.scale'"):
        gxpo.method("grpo", {"credit": "set_relative", "credit.scale": "none"})


def test_an_unknown_key_is_refused_whatever_its_value():
    """A method's name, an empty mapping, null: the value of a misspelt key never hides it."""
    near = {
        "objectiv": "objective",
        "weights": "weight",
        "advantag": "advantage",
        "credit.scal": "credit.scale",
        "objective.kll": "objective.kl",
        "objective.surrogat": "objective.surrogate",
        "rollout.group_sze": "rollout.group_size",
        "tasks.samplr": "tasks.sampler",
        "tasks.per_stp": "tasks.per_step",
        "Credit": "credit",
        "credit ": "credit",
    }
    wrong = []
    for key, meant in near.items():
        head, _, rest = key.partition(".")
        for value in ("gspo", "tis", "grpo", "rloo", "gigpo", {}, None, "none", 1.0, []):
            for overrides in ({key: value}, {head: {rest: value}}) if rest else ({key: value},):
                try:
                    gxpo.method("rloo", overrides)
                    wrong.append(f"{overrides} is accepted")
                except ConfigError as error:
                    if f"unknown key {key!r}; did you mean {meant!r}?" not in str(error):
                        wrong.append(f"{overrides}: {error}")
    assert wrong == []
    with pytest.raises(ConfigError, match=r"unknown key 'xyz'$"):
        gxpo.method("rloo", {"xyz": "grpo"})
    with pytest.raises(ConfigError, match=r"unknown key 'xyz\.a'$"):
        gxpo.method("rloo", {"xyz": {"a": {}}})
    with pytest.raises(ConfigError, match="unknown key 'objectiv'"):
        gxpo.method(gxpo.method("rloo"), {"objectiv": "gspo"})
    for overrides in ({"reward.shap.x": "dapo"}, {"reward": {"shap": {"x": "dapo"}}}, {"reward": {"shap": "dapo"}}):
        with pytest.raises(ConfigError, match=r"unknown key 'reward\.shap.*; did you mean 'reward\.shape'"):
            gxpo.method("rloo", overrides)
    with pytest.raises(ConfigError, match="key 3 is a int: keys are texts"):
        gxpo.method("rloo", {3: "grpo"})
    with pytest.raises(ConfigError, match=r"method is an argument of gxpo\.method"):
        gxpo.method("rloo", {"method": "gspo"})


def test_a_part_that_neither_method_has_is_refused():
    with pytest.raises(ConfigError, match=r"neither rloo nor tis has this key; did you mean 'weight\.mismatch'"):
        gxpo.method("rloo", {"weight.mismatc": "tis"})
    with pytest.raises(ConfigError, match=r"signal\.x=grpo: grpo does not have this key$"):
        gxpo.method("grpo", {"signal.x": "grpo"})


def test_a_stage_key_may_name_a_method_that_has_nothing_there():
    """As in GRPO: the base's part, and none of those that are added by name."""
    plain = gxpo.method("rloo").keys
    for key in ("objective", "objective.surrogate", "objective.kl", "rollout", "update", "segment", "tasks.sampler",
                "weight", "signal", "reward.shape", "credit.add", "objective.kl.coef"):  # fmt: skip
        same = {k: s.value for k, s in gxpo.method("rloo", {key: "grpo"}).keys.items()}
        assert same == {k: s.value for k, s in plain.items()}, key
    assert gxpo.method("rloo", {"credit.scale": "grpo"}).credit.scale == "std"
    assert "weight.mismatch" not in gxpo.method("rloo+tis", {"weight.mismatch": "rloo"}).weights
    assert list(gxpo.method("rloo", {"weight": "tis"}).weights) == ["mismatch"]
    assert list(gxpo.method("rloo", {"weight.token_weight": {}}).weights) == ["token_weight"]
    assert gxpo.method("rloo", {"logging.name": "grpo"}).run_keys["logging.name"].value == "grpo"


def test_credit_of_a_wrong_shape_or_not_finite_is_said():
    with pytest.raises(GxpoError, match=r"gave shape \(5,\)"):
        gxpo.method("grpo", {"credit": lambda f, s, t: f.outcome}).advantages(forest((1.0, 0, 1, 1, 0)))
    with pytest.raises(GxpoError, match="not finite"):
        gxpo.method("grpo", {"credit": lambda f, s, t: f.to_path(f.outcome / 0, "R")}).advantages(
            forest((1.0, 0, 1, 1, 0))
        )


def test_credits_add_in_strings_and_in_python():
    f = forest((1.0, 0.0, 1.0, 1.0, 0.0))
    grpo, opo = gxpo.method("grpo"), gxpo.method("opo")
    added = gxpo.method("grpo", {"credit.add.length_weighted": "length_weighted"})
    expected = grpo.advantages(f) + opo.advantages(f)
    assert torch.allclose(added.advantages(f), expected, atol=1e-15)
    python = gxpo.method("grpo", {"credit": grpo.credit + opo.credit})
    assert torch.allclose(python.advantages(f), expected, atol=1e-15)


# ---------------------------------------------------------------- KL in the reward, signals
def test_kl_in_the_reward_is_subtracted_before_group_statistics():
    f = forest([1.0, 0.0, 0.0, 1.0, 0.0])
    m = gxpo.method(
        "dr_grpo", {"objective.kl.coef": 0.5, "objective.kl.place": "reward", "objective.kl.estimator": "k1"}
    )
    assert m.needs == ("reference_logprob",)
    reference = f.path_behaviour_logprob - 0.25  # k1 = 0.25 a token
    a = m.advantages(f, {"reference_logprob": reference})
    # outcomes less 0.5 * 0.25 * length: [1 - .25, -.125, -.25], [1 - .375, -.125]
    first = [0.75, -0.125, -0.25]
    mean = sum(first) / 3
    expected = [first[0] - mean] * 2 + [first[1] - mean] + [first[2] - mean] * 2 + [0.375] * 3 + [-0.375]
    assert a.tolist() == pytest.approx(expected, abs=1e-12)


def test_a_missing_signal_says_what_it_is():
    m = gxpo.method("grpo", {"objective.kl.coef": 0.1, "objective.kl.place": "reward"})
    with pytest.raises(MissingSignal, match="reference_logprob"):
        m.advantages(forest())
    kl_loss = gxpo.method("grpo@paper")
    f = forest()
    with pytest.raises(MissingSignal, match="reference"):
        kl_loss.loss(f, gxpo.PolicyTokens(f.path_behaviour_logprob, f.path_behaviour_logprob))


def test_no_reference_is_asked_for_at_coefficient_zero():
    asking = {name for name in METHODS if "reference_logprob" in gxpo.method(name).needs}
    against_it = {"dpo", "genii", "trpa", "copg"}  # losses against the reference itself
    against_it |= {"ipo", "kto", "mpo_set", "group_robust_po", "mnpo", "step_apo", "dmpo", "sdpo_segment"}
    against_it |= {
        "ipo_safety",
        "fate",
        "conscientia",
        "optima",
        "meta_plan",
        "dmpo_dlm",
        "dgpo_diffusion",
        "spo_diffusion",
    }
    # a weight by its perplexity; a KL that sets in later; one of .02 that a control follows
    assert asking == {*against_it, "capo_calibration", "grpo_d", "fg_expo"}


def test_tis_weighs_the_loss_and_is_one_without_a_proximal():
    """T22: where the ratio is taken over the sampler itself, the mismatch is not counted a second time."""
    f = forest([1.0, 0.0, 0.0, 1.0, 0.0])
    behaviour = f.path_behaviour_logprob
    proximal = behaviour + math.log(4.0)

    def gradient(spec, **policy):
        logprob = proximal.clone().requires_grad_()
        gxpo.method(spec).loss(f, gxpo.PolicyTokens(logprob, behaviour, **policy)).value.backward()
        return logprob.grad

    plain = gradient("grpo", proximal_logprob=proximal)
    assert torch.allclose(gradient("tis", proximal_logprob=proximal), 2.0 * plain, atol=1e-14)  # min(4, 2)
    assert torch.equal(gradient("tis"), gradient("grpo"))


def test_loss_is_in_the_policy_s_dtype():
    f = forest()
    half = gxpo.PolicyTokens(f.path_behaviour_logprob.float(), f.path_behaviour_logprob.float())
    assert gxpo.method("grpo").loss(f, half).value.dtype == torch.float32


def test_sequence_sum_asks_for_its_horizon():
    f = forest()
    with pytest.raises(GxpoError, match=r"objective\.horizon"):
        gxpo.method("dr_grpo").loss(f, gxpo.PolicyTokens(f.path_behaviour_logprob, f.path_behaviour_logprob))


def test_repr_shows_formula_and_origins():
    text = repr(gxpo.method("gigpo+gspo"))
    assert "(G_t - mean_s G) / (std_s G + eps)" in text and "[gigpo]" in text and "[gspo]" in text


@pytest.mark.parametrize(
    ("spec", "keys", "said"),
    [
        ("rloo", ["credit"], "rloo: nothing of it is left: credit.center, credit.scale gave way to credit="),
        ("gigpo", ["credit"], "gigpo: nothing of it is left: credit, credit.add.state gave way to credit="),
        ("dr_grpo", ["credit"], "dr_grpo: credit.scale gave way to credit="),
        ("grpo", ["credit"], "grpo: its advantage gave way to credit="),
    ],
)
def test_repr_notes_a_callers_credit_in_the_formulas_place(spec, keys, said):
    method = gxpo.method(f"{spec}+gspo", dict.fromkeys(keys, lambda forest, signals, step: forest.path_token * 0.0))
    name, other = repr(method).splitlines()[1:3]
    assert name.strip().startswith(said) and "[override]" in name
    assert gxpo.method(spec).definitions[0].formula not in repr(method)
    assert other.strip() == f"gspo: {gxpo.method('gspo').definitions[0].formula}"
    assert method.without == [name.strip()]
    assert name.endswith("left of it: objective.aggregate") == (spec == "dr_grpo")


def test_a_method_is_whole_as_published_and_with_other_numbers():
    assert {name: lost for name in METHODS if (lost := gxpo.method(name).without)} == {}
    assert gxpo.method("rloo", {"credit.scale": "std"}).without == []
    assert gxpo.method("gigpo", {"credit": "relative"}).without == [
        "gigpo: credit.add.state gave way to credit=relative [override]; left of it: credit"
    ]
    as_in = gxpo.method("gigpo", {"credit": "rloo"}).without
    assert as_in == [
        "gigpo: nothing of it is left: credit, credit.add.state gave way to credit [override (as in rloo)]"
    ]


def test_left_over_options_make_no_part():
    """What another run's configuration states of a part that this method does not add is left out, with a warning."""
    with pytest.warns(UserWarning, match=r"credit.add.state.discount=0.9 is left out"):
        method = gxpo.method("grpo", {"credit.add.state.discount": SettingValue(0.9, "run.yaml:1", optional=True)})
    assert method.credit == gxpo.method("grpo").credit


def test_the_field_s_words_are_accepted():
    """advantage.* is credit.*; TRL's and verl's names of the old and the rollout policy's log-probs."""
    for overrides in ({"advantage.scale": "none"}, {"advantage": {"scale": "none"}}):
        assert gxpo.method("grpo", overrides).credit == gxpo.method("grpo", {"credit.scale": "none"}).credit
    forest = gxpo.Forest.from_completions([[1]], [[[2], [3]]], [[1.0, 0.0]])
    now, old, rollout = (torch.tensor([-1.0, x], dtype=torch.float64) for x in (-1.5, -1.2, -0.9))
    listed_policy_tokens = gxpo.PolicyTokens(now, old_logprob=old, rollout_logprob=rollout)
    plain = gxpo.PolicyTokens(now, rollout, proximal_logprob=old)
    assert listed_policy_tokens.old_logprob is old and listed_policy_tokens.rollout_logprob is rollout
    m = gxpo.method("tis")
    assert float(m.loss(forest, listed_policy_tokens).value) == float(m.loss(forest, plain).value)
    overrides = [{"rollout_logprob": rollout}, {"behaviour_logprob": rollout}]
    one, other = (float(m.loss(forest, plain, signals=s).value) for s in overrides)
    assert one == other
    with pytest.raises(TypeError, match="old_logprob and proximal_logprob are one"):
        gxpo.PolicyTokens(now, rollout, old_logprob=old, proximal_logprob=old)
