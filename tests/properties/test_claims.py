"""Verdicts on the papers' claims, from rows made by hand; the list itself; rank correlations."""

import math
import re
import sys
from pathlib import Path

import pytest

from gxpo.base.errors import ConfigError
from gxpo.compare.results import Estimate

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import claims  # noqa: E402
import predictors  # noqa: E402
import study  # noqa: E402

HELD, NOT_SEEN, CANNOT = claims.HELD, claims.NOT_SEEN, claims.CANNOT


def row(seed, curve, digest="d", tokens=1000, trouble="", curves=None, **figures):
    """A run of equally far evaluations with these values of held-out accuracy; `tokens` between two."""
    evaluations = [
        {"step": i, "tokens": i * tokens, "updates": 2 * i, "seconds": 0.5 * i, "eval_accuracy": x, **figures}
        for i, x in enumerate(curve)
    ]
    return {"digest": digest, "seed": seed, "evaluations": evaluations, "curves": curves or {}, "trouble": trouble,
            "discarded_rollouts": 0, "commit": "abc"}  # fmt: skip


def side(ends, start=0.2):
    return {i: row(i, [start, x]) for i, x in enumerate(ends)}


def estimate(low, high):
    return Estimate((low + high) / 2, low, high, 10)


MORE = claims.Prediction("eval_accuracy", "more")


@pytest.mark.parametrize(
    ("prediction", "low", "high", "verdict"),
    [
        (MORE, 0.01, 0.05, HELD),
        (MORE, -0.01, 0.05, NOT_SEEN),
        (MORE, -0.05, -0.01, NOT_SEEN),
        (MORE, 0.0, 0.05, NOT_SEEN),
        (claims.Prediction("eval_accuracy", "more", size=0.09), -0.02, 0.10, CANNOT),  # holds none and the paper's
        (claims.Prediction("eval_accuracy", "more", size=0.09), -0.02, 0.08, NOT_SEEN),
        (claims.Prediction("eval_accuracy", "more", size=0.09), 0.01, 0.02, HELD),  # the size is no condition
        (claims.Prediction("eval_length", "less"), -3.0, -1.0, HELD),
        (claims.Prediction("eval_length", "less"), 1.0, 3.0, NOT_SEEN),
        (claims.Prediction("eval_length", "less", size=-2.0), -3.0, 1.0, CANNOT),
        (claims.Prediction("eval_accuracy", "equal", margin=0.02), -0.01, 0.02, HELD),
        (claims.Prediction("eval_accuracy", "equal", margin=0.02), 0.005, 0.015, HELD),  # differs, by less than matters
        (claims.Prediction("eval_accuracy", "equal", margin=0.02), -0.01, 0.03, CANNOT),
        (claims.Prediction("eval_accuracy", "equal", margin=0.02), 0.01, 0.03, NOT_SEEN),
        (claims.Prediction("tokens_to_target", "more", ratio=8), math.log(1.1), math.log(2), HELD),
        (claims.Prediction("tokens_to_target", "more", ratio=8), math.log(0.9), math.log(2), NOT_SEEN),
        (claims.Prediction("tokens_to_target", "more", ratio=8), math.log(0.9), math.log(9), CANNOT),
        (MORE, math.nan, math.nan, CANNOT),
    ],
)
def test_verdicts(prediction, low, high, verdict):
    assert claims.judge(prediction, estimate(low, high)) == verdict


def test_a_prediction_says_a_direction_and_equality_a_margin():
    with pytest.raises(ConfigError, match="more, less or equal"):
        claims.Prediction("eval_accuracy", "fewer")
    with pytest.raises(ConfigError, match="margin"):
        claims.Prediction("eval_accuracy", "equal")


def test_differences_are_paired_by_seed():
    base, arm = side([0.3, 0.5, 0.7]), side([0.4, 0.62, 0.78])
    arm[7] = row(7, [0.2, 0.0])  # without a partner
    actual = claims.compare(MORE, base, arm)
    # differences .10, .12, .08: mean .10, sd .02; t(2) at 97.5 % is 4.3027: .10 +- 4.3027 * .02 / sqrt(3)
    assert actual.estimate.mean == pytest.approx(0.10)
    assert actual.estimate.low == pytest.approx(0.10 - 4.30265 * 0.02 / math.sqrt(3), abs=1e-5)
    assert (actual.base, actual.arm) == (pytest.approx(0.5), pytest.approx(0.6))
    assert actual.verdict == HELD


def test_too_few_pairs_and_failed_runs_are_told():
    base, arm = side([0.3, 0.5, 0.7]), side([0.4, 0.6, 0.8])
    arm[2] = row(2, [0.2, 0.9], trouble="RuntimeError: x")
    actual = claims.compare(MORE, base, arm)
    assert (actual.verdict, actual.estimate, actual.failed) == (CANNOT, None, 1)
    assert (actual.why, actual.waits) == ("paired seeds: 2", False)


def test_what_is_spent_until_a_target():
    # .2 at 0, .4 at 1000, .6 at 2000: .5 is reached half way between the last two
    assert claims.cost_until(row(0, [0.2, 0.4, 0.6]), 0.5, "tokens") == (pytest.approx(1500.0), True)
    assert claims.cost_until(row(0, [0.2, 0.4, 0.6]), 0.5, "updates") == (pytest.approx(3.0), True)
    assert claims.cost_until(row(0, [0.2, 0.6, 0.3]), 0.5, "seconds") == (pytest.approx(0.375), True)
    assert claims.cost_until(row(0, [0.2, 0.4, 0.6]), 0.7, "tokens") == (2000.0, False)
    assert claims.cost_until(row(0, [0.2, 0.4, 0.6]), 0.1, "tokens") == (20.0, True)  # a hundredth of all


def test_ratio_of_what_is_spent():
    base = {s: row(s, [0.2, 0.4, 0.6]) for s in range(4)}  # gains .4; target .9: .56, at 1800 tokens
    arm = {s: row(s, [0.2, 0.8, 0.8]) for s in range(4)}  # .56 at 600 tokens
    actual = claims.compare(claims.Prediction("tokens_to_target", "more", ratio=3), base, arm)
    assert math.exp(actual.estimate.mean) == pytest.approx(3.0)
    assert (actual.base, actual.arm, actual.reached) == (pytest.approx(1800), pytest.approx(600), (4, 4))
    assert actual.verdict == HELD
    assert "3.00 (3.00 to 3.00) times" in claims.difference_text(actual)
    never = {s: row(s, [0.2, 0.3, 0.3]) for s in range(4)}
    worse = claims.compare(claims.Prediction("tokens_to_target", "more", ratio=3), base, never)
    assert math.exp(worse.estimate.mean) == pytest.approx(0.9)  # 1800 of 2000, which is all that it spent
    assert (worse.reached, worse.verdict) == ((4, 0), NOT_SEEN)


def test_without_a_gain_of_the_base_there_is_no_target():
    flat = {s: row(s, [0.2, 0.2, 0.21]) for s in range(4)}
    actual = claims.compare(claims.Prediction("tokens_to_target", "more"), flat, flat)
    assert actual.verdict == CANNOT
    assert "no target" in actual.why


def test_values_of_a_run():
    curve = {"entropy": [[i, x] for i, x in enumerate([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0])]}
    one = row(0, [0.2, 0.8, 0.3], curves=curve, eval_length=17.5)
    assert claims.value_of(one, "gain") == pytest.approx(0.1)
    assert claims.value_of(one, "collapsed") == 1.0  # .3 is below half of .8
    assert claims.value_of(one, "curve:entropy") == 1.5  # the last two of eight
    assert claims.value_of(one, "peak:entropy") == pytest.approx(8 / 4.5)
    assert claims.value_of(one, "eval_length") == 17.5
    assert math.isnan(claims.value_of(one, "curve:grad_norm"))
    assert math.isnan(claims.value_of(one, "eval_pass_at_8"))


def test_a_measure_that_no_run_has_cannot_be_tested():
    actual = claims.compare(claims.Prediction("eval_pass_at_8", "more"), side([0.3] * 4), side([0.4] * 4))
    assert (actual.verdict, actual.why) == (CANNOT, "the runs have no eval_pass_at_8")


def test_gain_is_of_the_arm_itself():
    actual = claims.compare(claims.Prediction("gain", "more"), side([0.9] * 4), side([0.3, 0.31, 0.29, 0.3]))
    assert actual.estimate.mean == pytest.approx(0.1)
    assert actual.verdict == HELD


@pytest.mark.parametrize(
    ("main", "varied", "said"),
    [
        (HELD, HELD, "there, too"),
        (HELD, NOT_SEEN, "vanishes"),
        (NOT_SEEN, HELD, "appears"),
        (NOT_SEEN, NOT_SEEN, "nor there"),
        (HELD, CANNOT, "can't be told"),
        (CANNOT, HELD, "held there"),
    ],
)
def test_what_the_varied_condition_did(main, varied, said):
    actual = [claims.Finding("arm", "base", MORE, None, 0.0, 0.0, v) for v in (main, varied)]
    assert claims.describe_change(*actual) == said


@pytest.mark.parametrize(("verdict", "said"), [(HELD, "as predicted there"), (NOT_SEEN, "not as predicted there")])
def test_condition_is_judged_by_its_own_prediction(verdict, said):
    main = claims.Finding("arm", "base", MORE, None, 0.0, 0.0, NOT_SEEN)
    equal = claims.Prediction("eval_accuracy", "equal", margin=0.01)
    assert claims.describe_change(main, claims.Finding("arm", "base", equal, None, 0.0, 0.0, verdict)) == said


def test_what_has_not_run_has_no_verdict_yet():
    actual = claims.compare(MORE, side([0.3, 0.5]), side([0.4, 0.6]))
    assert (actual.verdict_text, actual.why) == ("not run yet", "paired seeds: 2")
    assert claims.describe_change(actual, actual) == ""


LIST = study.read_list(claims.LIST)


def test_the_list_is_whole():
    assert len(LIST["experiments"]) >= 12
    for e in LIST["experiments"]:
        assert {"id", "paper", "arxiv", "claim", "their_setting", "read", "here", "predicts", "setting", "seeds",
                "base", "arms", "varied", "seconds_per_run"} <= set(e), e["id"]  # fmt: skip
        assert re.fullmatch(r"\d{4}\.\d{5}", e["arxiv"]), e["id"]
        assert e["seeds"] >= 10
        varied, predicts = claims.varied_condition(e)
        assert varied["condition"]
        for p in (e["predicts"], predicts, *([e["also"]] if "also" in e else [])):
            claims.Prediction(**p)
        assert {e["setting"], varied["setting"]} <= set(LIST["settings"])
    ids = [e["id"] for e in LIST["experiments"]]
    assert len(ids) == len(set(ids))


def test_page_and_table_of_runs_made_by_hand():
    e = next(x for x in LIST["experiments"] if x["id"] == "gigpo")
    only = {**LIST, "experiments": [e], "untested": []}
    store = {}
    for label, ends in (("base", [0.20, 0.21, 0.22]), ("arm", [0.30, 0.32, 0.31])):
        side_ = e["base"] if label == "base" else e["arms"][0]
        name = study.digest(study.keys_of(LIST["settings"]["lake"], side_))
        store |= {(name, s): row(s, [0.16, x], digest=name) for s, x in enumerate(ends)}
    text = claims.page(only, [only], store)
    assert (
        "| `gigpo` | more eval_accuracy, +.090 by the paper | .310 - .210: +.100 (+.075 to +.125), 3 seeds | "
        "**held here** |" in text
    )
    assert "Of 1 claims: 1 held here." in text
    assert "| paired seeds: 0 |  |" in text  # nothing ran of the varied condition
    assert text.startswith("# Headline claims") and "```bash\npython scripts/claims.py\n```" in text
    assert "refuted" not in text
    assert len(claims.page(LIST, [LIST], {}).splitlines()) <= 150


def test_rank_correlation_and_what_foretells():
    rho, p = predictors.rank_correlation([1, 2, 3, 4], [10, 20, 40, 30])
    assert rho == pytest.approx(0.8)  # 1 - 6 (0 + 0 + 1 + 1) / (4 * 15)
    assert 0 < p < 1
    assert math.isnan(predictors.rank_correlation([1, 2], [1, 2])[0])
    assert math.isnan(predictors.rank_correlation([1, 1, 1], [1, 2, 3])[0])
    pair = predictors.Pair(
        {"task": "t", "method": "grpo", "optim.lr": 1.0}, {"task": "t", "method": "gigpo", "optim.lr": 1.0}, 3
    )
    names = [study.digest(predictors.first_gradient(k)) for k in (pair.base, pair.arm)]
    measurements = {
        "signal": {
            names[0]: {"signal": 0.01, "error": 0.001, "tokens_per_task": 100},
            names[1]: {"signal": 0.06, "error": 0.1, "tokens_per_task": 200},
        },
        "fidelity": {"t/grpo": 0.3, "t/gigpo": 0.5},
    }
    # 10,000 tokens are 100 tasks of the base, 100 * .01 = 1: cosine 1/2; 50 of the arm, 50 * .06 = 3: 3/4
    assert predictors.by_signal(pair, measurements) == pytest.approx(0.25)
    measurements["signal"][names[0]]["error"] = 0.01  # neither is told from 0
    assert math.isnan(predictors.by_signal(pair, measurements))
    assert predictors.by_fidelity(pair, measurements) == pytest.approx(0.2)
    other = predictors.Pair(pair.base, {**pair.arm, "credit.scale": "none"}, 3)
    assert math.isnan(predictors.by_fidelity(other, measurements))
    store = {
        (name, s): row(s, [0.2, x + 0.01 * s]) for name, x in zip(pair.names, (0.3, 0.4), strict=True) for s in range(3)
    }
    assert list(predictors.predict_gains([pair], store, lambda p: 1.0)) == [("gigpo", 1.0, pytest.approx(0.1))]
    assert list(predictors.predict_gains([pair], {}, lambda p: 1.0)) == []
