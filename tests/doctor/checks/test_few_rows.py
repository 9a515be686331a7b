"""Signs in tables of few rows, as reports have them: each table has its first finding, and healthy ones none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.doctor.logs import log

from gxpo.doctor import diagnose, read


def table(heads: str, *rows: str) -> str:
    """Table in Markdown; cells are separated by blanks."""
    lines = [heads.split("  "), ["---"] * len(heads.split("  ")), *(row.split() for row in rows)]
    return "# Report\n\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


SICK = {
    "no_diversity": table(
        "Step  Score  Entropy",
        *("1 0.707 0.117", "5 0.691 0.107", "8 0.605 0.095", "15 0.602 0.092", "25 0.711 0.1", "35 0.703 0.094"),
    ),
    "entropy_collapse": table(
        "step  reward  frac_zero_std  entropy",
        *("20 0.50 0.45 0.230", "1000 0.72 0.70 0.095", "4340 0.80 0.90 0.035", "4620 0.525 0.95 0.023"),
        "**8550** **~0.5** **~1.0** **0.001**",
    ),
    "lr_too_high": table(
        "Step  Score  Entropy  Ref KL",
        *("1 -0.33 0.37 0.0", "5 -0.25 0.57 0.020", "15 -0.39 1.43 0.082", "25 -0.45 1.18 0.135"),
        *("35 -0.58 2.01 0.190", "42 -0.42 1.19 0.182"),
    ),
    "kl_runaway": table(
        "Step  KL  Reward",
        *("10 0.055 -3.184", "30 0.113 -2.655", "50 0.459 -3.113", "70 0.407 -2.782", "90 0.692 -2.976"),
        "100 1.038 -3.294",
    ),
    "lr_too_low": table(
        "Step  Reward  Std  KL",
        *("50 0.411 0.731 0.0007", "75 0.432 0.808 0.0008", "100 0.323 0.701 0.0010", "125 0.470 0.766 0.0011"),
        "166 0.424 0.609 0.0012",
    ),
    "weights_do_not_move": table(
        "Step  LR  Reward", "1 1e-9 .3", "50 1e-9 .31", "100 1e-9 .29", "150 1e-9 .3", "200 1e-9 .31"
    ),
    "reward_ignores_completion": table(
        "step  reward  reward_std  grad_norm", "10 0.5 0 0.0", "20 0.5 0.0 0", "30 0.5 0 0", "40 0.5 0 0.0"
    ),
    "all_masked": table(
        "step  reward mean  advantage mean  pg_loss  grad_norm",
        *("1 1.00 0.00 0.00 0.00", "2 0.50 0.00 0.00 0.00", "3 0.75 0.00 0.00 0.00", "4 1.00 0.00 0.00 0.00"),
        *("5 0.25 0.00 0.00 0.00", "6 1.00 0.00 0.00 0.00", "7 1.00 0.00 0.00 0.00", "8 1.00 0.00 0.00 0.00"),
    ),
    "length_hack": table(
        "step  reward  resp_len  n_search",
        *("1 0.254 663 1.01", "10 0.343 709 1.15", "20 0.408 961 1.64", "24 0.429 **1295** 2.34"),
        *("35 0.42 1700+ 3.13", "40 0.41 **1937** 3.54"),
    ),
    "component_dominates": table(
        "Step  Total reward  format reward  accuracy reward",
        *("0 0.4 .1 .3", "50 0.8 .5 .3", "100 1.1 .8 .3", "150 1.15 .95 .2", "200 1.15 1.0 .15"),
    ),
    "memorising": table(
        "Step  Train reward  Val acc", "0 0.4 .41", "50 0.6 .42", "100 0.75 .40", "150 0.9 .36", "200 0.97 .33"
    ),
    "all_right": table(
        "Step  Score  Val Acc",
        *("1 85.9% 95.2%", "5 90.6% 92.9%", "15 89.8% 95.2%", "25 89.1% 95.1%", "35 96.9% 94.8%"),
    ),
    "all_wrong": table(
        "Step  Mean Reward  Entropy",
        *("20 0 .126", "40 0 .09", "60 0 .09", "80 .25 .15", "100 0 .13", "120 .25 .13", "140 0 .06", "160 0 .1"),
    ),
    "group_too_small": table(
        "Step  reward_mean  train_loss",
        *("1 0.5 102.13", "2 1.0 0.0", "3 0.75 -12.75", "4 0.25 42.5", "8 0.25 185.47", "12 1.0 0.0"),
        *("28 0.75 482.96", "38 0.5 11.0", "50 0.25 3.0"),
    ),
    "sampler_mismatch": table(
        "Step  Reward  KL",
        *("1 0.3125 0.0007", "2 0.1875 10.98", "7 0.4062 0.0063", "12 0.5625 0.0031", "19 0.5 25.81"),
        *("25 0.3125 0.0029", "49 0.375 0.0268"),
    ),
    "too_off_policy": table(
        "step  grad_norm  pg_clipfrac  score/mean",
        *("1 2698.1 0.163 0.147", "2 2360.2 0.156 0.139", "3 2391.0 0.148 0.131", "4 3536.6 0.150 0.133"),
        *("5 2515.6 0.156 0.153", "6 2721.2 0.156 0.139"),
    ),
    "wrong_template": table(
        "Step  Entropy  Reward",
        *("10 4.451 -3.184", "20 4.744 -2.803", "30 5.109 -2.655", "40 5.490 -3.441", "50 5.621 -3.113"),
    ),
    "stale_sampler": table(
        "Step  Reward  mismatch KL",
        *("0 0.4 .001", "50 0.42 .01", "100 0.4 .08", "150 0.35 .25", "200 0.3 .5"),
    ),
    "logprob_shift": table(
        "step  train/mis_kl  train/grad_norm",
        *("0 0.633 0.22", "8 0.634 0.33", "12 0.659 0.66", "16 0.677 0.4", "24 0.697 0.43"),
    ),
    "truncation": table(
        "step  reward  resp_len  clip_ratio",
        *("5 0.43 6320 6%", "20 0.36 7550 11%", "30 0.32 9749 **31%**", "34 0.34 9690 **32%**"),
    ),
    "no_eos": table(
        "step  reward  mean length  clipped", "10 0.1 256 1.0", "20 0.1 256 1.0", "30 0.12 256 1.0", "40 0.1 256 1.0"
    ),
}
HEALTHY = {
    "countdown": table(
        "Step  Reward  Entropy  Mean Completion Length",
        *("2 0.233 0.932 407", "6 0.413 0.980 362", "10 0.367 0.787 383", "16 0.440 0.650 332", "22 0.700 0.491 229"),
        *("30 0.640 0.442 243", "32 0.769 0.376 221", "40 0.715 0.357 214"),
    ),
    "saturated": table(
        "Step  Reward Mean  Truncation  Zero Advantage",
        *("0 0.451 0.000 0.000", "3 0.615 0.000 0.125", "10 0.855 0.000 0.188", "20 0.923 0.000 0.563"),
        *("30 0.940 0.000 0.500", "40 0.945 0.000 0.688", "49 0.936 0.000 0.750"),
    ),
    "without_a_kl": table(
        "Step  Reward  KL  Entropy",
        *("1 0.43 0 0.44", "60 0.44 0 0.45", "100 0.45 0 0.45", "150 0.47 0 0.46", "180 0.46 0 0.47"),
    ),
}


def diagnosis_of(text: str, tmp_path: Path):
    (tmp_path / "report.md").write_text(text, encoding="utf-8")
    return diagnose(read(tmp_path / "report.md"))


@pytest.mark.parametrize("name", SICK)
def test_a_sign_is_the_first_finding(name: str, tmp_path: Path) -> None:
    first = diagnosis_of(SICK[name], tmp_path).findings[0]
    assert name in first.ids and first.severity != "note" and first.evidence and first.remedy


@pytest.mark.parametrize("name", HEALTHY)
def test_a_table_of_a_run_that_gains_has_no_alarm(name: str, tmp_path: Path) -> None:
    diagnosis = diagnosis_of(HEALTHY[name], tmp_path)
    assert not diagnosis.sick and diagnosis.exit_code == 2  # fewer than ten points are no health either


def test_shares_without_a_name_that_fall_beside_the_kl(tmp_path: Path) -> None:
    text = table(
        "Step  KL  tomi  hi_tom",
        *("40 0.021 41.7% 27.4%", "60 0.032 40.6% 28.6%", "100 0.054 41.6% 28.1%", "140 0.158 **16.3%** **3.1%**"),
        "160 0.189 23.0% 6.0%",
    )
    first = diagnosis_of(text, tmp_path).findings[0]
    assert first.ids == ("kl_runaway", "lr_too_high") and "tomi, hi_tom fall" in first.title


def test_one_reward_function_that_falls_to_nothing(tmp_path: Path) -> None:
    text = "step   Format  grad_norm    KL\n" + "".join(
        f" {row}\n"
        for row in (
            *("858    0.922    0.0225  0.027", "893    0.891    0.0718  0.067", "899    0.547    0.0339  0.088"),
            *("900    0.359    0.0337  0.107", "903    0.016    0.1747  0.111", "912    0.000    0.0415  0.039"),
        )
    )
    first = diagnosis_of(text, tmp_path).findings[0]
    assert first.ids[0] == "lr_too_high" and "Format falls from 0.922 to 0" in first.title


def test_rewards_that_hardly_differ(tmp_path: Path) -> None:
    row = "{{'loss': -0.0009, 'grad_norm': 0.8, 'rewards/f/mean': {0}, 'reward': {0}, 'reward_std': 0.0013, "
    row += "'frac_reward_zero_std': 0.79, 'entropy': 1.8}}\n"
    text = "".join(row.format(r) for r in (-0.0334, -0.0333, -0.0334, -0.0336, -0.034))
    (tmp_path / "console.txt").write_text(text)
    first = diagnose(read(tmp_path / "console.txt")).findings[0]
    assert first.ids[0] == "near_constant_reward"


def test_the_end_of_a_run_whose_entropy_is_gone(tmp_path: Path) -> None:
    scores = [0.156, 0.184, 0.128, 0.184, 0.269, 0.213, 0.241, 0.156] * 2
    row = "step:{} - actor/entropy_loss:0.005 - critic/score/mean:{} - response_length/mean:35.0 - timing_s/gen:1.9\n"
    (tmp_path / "logs.md").write_text("".join(row.format(383 + i, s) for i, s in enumerate(scores)))
    first = diagnose(read(tmp_path / "logs.md")).findings[0]
    assert "entropy_collapse" in first.ids


@pytest.mark.parametrize(
    ("heads", "rows", "first"),
    [
        # paid for length, and the same phrases again and again
        (
            "step  reward  length  distinct-4",
            ("0 0.7 100 0.8", "60 1.2 200 0.7", "120 2.0 320 0.5", "180 2.9 500 0.3"),
            "length_hack",
        ),
        # hardly an answer is right, whatever the total says
        (
            "step  reward  accuracy",
            ("10 0.06 0.00", "20 0.08 0.02", "30 0.07 0.01", "40 0.09 0.02"),
            "all_wrong",
        ),
        # a mean over all steps so far settles, and nothing is learnt
        (
            "step  reward  pg_loss",
            ("5 0.7 ~0", "40 0.51 ~0", "90 0.49 ~0", "150 0.495 ~0", "210 0.49 ~0", "300 0.495 ~0", "400 0.49 ~0"),
            "weights_do_not_move",
        ),
        # the longest answers alone earn nothing
        ("step  reward  length", ("1 0.3 60", "2 0 256", "3 0.4 110", "4 0 256"), "truncation"),
        # no tool is called any more
        ("step  reward  tool_calls", ("50 0.2 0.4", "100 0.22 0", "150 0.24 0", "200 0.23 0"), "tool_failures"),
        # a reward that another verdict does not follow
        (
            "step  reward  dev_EX",
            ("10 0.06 0.07", "20 0.12 0.03", "30 0.09 0.03", "40 0.2 0.03"),
            "component_dominates",
        ),
        # answers run away, and a share of one's own name falls
        ("step  length  deal", ("4 900 0.4", "30 4000 0.7", "50 6500 0.6", "60 6900 0.1"), "length_hack"),
        # training and held-out score where they were
        (
            "step  train_reward  eval_reward",
            ("0 0.547 0.545", "40 0.551 0.548", "80 0.549 0.552", "120 0.55 0.543"),
            "lr_too_low",
        ),
    ],
)
def test_further_signs(tmp_path: Path, heads: str, rows: tuple[str, ...], first: str) -> None:
    found = diagnosis_of(table(heads, *rows), tmp_path).findings[0]
    assert found.ids[0] == first and found.grade == "possible"


def test_a_first_update_that_leaves_nothing() -> None:
    run = log(reward=np.array([29.6, 0.02, 0.03, 0.04]), length=np.array([483.0, 982.0, 975.0, 987.0]))
    assert diagnose(run).findings[0].ids[0] == "sampler_mismatch"
    assert not diagnose(log(reward=np.array([0.5, 0.0, 0.0, 0.0]), length=np.array([90.0, 95.0, 99.0, 91.0]))).sick


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (
            "| metric | early | recent |\n|---|---|---|\n| reward | 0.6 | 0.39 |\n| kl | 0.004 | 0.24 |\n"
            "| completions/clipped_ratio | 4.9% | 16.3% |\n",
            ("lr_too_high", "kl_runaway", "truncation"),
        ),
        (
            "| metric | before | after |\n|---|---|---|\n| reward | 0.166 | 0.047 |\n",
            ("lr_too_high", "kl_runaway", "reward_noise"),
        ),
        (
            table("step  reward  eval perplexity", "10 0.71 4.5", "20 0.97 7.3", "30 0.98 10", "40 0.99 11.3"),
            ("component_dominates", "kl_runaway", "judge_hacked"),
        ),
        (
            table("step  reward_mean  verifier_reward", "0 -0.165 0.0", "1 -0.2 0.0", "2 -0.166 0.0", "3 -0.17 0.0"),
            ("all_wrong", "verifier_rejects_right_answers", "dead_component"),
        ),
        (
            table("step  ppo_kl  reward", "1 0.7 0.2", "2 1.2 0.3", "3 0.6 0.2", "4 3.1 0.25"),
            ("too_off_policy", "sampler_mismatch", "lr_too_high"),
        ),
        (
            table("step  entropy  Structural", "0 0.303 0.4", "50 0.211 0.7", "150 0.016 0.9", "250 0.0099 0.9"),
            ("entropy_collapse", "no_diversity"),
        ),
        (
            "| calls | proxy RM | strict acc |\n|---|---|---|\n"
            "| 0-14 | 1.9 | 0.9 |\n| 30-44 | 3.8 | 0.5 |\n| 75-89 | 3.5 | 0.2 |\n",
            ("judge_hacked", "component_dominates"),
        ),
        (
            table("step  reward  rewards/accuracy_reward", "1 0.71 0.16", "2 0.69 0.12", "3 0.89 0.06"),
            ("component_dominates",),
        ),
    ],
)
def test_signs_of_two_ends_and_of_few_columns(tmp_path: Path, text: str, ids: tuple[str, ...]) -> None:
    (tmp_path / "report.md").write_text(text)
    assert diagnose(read(tmp_path)).findings[0].ids == ids


def test_two_ends_that_gain_or_differ_little_are_no_verdict(tmp_path: Path) -> None:
    text = "| metric | before | after |\n|---|---|---|\n| reward | {} | {} |\n| kl | 0.004 | 0.24 |\n"
    for first, last in ((0.2, 0.7), (0.7, 0.65)):
        (tmp_path / "report.md").write_text(text.format(first, last))
        assert diagnose(read(tmp_path)).exit_code == 2
