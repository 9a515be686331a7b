"""Measured remedies (made by `scripts/remedy_study.py`) and the printed lines that ask for the same change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

PATH = Path(__file__).with_name("evidence.json")
ALPHA = 0.05
FEWEST = 12  # seeds from which on a remedy is quoted to people who ask for advice
Verdict = Literal["helped", "mixed", "undecided", "harmed"]
IN_WORDS = {"helped": "helped", "mixed": "mixed", "undecided": "no clear change", "harmed": "did harm"}
LIMITS = "held-out accuracy against the untreated run, small tasks, a 1-million-parameter model: docs/remedies.md"

# (sickness, arm of studies/remedies.yaml) -> texts: a remedy that contains one of them is the change of that arm
SAME: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("all_wrong", "ngrpo"): ("method=ngrpo", "method='ngrpo'", "gxpo/ngrpo"),
    ("all_wrong", "group of 16"): ("rollout.group_size=16", "num_generations=16", "rollout.n=16"),
    ("all_wrong", "ghpo"): ("method=ghpo",),
    ("all_wrong", "ar3po"): ("method=ar3po",),
    ("all_wrong", "gcpo_gold"): ("method=gcpo_gold",),
    ("all_wrong", "lens"): ("method=lens",),
    ("all_right", "dapo"): ("method=dapo",),
    ("all_right", "dynamic_sampling"): ("rollout=dynamic_sampling", "algorithm.filter_groups.enable=True"),
    ("all_right", "unlikeliness"): ("method=unlikeliness",),
    ("all_right", "gpg"): ("method=gpg",),
    ("reward_noise", "votes of 5"): ("average several verdicts",),
    ("reward_noise", "s_grpo"): ("method=s_grpo",),
    ("reward_noise", "dr_grpo"): ("method=dr_grpo",),
    ("reward_noise", "rloo"): ("method=rloo",),
    ("reward_noise", "reinforce_pp_baseline"): ("method=reinforce_pp_baseline",),
    ("length_hack", "not paid"): ("take length out of", "remove the function of reward_funcs that pays for length"),
    ("length_hack", "charged"): ("reward.add.length.coef=0.2",),
    ("length_hack", "dr_grpo"): ("method=dr_grpo", "loss_type='dr_grpo'", "(Dr. GRPO)"),
    ("length_hack", "opo"): ("method=opo",),
    **{
        (name, label): texts
        for name in ("entropy_collapse", "lr_too_high")
        for label, texts in {
            "a third of the rate": ("optim.lr / 3", "learning_rate / 3"),
            "clip-higher": ("clip_high=0.28", "epsilon_high=0.28", "clip_ratio_high=0.28", "upper clip to 0.28"),
            "entropy bonus": ("objective.entropy.coef=0.001", "entropy_coef=0.001", "entropy_coeff=0.001"),
            "clip_cov": ("method=clip_cov", "loss_mode=clip_cov"),
        }.items()
    },
    ("entropy_collapse", "larger entropy bonus"): ("objective.entropy.coef=0.03",),
    ("entropy_collapse", "group of 16"): ("rollout.group_size=16", "num_generations=16"),
    ("too_off_policy", "one update a batch"): ("update.epochs=1", "num_iterations=1"),
    ("too_off_policy", "a third of the rate"): ("optim.lr / 3", "learning_rate / 3"),
    ("too_off_policy", "gspo"): ("method=gspo",),  # elsewhere its clip is another
    ("too_off_policy", "cispo"): ("method=cispo",),
    ("stale_sampler", "weights in time"): ("sampling.engine=torch",),
    ("stale_sampler", "tis"): ("method=grpo+tis",),
    ("stale_sampler", "decoupled_ppo"): ("method=decoupled_ppo",),
    ("stale_sampler", "over behaviour"): ("objective.ratio_over=behaviour",),
    ("sampler_mismatch", "one temperature"): ("one temperature on both sides",),
    ("sampler_mismatch", "tis"): ("method=grpo+tis", "'token_truncate'", "rollout_is=token"),
    ("sampler_mismatch", "gspo+tis"): ("method=gspo+tis",),
    ("sampler_mismatch", "hispo"): ("method=hispo",),
}


@dataclass(frozen=True)
class OfTask:
    """Difference from the untreated runs on one task, with its 95% interval; `seeds` pairs."""

    setting: str
    difference: float
    low: float
    high: float
    seeds: int


@dataclass(frozen=True)
class Measurement:
    """Effect of a remedy on one sickness, against the untreated runs.

    keys              what the arm sets
    difference, low, high   of held-out accuracy at the end: mean over the tasks, with its 95% interval
    p                 two-sided, by Holm's method over the remedies of the sickness
    seeds             pairs on the task that has the fewest
    collapsed, collapsed_untreated   of `runs`
    commit            of the code that ran
    """

    sickness: str
    label: str
    remedy: str
    keys: Mapping[str, Any]
    difference: float
    low: float
    high: float
    p: float
    seeds: int
    tasks: tuple[OfTask, ...]
    collapsed: int
    collapsed_untreated: int
    runs: int
    commit: str

    @property
    def verdict(self) -> Verdict:
        """Verdict over all tasks.

        `helped` and `harmed` need an interval on one side of 0, p < 0.05, and no task with the opposite effect.
        """
        has_gain, has_loss = any(t.low > 0 for t in self.tasks), any(t.high < 0 for t in self.tasks)
        # tasks that contradict each other are no verdict, whatever their mean
        if has_gain and has_loss:
            return "mixed"
        if self.low > 0 and self.p < ALPHA and not has_loss:
            return "helped"
        if self.high < 0 and self.p < ALPHA and not has_gain:
            return "harmed"
        return "undecided"

    @property
    def figures(self) -> str:
        """Difference, interval, tasks and seeds, as a remedy's line quotes them.

        >>> task = OfTask("sums", 0.12, 0.05, 0.19, 20)
        >>> Measurement("all_wrong", "x", "x", {}, 0.12, 0.05, 0.19, 0.01, 20, (task,), 0, 0, 20, "").figures
        '+.12 (95 % +.05 to +.19), 1 task, 20 seeds'
        """
        # tasks that disagree are quoted one by one: their mean would describe none of them
        seeds = f"{self.seeds} seeds"
        if self.verdict == "mixed":
            return f"{', '.join(f'{format_signed(t.difference)} on {t.setting}' for t in self.tasks)}, {seeds}"
        tasks = f"{len(self.tasks)} task{'s' if len(self.tasks) > 1 else ''}"
        low, high = format_signed(self.low), format_signed(self.high)
        return f"{format_signed(self.difference)} (95 % {low} to {high}), {tasks}, {seeds}"


def format_signed(value: float) -> str:
    """Format a difference with its sign and two decimals, without the zero before the point.

    >>> format_signed(0.123), format_signed(-0.05), format_signed(0.001), format_signed(1.0)
    ('+.12', '-.05', '.00', '+1.00')
    """
    text = f"{value:+.2f}"
    return text.replace("+", "").replace("-", "")[1:] if float(text) == 0 else text.replace("0.", ".", 1)


def to_json(measurements: Sequence[Measurement]) -> str:
    """Serialise measurements as the text of evidence.json."""
    return json.dumps([asdict(m) for m in measurements], indent=1) + "\n"


@cache
def read(path: Path = PATH, fewest: int = FEWEST) -> tuple[Measurement, ...]:
    """Read the measurements of a file that have at least `fewest` seeds; none where there is no file."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    measurements = (Measurement(**{**row, "tasks": tuple(OfTask(**t) for t in row["tasks"])}) for row in rows)
    return tuple(m for m in measurements if m.seeds >= fewest)


def measured_for_line(sickness: str, line: str, measurements: Sequence[Measurement]) -> Measurement | None:
    """Find the measurement of the change that a remedy's line asks for; None if it is untested.

    A line that names several changes ("a, or b") is matched by the first text of `SAME` in it.
    """
    for m in measurements:
        if m.sickness == sickness and any(text in line for text in SAME.get((sickness, m.label), ())):
            return m
    return None


def measured_for_keys(
    sicknesses: Sequence[str], keys: Mapping[str, Any], measurements: Sequence[Measurement]
) -> Measurement | None:
    """Find the measurement of these settings for any of the sicknesses."""
    return next((m for m in measurements if m.sickness in sicknesses and is_measured_as(m, keys)), None)


def is_measured_as(measurement: Measurement, keys: Mapping[str, Any]) -> bool:
    """Return True if a measurement is of these settings; method `tis` equals `grpo+tis`."""

    def comparable(settings: Mapping[str, Any]) -> dict[str, str]:
        # as texts: --set gives texts, a study's file gives numbers and flags
        texts = {k: str(v).lower() for k, v in settings.items()}
        return {**texts, "method": texts.get("method", "grpo").removeprefix("grpo+")}

    return comparable(measurement.keys) == comparable(keys)
