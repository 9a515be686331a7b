"""Translation of TRL's settings into keys of a method, and refusals of settings that have no key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gxpo.adapters.trl_config import DEFAULTS
from gxpo.algorithms.objectives.base import PolicyGradient
from gxpo.methods.compat import COMPAT
from gxpo.methods.compose import method as compose
from gxpo.methods.method import Method
from gxpo.parts.definition import SettingValue, show

# settings without a key, of stages that gxpo takes over -> the reason for the refusal
WITHOUT_KEY: Mapping[str, str] = {
    "off_policy_mask_threshold": (
        "nothing here masks wrong answers by how far the policy has moved from them (weight.mismatch_mask is of "
        "answers of either sign, by the mismatch of sampler and learner)"
    ),
}
# loss_type -> aggregate of GRPO's clipped loss, or the method whose loss it is
AGGREGATES = {"grpo": "sequence_mean", "bnpo": "token_mean", "dapo": "token_mean", "dr_grpo": "sequence_sum"}
LOSSES = {"cispo": "cispo@trl", "luspo": "luspo@trl", "sapo": "sapo_gate@trl", "vespo": "vespo@trl"}
# keys of an objective that a loss of LOSSES decides
OF_A_LOSS = ("surrogate", "ratio", "aggregate", "horizon", "ratio_over", "ratio_max")
NUMBERS: Mapping[str, str] = {
    "entropy_coef": "objective.entropy.coef",
    "sapo_temperature_pos": "objective.tau_positive",
    "sapo_temperature_neg": "objective.tau_negative",
    "vespo_k_pos": "objective.power_positive",
    "vespo_lambda_pos": "objective.decay_positive",
    "vespo_k_neg": "objective.power_negative",
    "vespo_lambda_neg": "objective.decay_negative",
}
SCALES = {"group": "std", "batch": "batch_std", "none": "none"}
# settings of adaptive entropy control -> option of `entropy_target`
ADAPTIVE: Mapping[str, str] = {
    "entropy_target": "target",
    "entropy_coef_delta": "step_size",
    "entropy_coef_min": "min_coef",
    "entropy_coef_max": "max_coef",
}
QUANTILE = "weight.entropy_quantile"


@dataclass
class SettingKeys:
    """Keys for TRL's settings: key -> (setting, value), and reasons for those that can't be translated.

    args          TRL's configuration, or a stand-in with its fields
    stated_names  its settings that count as given: see `trl_config.stated_names`
    composed      the method before the translation
    rewards       (name, weight) of each reward function; None where these are not known
    """

    args: Any
    stated_names: set[str]
    composed: Method
    rewards: Sequence[tuple[str, float]] | None = None
    keys: dict[str, tuple[str, Any]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls, args: Any, stated_names: set[str], composed: Method, rewards: Sequence[tuple[str, float]] | None = None
    ) -> SettingKeys:
        """Translate all stated settings."""
        setting_keys = cls(args, stated_names, composed, rewards)
        for name, why in WITHOUT_KEY.items():
            if name in stated_names:
                setting_keys.reasons.append(f"{name}={getattr(args, name)!r}: {why}; leave it out")
        setting_keys._loss()
        setting_keys._bounds()
        # a number that stays at TRL's default matters only to a method that has its key
        for setting, key in NUMBERS.items():
            if setting in stated_names and (key in composed.keys or getattr(args, setting) != DEFAULTS[setting]):
                setting_keys.keys[key] = (setting, getattr(args, setting))
        setting_keys._credit()
        setting_keys._entropy()
        setting_keys._kl()
        return setting_keys

    def _ask(self, setting: str, **keys: Any) -> None:
        """Set keys of the objective, without their prefix, for a setting."""
        self.keys.update({f"objective.{key}": (setting, value) for key, value in keys.items()})

    def _loss(self) -> None:
        """Translate `loss_type` and the level of the ratio."""
        loss = self.args.loss_type if "loss_type" in self.stated_names else ""
        if loss in AGGREGATES:
            self._ask("loss_type", aggregate=AGGREGATES[loss])
            surrogate = self.composed.keys.get("objective.surrogate")
            if surrogate is not None and surrogate.origin != "default" and not _is_clip(surrogate.value):
                self._ask("loss_type", surrogate="clip")
        elif loss in LOSSES:
            loss_keys = compose(LOSSES[loss]).keys
            loss_options = {n: loss_keys[f"objective.{n}"].value for n in OF_A_LOSS if f"objective.{n}" in loss_keys}
            if loss == "luspo":  # in TRL its ratio has the level of importance_sampling_level
                del loss_options["ratio"]
            self._ask("loss_type", **{n: value for n, value in loss_options.items() if value is not None})
        elif loss:
            self.reasons.append(f"loss_type={loss!r} is not known here: leave it out and give a method")
        # VESPO's ratio is of sequences whatever the level
        if "importance_sampling_level" in self.stated_names and not self._is_vespo:
            self._ask("importance_sampling_level", ratio=self.args.importance_sampling_level)

    @property
    def _is_vespo(self) -> bool:
        by_loss = "loss_type" in self.stated_names and self.args.loss_type == "vespo"
        return by_loss or self._surrogate == "gamma"

    @property
    def _surrogate(self) -> str:
        return show(getattr(self.composed.terms.get("policy"), "surrogate", None))

    def _bounds(self) -> None:
        """Translate the ratio's bounds `epsilon`, `epsilon_high` and `delta`; CISPO's are absolute in TRL."""
        loss = self.args.loss_type if "loss_type" in self.stated_names else ""
        if loss == "cispo" or self._surrogate == "truncate":
            bounds: dict[str, tuple[str, ...]] = {"epsilon": ("ratio_max",), "epsilon_high": ("ratio_max",)}
        else:
            bounds = {"epsilon": ("clip_low", "clip_high"), "epsilon_high": ("clip_high",)}
        for setting, keys in bounds.items():
            if setting in self.stated_names:
                self._ask(setting, **dict.fromkeys(keys, getattr(self.args, setting)))
        if "delta" in self.stated_names:
            self._ask("delta", surrogate="dual_clip", ratio_max=self.args.delta)

    def _credit(self) -> None:
        """Translate the scale of the rewards and the order of normalising and summing them."""
        args, setting = self.args, "multi_objective_aggregation"
        if setting in self.stated_names and args.multi_objective_aggregation == "normalize_then_sum":
            self._decoupled(setting)
        elif "scale_rewards" in self.stated_names:
            name: Any = {True: "group", False: "none"}.get(args.scale_rewards, args.scale_rewards)
            self.keys["credit.scale"] = ("scale_rewards", SCALES.get(name, name))
        if setting in self.stated_names and args.multi_objective_aggregation == "sum_then_normalize":
            decoupled = compose("gdpo_multi").credit
            if type(self.composed.credit) is type(decoupled):
                self.reasons.append(
                    f"{setting}='sum_then_normalize': {self.composed.name} has credit={show(decoupled)}, which "
                    "normalises each reward first; leave it out"
                )

    def _decoupled(self, setting: str) -> None:
        """Translate `normalize_then_sum`: each reward normalised in its group, then their sum over the batch."""
        decoupled = compose("gdpo_multi").keys["credit"].value
        if show(self.composed.keys["credit"].value) != show(decoupled):
            credit_keys = [
                k for k, v in self.composed.keys.items() if k.startswith("credit.") and not is_left_open(k, v)
            ]
            # it would replace an estimator whose keys the method states
            if credit_keys:
                self.reasons.append(
                    f"{setting}='normalize_then_sum' is credit={show(decoupled)} here, and {self.composed.name} has "
                    f"{', '.join(f'{k}={show(self.composed.keys[k].value)}' for k in credit_keys)}: leave it out"
                )
                return
        weights = None if self.rewards is None else dict(self.rewards)
        if self.rewards is not None and len(self.rewards) < 2:
            self.reasons.append(
                f"{setting}='normalize_then_sum' of one reward function: TRL normalises its advantages once more over "
                "the batch, nothing here does; leave it out"
            )
            return
        self.keys["credit"] = (setting, decoupled)
        self.keys["credit.eps"] = (setting, 1e-4)
        if weights is not None and any(w != 1.0 for w in weights.values()):
            self.keys["credit.weights"] = ("reward_weights", dict(weights))

    def _entropy(self) -> None:
        """Translate the selection of high-entropy tokens, and the coefficient that follows the entropy."""
        args, names = self.args, self.stated_names
        adaptive = "use_adaptive_entropy" in names and args.use_adaptive_entropy
        quantile = "top_entropy_quantile" in names and args.top_entropy_quantile != 1.0
        if quantile:
            setting = "top_entropy_quantile"
            options = {
                "score": "entropy",
                "curve": "above_quantile",
                "scope": "batch",
                "share": args.top_entropy_quantile,
            }
            self.keys[QUANTILE] = (setting, "token_weight")
            self.keys |= {f"{QUANTILE}.{name}": (setting, value) for name, value in options.items()}
        elif "top_entropy_quantile" in names and QUANTILE in self.composed.keys:
            self.reasons.append(
                f"top_entropy_quantile=1.0 keeps all tokens, and {self.composed.name} has {QUANTILE}; leave it out"
            )
        control = "objective.entropy.control"
        if "use_adaptive_entropy" in names and not adaptive and control in self.composed.keys:
            self.keys[control] = ("use_adaptive_entropy", None)
        if not adaptive:
            return
        self.keys[control] = ("use_adaptive_entropy", "entropy_target")
        for setting, option in ADAPTIVE.items():
            self.keys[f"{control}.{option}"] = (setting, float(getattr(args, setting)))
        self.keys[f"{control}.off_until_measured"] = ("use_adaptive_entropy", True)

    def _kl(self) -> None:
        """Translate `beta`, unless the method reads a reference itself and so has a coefficient of its own."""
        args = self.args
        if not args.beta:
            return
        corrected = bool(getattr(args, "use_bias_correction_kl", False))
        if "reference_logprob" not in self.composed.needs:
            self._ask("beta", **{"kl.coef": args.beta})
            if corrected:
                self._ask("beta", **{"kl.ratio_weighted": True})
        elif "use_bias_correction_kl" in self.stated_names:
            self._ask("use_bias_correction_kl", **{"kl.ratio_weighted": corrected})


def is_left_open(key: str, setting: SettingValue) -> bool:
    """Return True if the value is a default: gxpo's, or a constant of TRL's that was not set."""
    method, _, system = setting.origin.partition("@")
    return setting.origin == "default" or (system == "trl" and key in COMPAT["trl"].get(method, ()))


def _is_clip(surrogate: Any) -> bool:
    """Return True if it is the clipped surrogate of GRPO, with or without a bound for negative advantages."""
    return show(surrogate) in ("clip", "dual_clip")


def has_sequence_ratio(method: Method) -> bool:
    """Return True if the policy term's ratio is that of a whole sequence."""
    term = method.terms.get("policy")
    return isinstance(term, PolicyGradient) and show(term.ratio) == "sequence"
