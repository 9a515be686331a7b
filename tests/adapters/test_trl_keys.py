"""Keys for TRL's settings, one by one and in a trainer."""

import pytest
import torch
from tests.adapters.fake_trainer import PROMPTS, by_length, by_sum, make_trainer, never

import gxpo
from gxpo.adapters.trl_config import with_defaults
from gxpo.adapters.trl_keys import WITHOUT_KEY, SettingKeys, has_sequence_ratio, is_left_open
from gxpo.base.errors import ConfigError
from gxpo.parts.definition import SettingValue, show


def keys_of(settings, method="grpo@trl"):
    """{key: value} and reasons for the settings of a configuration."""
    actual = SettingKeys.of(with_defaults(settings), set(settings), gxpo.method(method))
    return {key: value for key, (_, value) in actual.keys.items()}, actual.reasons


def test_a_bound_of_one_name_is_two_keys_and_cispo_has_one():
    assert keys_of({"epsilon": 0.1}) == ({"objective.clip_low": 0.1, "objective.clip_high": 0.1}, [])
    assert keys_of({"epsilon_high": 0.3}) == ({"objective.clip_high": 0.3}, [])
    assert keys_of({"epsilon_high": 5.0}, "cispo@trl") == ({"objective.ratio_max": 5.0}, [])
    assert keys_of({"delta": 4.0}) == ({"objective.surrogate": "dual_clip", "objective.ratio_max": 4.0}, [])


def test_settings_that_were_not_given_have_no_keys():
    assert SettingKeys.of(with_defaults({"epsilon": 0.1}), set(), gxpo.method("grpo@trl")).keys == {}


def test_a_scale_is_translated_from_its_words_and_booleans():
    for value, scale in (("group", "std"), (True, "std"), ("batch", "batch_std"), (False, "none"), ("none", "none")):
        assert keys_of({"scale_rewards": value}) == ({"credit.scale": scale}, [])


def test_an_unknown_loss_and_a_setting_without_key_are_reasons():
    keys, reasons = keys_of({"loss_type": "new", "off_policy_mask_threshold": 0.5})
    assert keys == {} and len(reasons) == 2
    assert reasons[0].startswith("off_policy_mask_threshold=0.5: nothing here masks wrong answers")
    assert reasons[1] == "loss_type='new' is not known here: leave it out and give a method"


def test_a_beta_is_a_coefficient_weighed_by_the_ratio():
    assert keys_of({"beta": 0.04})[0] == {"objective.kl.coef": 0.04, "objective.kl.ratio_weighted": True}


def test_only_defaults_and_trls_constants_are_left_open():
    assert is_left_open("credit.eps", SettingValue(1e-4, "grpo@trl")) and is_left_open(
        "credit.eps", SettingValue(1e-6, "default")
    )
    assert not is_left_open("credit.eps", SettingValue(1e-4, "override"))
    assert not is_left_open("credit.scale", SettingValue("none", "dr_grpo"))


def test_gspo_has_a_ratio_of_sequences():
    assert has_sequence_ratio(gxpo.method("gspo")) and not has_sequence_ratio(gxpo.method("grpo"))


def test_the_part_named_for_a_setting_without_key_exists():
    assert "weight.mismatch_mask" in WITHOUT_KEY["off_policy_mask_threshold"]
    assert show(gxpo.method("grpo", {"weight.x": "mismatch_mask"}).weights["x"]) == "mismatch_mask"


def test_adaptive_entropy_and_its_quantile_are_translated():
    trainer = make_trainer(use_adaptive_entropy=True, entropy_coef=0.02, entropy_target=1e3, entropy_coef_max=0.027)
    control = trainer.gxpo_method.terms["entropy"].control
    assert (control.target, control.step_size, control.min_coef, control.max_coef, control.off_until_measured) == (
        1e3,
        0.005,
        0.0,
        0.027,
        True,
    )
    first = trainer.optimiser_step(PROMPTS)[0]
    assert first == pytest.approx(make_trainer().optimiser_step(PROMPTS)[0])  # no bonus before an entropy is measured
    trainer.optimiser_step(PROMPTS)
    # 0.02 + 0.005, then the bound; the losses without the bonus are logged beside
    logged = trainer._metrics["train"]
    assert logged["entropy_coef"] == pytest.approx([0.025, 0.027]) and trainer.entropy_coef == pytest.approx(0.027)
    assert len(logged["policy_loss"]) == 2 and logged["policy_loss"][0] == pytest.approx(first)
    equal = make_trainer(reward=never, use_adaptive_entropy=True, entropy_target=1e3)
    for _ in range(2):  # the entropy of a step that moves nothing is measured, too
        equal.optimiser_step(PROMPTS)
    assert equal._metrics["train"]["entropy_coef"] == pytest.approx([0.005, 0.01])
    high = make_trainer(top_entropy_quantile=0.25)
    high.optimiser_step(PROMPTS)
    weight, entropy = high._batch_by_mode["train"].weight, high._batch_by_mode["train"].signals["entropy"]
    bound = float(torch.tensor(sorted(entropy.tolist())).quantile(0.75))
    assert set(weight.tolist()) == {0.0, 1.0} and entropy[weight == 1].min() >= bound - 1e-6
    assert entropy[weight == 0].max() < bound


def test_normalize_then_sum_is_translated():
    both = [by_sum, by_length]
    trainer = make_trainer(reward=both, multi_objective_aggregation="normalize_then_sum", reward_weights=[0.75, 0.25])
    trainer.optimiser_step(PROMPTS)
    scored = trainer._batch_by_mode["train"]
    own_rows = []
    for column in scored.forest.components.unbind(1):
        rows = column.reshape(4, 4)
        own_rows.append(((rows - rows.mean(1, keepdim=True)) / (rows.std(1, keepdim=True) + 1e-4)).flatten())
    total = 0.75 * own_rows[0] + 0.25 * own_rows[1]
    expected = (total - total.mean()) / (total.std() + 1e-4)
    assert scored.credit == pytest.approx(scored.forest.to_path(expected, "R"), abs=1e-6)
    with pytest.raises(ConfigError, match=r"is credit=decoupled here, and rloo has credit\.center=leave_one_out"):
        make_trainer("rloo", both, multi_objective_aggregation="normalize_then_sum")
    with pytest.raises(ConfigError, match="two have the same name"):
        make_trainer("gdpo_multi", [by_sum, by_sum])
