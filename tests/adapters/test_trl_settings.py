"""TRL's settings for a method: translated to its keys, accepted where they agree, refused where they contradict it."""

import ast
import contextlib
import re

import pytest
from tests.adapters.fake_trainer import make_trainer
from tests.adapters.fake_trl import Config
from tests.battery import kinds_of_parts
from tests.thorough import cover_in_lists

import gxpo
from gxpo.adapters import trl_settings, verl_asks
from gxpo.adapters.trl_settings import translate_settings
from gxpo.base.errors import ConfigError
from gxpo.methods import METHODS
from gxpo.parts.definition import show


@pytest.mark.parametrize(
    ("spec", "settings", "says"),
    [
        ("slate", {}, r"rollout=step_candidates.*rollout=independent"),
        ("gigpo", {}, r"credit=relative\+state_relative.*states"),
        ("gae", {}, r"credit=gae.*value"),
        ("dapo", {}, r"rollout=dynamic_sampling: .*needs verdicts: give success_at"),
        ("grpo_lead", {}, r"reward\.shape\.concise=.*length_relative needs verdicts: give success_at"),
        ("mt_grpo", {}, r"reward\.step\.tool_result.*what came back to each turn"),
        ("sfpo", {}, r"update=slow_fast"),
        ("luspo", {"loss_type": "bnpo"}, r"loss_type='bnpo'.*luspo has objective\.aggregate=sequence_sum"),
        ("gspo", {"epsilon": 0.1}, r"epsilon=0\.1 is objective\.clip_low=0\.1, .*here, and gspo has .*0\.0003"),
        ("dr_grpo", {"scale_rewards": "batch"}, r"scale_rewards='batch'.*dr_grpo has credit\.scale=none"),
        ("gvpo", {"epsilon": 0.1}, r"gvpo.*epsilon.*clip_low.*leave"),
        ("grpo", {"overrides": {"objective.kl.coef": 0.1}, "beta": 0.04}, r"beta=0\.04.*objective\.kl\.coef"),
        ("grpo", {"loss_type": "new"}, r"loss_type='new' is not known"),
        (
            "grpo",
            {"off_policy_mask_threshold": 0.5},
            r"off_policy_mask_threshold=0\.5: nothing here masks wrong answers",
        ),
        (
            "grpo",
            {"top_entropy_quantile": 0.2, "entropy_coef": 0.1},
            r"top_entropy_quantile=0\.2 with an entropy bonus",
        ),
        ("grpo", {"use_adaptive_entropy": True, "num_iterations": 2}, r"use_adaptive_entropy.*num_iterations=1"),
        ("grpo", {"multi_objective_aggregation": "normalize_then_sum"}, r"of one reward function.*nothing here does"),
        ("two_grpo", {}, r"num_generations=4: two_grpo has rollout\.group_size=2; set it to 2"),
        ("grpo", {"overrides": {"optim.lr": 1e-5}}, r"optim\.lr=1e-05: TRL's trainer decides it; set learning_rate"),
        ("grpo", {"overrides": {"update.epochs": 1}, "num_iterations": 2}, r"num_iterations=2.*set it to 1"),
        ("vespo", {"use_vllm": True}, r"objective: TRL's vllm_importance_sampling_correction .*set it to False"),
        ("tis", {"use_vllm": True}, r"weight\.mismatch: TRL's vllm_importance_sampling_correction"),
        ("grpo+gspo", {"beta": 0.1}, r"use_bias_correction_kl=True: TRL weighs the KL by the ratio of the sequence"),
        ("grpo@paper", {}, r"beta=0.*0\.04"),
        ("grpo", {"gradient_accumulation_steps": 3, "steps_per_generation": 2}, r"steps_per_generation=2.*multiple"),
        ("gdpo_multi", {"reward_weights": [2.0]}, r"reward_weights.*credit\.weights"),
    ],
)
def test_a_need_that_trl_lacks_is_refused_at_construction(spec, settings, says):
    with pytest.raises(ConfigError, match=says):
        make_trainer(spec, **settings)


@pytest.mark.parametrize(
    ("method", "settings", "keys"),
    [
        ("grpo@trl", {"loss_type": "dr_grpo", "scale_rewards": "none"},
         {"objective.aggregate": "sequence_sum", "credit.scale": "none"}),
        ("grpo@trl", {"loss_type": "grpo", "epsilon": 0.1}, {"objective.aggregate": "sequence_mean",
                                                              "objective.clip_low": 0.1, "objective.clip_high": 0.1}),
        ("rloo", {"epsilon_high": 0.28}, {"objective.clip_low": 0.2, "objective.clip_high": 0.28}),
        ("grpo@trl", {"delta": 1.5}, {"objective.ratio_max": 1.5}),
        ("grpo@trl", {"beta": 0.04}, {"objective.kl.coef": 0.04, "objective.kl.ratio_weighted": True}),
        ("grpo@trl", {"beta": 0.04, "use_bias_correction_kl": False}, {"objective.kl.ratio_weighted": False}),
        ("grpo@trl", {"loss_type": "cispo", "epsilon_high": 5.0}, {"objective.ratio_max": 5.0}),
        ("cispo@trl", {"epsilon_high": 5.0}, {"objective.ratio_max": 5.0}),
        ("grpo@trl", {"loss_type": "sapo", "sapo_temperature_pos": 0.9}, {"objective.tau_positive": 0.9,
                                                                           "objective.aggregate": "sequence_mean"}),
        ("grpo@trl", {"loss_type": "luspo", "importance_sampling_level": "sequence"},
         {"objective.aggregate": "sequence_sum", "objective.horizon": 1.0}),
        ("rloo", {"entropy_coef": 0.01}, {"objective.entropy.coef": 0.01}),
        ("dr_grpo", {"loss_type": "dr_grpo", "scale_rewards": "none"}, {"objective.aggregate": "sequence_sum"}),
        ("gspo", {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
         {"objective.clip_low": 3e-4, "objective.clip_high": 4e-4}),
    ],
)  # fmt: skip
def test_settings_of_trl_become_keys_or_agree_with_them(method, settings, keys):
    actual = make_trainer(method, **settings).gxpo_method.keys
    assert {key: actual[key].value for key in keys} == keys


# TRL's defaults, of which a method states another
AGAINST = [
    ("dr_grpo", "scale_rewards", "group", "credit.scale=std here, and dr_grpo has credit.scale=none"),
    ("dr_grpo", "scale_rewards", True, "credit.scale=std here"),
    (
        "dr_grpo",
        "loss_type",
        "dapo",
        "objective.aggregate=token_mean here, and dr_grpo has objective.aggregate=sequence_sum",
    ),
    ("rloo", "scale_rewards", "group", "credit.scale=std here, and rloo has credit.scale=none"),
    ("gspo", "importance_sampling_level", "token", "objective.ratio=token here, and gspo has objective.ratio=sequence"),
    (
        "gspo",
        "epsilon",
        0.2,
        "objective.clip_low=0.2, objective.clip_high=0.2 here, and gspo has objective.clip_low=0.0003",
    ),
    ("cispo@trl", "loss_type", "dapo", "objective.surrogate=clip here, and cispo@trl has objective.surrogate=truncate"),
    ("sapo_gate", "loss_type", "grpo", "objective.surrogate=clip here, and sapo_gate has objective.surrogate=sigmoid"),
    ("gvpo", "epsilon", 0.2, "epsilon: unknown key"),
    ("gdpo_multi", "multi_objective_aggregation", "sum_then_normalize", "gdpo_multi has credit=decoupled"),
    ("earl", "top_entropy_quantile", 1.0, "keeps all tokens, and earl has weight.entropy_quantile"),
]


def test_a_stated_default_of_trl_can_contradict_a_method():
    silent = []
    for method, setting, value, says in AGAINST:
        assert make_trainer(method).gxpo_method.name == method
        with pytest.raises(ConfigError) as refused:
            make_trainer(method, **{setting: value})
        if says not in str(refused.value) or f"{setting}" not in str(refused.value):
            silent.append(str(refused.value))
    assert not silent
    usual = {"loss_type": "dapo", "scale_rewards": "group", "epsilon": 0.2, "importance_sampling_level": "token",
             "beta": 0.0, "delta": None, "epsilon_high": None, "top_entropy_quantile": 1.0, "entropy_coef": 0.0,
             "sapo_temperature_pos": 1.0, "use_bias_correction_kl": True, "num_iterations": 1}  # fmt: skip
    assert make_trainer(**usual).gxpo_method.name == "grpo@trl"
    tau = {"sapo_temperature_pos": 1.0}
    assert make_trainer("sapo_gate", **tau).gxpo_method.keys["objective.tau_positive"].value == 1.0
    with pytest.raises(ConfigError, match=r"objective\.tau_positive=1\.0 here, and sapo_gate has .*2\.0"):
        make_trainer("sapo_gate", overrides={"objective.tau_positive": 2.0}, **tau)
    assert (
        make_trainer("vespo@trl", importance_sampling_level="token").gxpo_method.name == "vespo@trl"
    )  # as TRL asks for it
    stated_method = make_trainer("grpo", loss_type="dapo").gxpo_method.keys["objective.aggregate"]
    assert (stated_method.value, stated_method.origin) == ("token_mean", "GRPOConfig.loss_type")


@pytest.mark.slow
@pytest.mark.parametrize("names", cover_in_lists(METHODS, kinds_of_parts))
def test_every_override_that_a_refusal_advises_works(names):
    """For methods and every setting of TRL's, stated at another value than the method's."""
    settings = {"loss_type": "dapo", "scale_rewards": "batch", "epsilon": 0.15, "importance_sampling_level": "token",
                "delta": 4.0, "epsilon_high": 0.3, "sapo_temperature_pos": 0.9, "vespo_k_neg": 2.5,
                "top_entropy_quantile": 0.25}  # fmt: skip
    wrong, advised = [], 0
    for name in names:
        for setting, value in settings.items():
            with contextlib.suppress(ConfigError):
                translate_settings(Config(**{setting: value}), name, {})
                continue
            with pytest.raises(ConfigError) as refused:
                translate_settings(Config(**{setting: value}), name, {})
            for actual in re.findall(r"overrides=(\{.*?\})", str(refused.value)):
                advised += 1
                try:
                    method = translate_settings(Config(**{setting: value}), name, ast.literal_eval(actual))
                except ConfigError as error:
                    wrong.append((name, setting, actual, str(error)))
                else:
                    wrong += [
                        (name, k) for k, v in ast.literal_eval(actual).items() if show(method.keys[k].value) != show(v)
                    ]
    assert not wrong and advised > 20


def of_trl(name, overrides=None):
    composed = gxpo.method(name, overrides or {})
    return "; ".join([*trl_settings.declared_refusals(composed), *trl_settings.update_refusals(composed)])


def of_verl(name, overrides=None):
    return verl_asks.why_not(name, "advantage", overrides) or ""


@pytest.mark.slow
@pytest.mark.parametrize("reasons", [of_trl, of_verl])
def test_every_key_that_takes_the_rest_is_accepted(reasons):
    """ "(rollout=independent takes the rest)", "(update.first=null takes the rest)", ..."""
    wrong, advised = [], 0
    for name in METHODS:
        for key, value in re.findall(r"\(([\w.]+)=(\w+) takes the rest\)", reasons(name)):
            advised += 1
            typed = None if value == "null" else int(value) if value.isdigit() else value
            left = reasons(name, {key: typed})
            wrong += [(name, key, left)] if f"{key}=" in left else []
    assert not wrong and advised > 10


def test_required_settings_are_those_of_steps_and_groups():
    assert trl_settings.required_settings(gxpo.method("grpo")) == {}
    assert trl_settings.required_settings(gxpo.method("two_grpo")) == {"num_generations": 2}
    two_passes = gxpo.method("grpo", {"update.epochs": 2, "update.minibatches": 4})
    assert trl_settings.required_settings(two_passes) == {"num_iterations": 2, "steps_per_generation": 4}
    # a stated 1 counts too, against a TRL configuration that has another number
    assert trl_settings.update_settings(gxpo.method("grpo", {"update.epochs": 1})) == {"num_iterations": 1}
    assert trl_settings.required_settings(gxpo.method("grpo", {"objective.kl.coef": 0.04})) == {"beta": 0.04}
