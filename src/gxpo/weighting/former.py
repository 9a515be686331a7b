"""Former names of weights."""

from __future__ import annotations

from typing import Any

from gxpo.former import Former


def _of_group(curve: str, statistic: str = "success_rate") -> Former:
    return Former("group_weight", {"statistic": statistic, "curve": curve})


def _of_token(by: str, keep: str, keys: dict[str, str] | None = None, **options: Any) -> Former:
    return Former("token_weight", {"by": by, "keep": keep, **options}, keys or {})


FORMER = {
    "answer_entropy": _of_group("damped", "answer_entropy"),
    "beta_density": _of_group("beta_density"),
    "difficulty_mix": _of_group("difficulty_mix"),
    "difficulty_softmax": _of_group("difficulty_softmax"),
    "gaussian_rate": _of_group("gaussian_rate"),
    "hardness": _of_group("hardness", "dissimilarity"),
    "length_signal": _of_group("one_or", "long_pays"),
    "mean_outcome": _of_group("ramp", "mean_outcome"),
    "noise_aware": _of_group("noise_aware"),
    "valid_share": _of_group("over_share", "credited"),
    "conflict": _of_token("credit", "shared_affix"),
    "curvature": _of_token("credit", "curvature", sign="nonzero"),
    "by_sign": _of_token("credit", "by_sign"),
    "disagreement": _of_token("disagreement", "stretched", scope="group"),
    "down_sampling": _of_token("credit", "down_sampling"),
    "drop_median": _of_token("outcome", "drop_median", unit="trajectory", scope="group"),
    "early_use": _of_token("lateness", "bonus", {"delta": "strength"}, strength=-2.0, bound=0.7),
    "entropy_ceiling": _of_token("mean_entropy", "between", {"most": "high"}, high=0.7),
    "entropy_quantile": _of_token("entropy", "above_quantile"),
    "exponential_credit": _of_token("credit", "exponential"),
    "labelled": _of_token("label", "raised"),
    "largest_credit": _of_token("mean_credit", "largest_size", unit="trajectory", scope="group"),
    "newest_version": _of_token("version", "at_maximum", scope="trajectory"),
    "noise_level": _of_token("noise_scale", "over_mean"),
    "novelty": _of_token("rarity", "bonus", {"cap": "bound"}, sign="positive", strength=2.5, bound=0.5),
    "perception": _of_token("dependency", "top_scaled", scope="trajectory"),
    "reference_perplexity": _of_token("perplexity", "plausible", unit="trajectory"),
    "relative_entropy": _of_token("mean_entropy", "relative_entropy", unit="trajectory"),
    "shared_affix_mask": _of_token("credit", "shared_affix"),
    "u_shape": _of_token("position", "u_shape"),
    "untaught": _of_token("taught", "between", high=0.0),
}
