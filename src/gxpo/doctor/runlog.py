"""`RunLog`: metrics, settings and rollouts of a run under one set of names, and conclusions that checks share."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from gxpo.doctor.rollout_answers import CORRECT, STYLE
from gxpo.doctor.rollout_facts import Facts
from gxpo.doctor.rollouts import Rollouts
from gxpo.doctor.series import EMPTY, Floats, Series, Trend, are_of_pairs, denominator, number_of_tasks

# Names of settings in `RunLog.config`; unknown ones are absent.
SETTINGS: dict[str, str] = {
    "lr": "learning rate asked for",
    "schedule": "name of its schedule",
    "warmup_steps": "steps over which it rises",
    "max_steps": "steps of the run",
    "group_size": "rollouts a prompt",
    "beta": "coefficient of the KL to the reference",
    "epochs": "updates on the same rollouts (TRL num_iterations, verl ppo_epochs, gxpo update.epochs)",
    "clip": "clip range of the ratio",
    "temperature": "of sampling",
    "top_k": "of sampling",
    "top_p": "of sampling",
    "max_tokens": "limit of a completion, tokens",
    "mask_truncated": "whether cut completions are left out of the loss",
    "max_grad_norm": "the gradient is clipped to this length",
    "dtype": "of the weights that the optimiser moves: float32, bfloat16, float16",
    "scale": "what advantages are divided by: group, batch, none",
    "loss_type": "the trainer's own name of the objective",
    "reward_weights": "list of the weights of the reward functions",
    "method": "gxpo: the composition",
    "update": "gxpo: the update part",
    "credit": "gxpo: `credit` and the keys below it, unless a KL is taken off the reward before",
    "eval_samples": "samples a held-out task",
    "eval_temperature": "of the held-out samples",
    "sync_every": "steps between deliveries of the weights to the sampler",
    "lora": "whether an adapter is trained",
}

# Keys of a value model; verl calls all figures of advantages critic/...
_CRITIC = re.compile(r"vf_(?:loss|explained_var|clipfrac)|critic/values|critic_loss|value_(?:loss|clipfrac)", re.I)
FEW_ROWS = 15  # below it a table is an excerpt, as reports have them, in which no trend can be judged
_PASS_OF_GROUP = re.compile(r"reward/avg_pass_at_(\d+)$")  # SkyRL: a prompt passes by any of its group's answers
USUAL_TASKS = 100  # of an evaluation whose size is unknown: benchmarks have 30 (AIME) to 500 (MATH-500)


@dataclass
class RunLog:
    """Everything that was read of one run.

    source     name of the trainer: a file of `doctor/trainers`, unsloth or unknown
    read       files, relative to the path that was asked for
    series     name (`gxpo.doctor.series.NAMES`) -> figures, training rows only but for names under `eval/`
    rollouts   a sample of them; None: none were found
    config     name (`SETTINGS`) -> value, from a configuration beside the run
    messages   warnings of the trainer that a console text holds
    notes      what was odd in reading: unreadable lines, rows that were left out, files that were not opened
    raw        the trainer's own keys that have no name here -> figures
    verified   what `gxpo verify` wrote beside the run; {}: it was not called
    phase_begin  first step of the last phase, which alone is looked at; None: a run without phases

    Conclusions are computed on first use and cached; `dataclasses.replace(log)` gives the same log without any.
    """

    source: str = "unknown"
    read: list[str] = field(default_factory=list)
    series: dict[str, Series] = field(default_factory=dict)
    rollouts: Rollouts | None = None
    config: dict[str, Any] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    raw: dict[str, Series] = field(default_factory=dict)
    verified: dict[str, Any] = field(default_factory=dict)
    phase_begin: int | None = None

    def __contains__(self, name: str) -> bool:
        return self.column(name).values.size > 0

    def has(self, *names: str) -> bool:
        """True if all of these series have a finite value."""
        return all([self.column(name).values.size for name in names])

    def column(self, name: str) -> Series:
        """Finite entries of a series in the order of steps, each step once; empty if it was not recorded."""
        series = self.series.get(name)
        return EMPTY if series is None else series.column

    def values(self, name: str) -> Floats:
        """Finite values of a series by step; empty if it was not recorded. A repeated step counts once, as last
        written."""
        return self.column(name).values

    def steps(self, name: str) -> Floats:
        """Steps of `values(name)`."""
        return self.column(name).steps

    def key(self, name: str) -> str:
        """The trainer's own key of a series."""
        return self.series[name].key if name in self.series else name

    def components(self) -> list[str]:
        """Names of the reward functions whose means were recorded."""
        return [n.removeprefix("component/") for n in self.series if n.startswith("component/")]

    @cached_property
    def entropy_coefficient(self) -> float | None:
        """Coefficient of an entropy that is minimised: loss / entropy, if it is steady while entropy falls to a third.

        On policy the advantages sum to about 0, so that the loss is its other term alone.
        """
        loss, entropy = self.column("loss"), self.column("entropy")
        steps, at_loss, at_entropy = np.intersect1d(loss.steps, entropy.steps, return_indices=True)
        level = entropy.values[at_entropy]
        if len(steps) < 10 or not float(level.min()) > 0 or not self.last("entropy") < self.first("entropy") / 3:
            return None
        ratio = loss.values[at_loss] / level
        middle = float(np.median(ratio))
        return middle if middle > 0.01 and float(np.median(np.abs(ratio - middle))) < 0.1 * middle else None

    @property
    def last_step(self) -> int:
        """The largest step of any training series; 0 where there is none."""
        ends = [s.steps.max() for n, s in self.series.items() if len(s) and not n.startswith("eval/")]
        return int(max(ends, default=0))

    def trend(self, name: str) -> Trend | None:
        """Trend of a series; None where it has fewer than 6 steps."""
        return self.column(name).trend

    def rises(self, name: str) -> bool:
        """True if a series rises beyond its noise."""
        trend = self.column(name).trend
        return trend is not None and trend.rises

    def falls(self, name: str) -> bool:
        """True if a series falls beyond its noise."""
        trend = self.column(name).trend
        return trend is not None and trend.falls

    def mean(self, name: str) -> float:
        """Mean over the run; nan where there is nothing."""
        return self.column(name).mean

    def first(self, name: str) -> float:
        """Mean over the first steps; nan where there is nothing."""
        return self.column(name).first

    def last(self, name: str) -> float:
        """Mean over the last fifth of the steps, at least three; nan where there is nothing."""
        return self.column(name).last

    def largest(self, name: str) -> float:
        """Largest value of a series; 0 where there is none."""
        values = self.values(name)
        return float(values.max()) if len(values) else 0.0

    def is_constant(self, name: str) -> bool:
        """True if a series has several values and all are equal."""
        return self.column(name).is_constant

    def is_zero(self, name: str) -> bool:
        """True if a series has values and all are 0."""
        values = self.values(name)
        return len(values) > 0 and not values.any()

    def quote(self, name: str, form: str = ".3g") -> str:
        """Evidence: the series under the trainer's own key, first and last steps; "" where it was not recorded."""
        return self.column(name).quote(form, ends=name.startswith("eval/"))

    def setting(self, name: str) -> Any:
        """A setting of the run's configuration; None where it is unknown."""
        return self.config.get(name)

    def number(self, name: str) -> float | None:
        """A setting as a number; None where it is unknown or none."""
        try:
            return float(self.config[name])
        except (KeyError, TypeError, ValueError):
            return None

    @cached_property
    def n_steps(self) -> int:
        """Number of logged steps: those with a reward, or with anything."""
        sizes = [self.column(name).values.size for name in ("reward", "success", "loss", "grad_norm")]
        return max(sizes) or max((len(series) for series in self.series.values()), default=0)

    @property
    def is_excerpt(self) -> bool:
        """True if the score has few rows, or begins late: then signs of single rows are looked at."""
        steps = self.steps("reward" if self.has("reward") else "success")
        return len(steps) < FEW_ROWS or float(steps.min()) > 3 * len(steps)

    @cached_property
    def correctness(self) -> str | None:
        """Name of the series of correctness: verdicts, else the component named so; None if only a total is known."""
        if self.has("success"):
            return "success"
        names = [n for n in self.components() if CORRECT.search(n) and not STYLE.search(n)]
        if not names or (len(self.components()) == 1 and self.is_total(f"component/{names[0]}")):
            return None
        return f"component/{names[0]}"

    def is_total(self, name: str) -> bool:
        """True if a lone component is the total again, as far as the two have the same steps."""
        part, total = self.values(name), self.values("reward")
        return len(part) != len(total) or bool(np.allclose(part, total, atol=1e-6))

    @cached_property
    def evaluation(self) -> str | None:
        """Name of the series of evaluations; None where there are fewer than two."""
        for name in ("eval/accuracy", "eval/success", "eval/reward"):
            if len(self.values(name)) >= 2:
                return name
        return None

    @cached_property
    def has_critic(self) -> bool:
        """True if a value model makes the advantages, so that a group without a spread has a signal all the same."""
        return any(_CRITIC.search(series.key) for series in self.raw.values())

    @cached_property
    def centres_outcomes(self) -> bool:
        """True if advantages are known to be scores less their group's mean, times a number above 0: of gxpo's runs by
        the credit part itself; other trainers all do it unless they have a value model."""
        if self.source != "gxpo":
            return not self.has_critic
        from gxpo.methods.compose import centres_outcomes

        return centres_outcomes(self.config.get("credit", {}))

    @cached_property
    def is_trained(self) -> bool:
        """False if no optimiser step was taken and the run's update part says that it takes none."""
        from gxpo.parts.registry import UPDATES

        name = str(self.config.get("update"))
        return not (self.is_zero("optimiser_steps") and name in UPDATES and not UPDATES[name].trains)

    @cached_property
    def gains(self) -> bool:
        """True if reward, verdicts or evaluations rise beyond their noise."""
        lines = [line for name in ("reward", "success") if (line := self.trend(name)) is not None]
        return any(line.may_rise for line in lines) or self.evaluation_gain > 0

    @cached_property
    def evaluation_gain(self) -> float:
        """Sign of the change of the evaluations, first to mean of the last two: 1, -1; 0 if in the noise."""
        if self.evaluation is None:
            return 0.0
        values = self.values(self.evaluation)
        # the last alone may be a lucky or an unlucky one
        change = float(values[-2:].mean() - values[0]) if len(values) > 2 else float(values[-1] - values[0])
        return float(np.sign(change)) if abs(change) > 2 * self.evaluation_error else 0.0

    @cached_property
    def is_past_best(self) -> bool:
        """True if both the reward and the held-out answers have lost a tenth of their best, beyond their noise: harder
        tasks would leave the held-out ones as they are."""
        score = self.trend("reward") or self.trend("success")
        if score is None or self.evaluation is None or len(self.values(self.evaluation)) < 6:
            return False
        held_out = np.convolve(self.values(self.evaluation), np.ones(3) / 3, mode="valid")
        score_loss, held_out_loss = score.best - score.last, float(held_out.max() - held_out[-1])
        return (
            score_loss > max(5 * score.ends_error, 0.1 * abs(score.best))
            and held_out.max() > 0
            and held_out_loss > max(self.evaluation_error, 0.1 * float(held_out.max()))
        )

    @cached_property
    def evaluation_error(self) -> float:
        """Standard error of a difference of two evaluations: from the recorded intervals, else binomial from the number
        of held-out tasks, else from neighbouring evaluations."""
        name = self.evaluation
        if name is None:
            return float("inf")
        if self.has("eval/low", "eval/high"):
            half = (self.values("eval/high") - self.values("eval/low")).mean() / 2 / 1.96
            return float(half * np.sqrt(2))
        values = self.values(name)
        tasks = self.evaluation_tasks
        if tasks and float(values.min()) >= 0 and float(values.max()) <= 1:
            # half a task away from 0 and 1, where the binomial error would be 0
            p = min(max(float(values.mean()), 0.5 / tasks), 1 - 0.5 / tasks)
            return float(np.sqrt(2 * p * (1 - p) / tasks))
        # neither tasks nor intervals are known: neighbours differ by noise, or by a twentieth of the level at least; of
        # two or three accuracies, as much as those of `USUAL_TASKS` tasks
        scale = max(float(np.abs(values).max()), 1e-9)
        if len(values) >= 4:
            return max(float(np.sqrt(np.mean(np.diff(values) ** 2))), 0.05 * scale)
        p = float(values.mean())
        chance = float(np.sqrt(2 * p * (1 - p) / USUAL_TASKS)) if values.min() >= 0 and values.max() <= 1 else 0.0
        return max(chance, 0.05 * scale)

    @cached_property
    def evaluation_tasks(self) -> int | None:
        """Held-out tasks of one evaluation: recorded, or counted in the rollouts."""
        if self.has("eval/tasks"):
            return int(self.values("eval/tasks")[-1])
        if (denominator := self._common_denominator) is not None:
            return denominator
        r = self.rollouts
        if r is None or not r.held_out.any():
            return None
        last = r.held_out & (r.step == r.step[r.held_out].max())
        return len({p for p, use in zip(r.prompt, last.tolist(), strict=True) if use})

    @cached_property
    def _common_denominator(self) -> int | None:
        """Number of held-out tasks by the accuracies' denominator; None if unclear."""
        return None if self.evaluation is None else number_of_tasks(self.values(self.evaluation))

    @cached_property
    def training_rollouts(self) -> Rollouts | None:
        """Training rollouts; None where there are none."""
        r = self.rollouts
        if r is None or r.held_out.all():
            return None
        return r.select(~r.held_out) if r.held_out.any() else r

    @cached_property
    def has_partial_rollouts(self) -> bool:
        """True if rows without a score are parts of rollouts that a later step continues, so none is missing."""
        rollouts = self.training_rollouts
        if rollouts is None or not self.has("unscored") or float(self.values("unscored").max()) > 0:
            return False
        # the metrics count no unscored rollout, yet rows have no score
        parts = np.isnan(rollouts.score)
        if rollouts.components:
            parts |= np.all([np.isnan(v) for v in rollouts.components.values()], axis=0)
        return float(parts.mean()) > 0.05

    @cached_property
    def top_reward(self) -> float:
        """Largest reward of the run, of a step's mean or of a rollout; at least 1 for rewards of 0 and 1."""
        largest = [self.values(name).max() for name in ("reward", "reward_max") if self.has(name)]
        if self.training_rollouts is not None and np.isfinite(self.training_rollouts.score).any():
            largest.append(np.nanmax(self.training_rollouts.score))
        # a run that never has a right answer still has a largest reward of 1
        if largest and self.has_binary_rewards:
            largest.append(1.0)
        return max((float(value) for value in largest), default=float("nan"))

    @cached_property
    def has_binary_rewards(self) -> bool:
        """True if rewards are 0 or 1, as far as means and deviations tell: a deviation^2 of p (1 - p) at most steps."""
        # rewards of 0 and 1 with mean p have the variance p (1 - p)
        p, spread = self.values("reward"), self.values("reward_std")
        if len(p) < 5 or len(p) != len(spread) or p.min() < 0 or p.max() > 1 or not (p * (1 - p) > 0.02).any():
            return False
        return float(np.median(np.abs(spread**2 - p * (1 - p)))) < 0.02

    @cached_property
    def solved_shares(self) -> tuple[float, float] | None:
        """First and last share of groups with at least one right answer; None if it can't be told.

        As recorded; else, for rewards of 0 and 1, estimated as 1 - share of silent groups x share of all-wrong ones
        among them, if the answers of mixed groups are half right.
        """
        if self.has("zero_wrong"):
            return 1 - self.first("zero_wrong"), 1 - self.last("zero_wrong")
        if not (self.has_binary_rewards and self.has("zero_signal")):
            return None

        def estimate(reward: float, silent: float) -> float:
            right = (reward - (1 - silent) / 2) / max(silent, 1e-9)
            return 1 - silent * (1 - min(max(right, 0.0), 1.0))

        reward, silent = self.column("reward"), self.column("zero_signal")
        return estimate(reward.first, silent.first), estimate(reward.last, silent.last)

    @cached_property
    def is_solved(self) -> bool:
        """True if the run has solved its tasks: at its end nearly all groups are at the largest reward seen."""
        if len(self.values("reward")) < 8 or not np.isfinite(self.top_reward):
            return False
        spread = self.top_reward - min(float(self.values("reward").min()), 0.0)
        return spread > 0 and self.last("reward") >= self.top_reward - 0.05 * spread and self.last("reward") > 0

    @cached_property
    def is_silent(self) -> bool:
        """True if hardly any group had a signal in any step."""
        if self.has_critic:
            return self.is_zero("grad_norm")
        if self.has("zero_signal"):
            return self.mean("zero_signal") >= 0.98
        if self.has("advantage_max", "advantage_min"):
            return self._has_no_advantages
        return self.is_zero("grad_norm") or self._has_uniform_groups or self._has_no_spread

    @cached_property
    def _has_uniform_groups(self) -> bool:
        """True if as many groups have a right answer as answers are right, for rewards of 0 and 1: none is mixed."""
        reward, wrong = self.column("reward"), self.column("zero_wrong")
        if len(reward) < 5 or len(reward) != len(wrong) or reward.values.min() < 0 or reward.values.max() > 1:
            return False
        is_mixed = (reward.values > 0.02) & (reward.values < 0.98)
        return bool(is_mixed.mean() > 0.5) and float(np.abs(1 - wrong.values - reward.values).max()) < 1e-6

    @property
    def _has_no_spread(self) -> bool:
        """True if the spread of the reward is 0 in every step although its mean moves from step to step."""
        return self.is_zero("reward_std") and len(self.values("reward_std")) >= 4 and not self.is_constant("reward")

    @cached_property
    def is_silent_at_first(self) -> bool:
        """True if the very first step had no signal."""
        if self._has_no_advantages or self._has_uniform_groups or self._has_no_spread:
            return True
        name = "zero_signal" if self.has("zero_signal") else "grad_norm"
        values = self.values(name)
        return len(values) > 0 and bool(values[0] >= 0.95 if name == "zero_signal" else values[0] == 0)

    @cached_property
    def _has_no_advantages(self) -> bool:
        """True if no advantage differs from 0 from the first steps on, but for one step in twenty (equal texts of which
        the arithmetic made two); a KL or an entropy term may leave a gradient."""
        largest, smallest = self.values("advantage_max"), self.values("advantage_min")
        if not len(largest) or len(largest) != len(smallest):
            return False
        is_zero = (largest == 0) & (smallest == 0)
        return bool(is_zero[:3].all() and is_zero.mean() >= 0.95)

    @cached_property
    def is_silent_from_start(self) -> bool:
        """True if the first steps had no signal."""
        if self.has_critic:
            return self.first("grad_norm") == 0.0
        if self.has("zero_signal"):
            return self.first("zero_signal") >= 0.95
        return self._has_no_advantages or self._has_uniform_groups or self.first("grad_norm") == 0.0

    @cached_property
    def collapse(self) -> float | None:
        """Step from which on entropy is below a fifth of its start, or length below a third; None if neither."""
        ends = []
        for name, share in (("entropy", 1 / 5), ("length", 1 / 3)):
            column = self.column(name)
            if len(column) < 4 or not column.start[0] > (0.02 if name == "entropy" else 2):
                continue
            high_steps = np.flatnonzero(column.values > share * column.start[0])
            if len(high_steps) and high_steps[-1] + 2 < len(column):
                ends.append(float(column.steps[high_steps[-1] + 1]))
        return min(ends, default=None)

    @cached_property
    def updates_per_batch(self) -> float | None:
        """Updates on the same rollouts: as configured, or losses per reward (TRL logs rewards where it samples)."""
        epochs = self.number("epochs")
        n_losses, n_rewards = len(self.values("loss")), len(self.values("reward"))
        # TRL may be configured with more updates than a log of few rows shows: the larger one counts
        if self.source in ("trl", "ms-swift") and 0 < 2 * n_rewards <= n_losses:
            ratio = float(round(n_losses / n_rewards))
            return ratio if epochs is None or ratio > epochs else epochs
        return epochs

    @property
    def first_entropy(self) -> float:
        """Entropy of the first steps; 1 if none was logged, so that no check takes it for collapsed."""
        return self.first("entropy") if self.has("entropy") else 1.0

    @property
    def group_size(self) -> float | None:
        """Rollouts a prompt: from the configuration, the metrics or the rollouts."""
        size = self.number("group_size")
        if size is not None:
            return size
        if self.has("rollouts", "groups"):
            return float(np.median(self.values("rollouts") / np.maximum(self.values("groups"), 1)))
        size = None if self.facts is None else self.facts.group_size
        return self._implied_group_size if size is None else size

    @cached_property
    def _implied_group_size(self) -> float | None:
        """Rollouts a prompt by denominators: rewards of 0 and 1 are multiples of 1 / rollouts, shares of 1 / groups.

        0.3125 and 0.4375 of 16 rollouts beside zero_signal 0.125 and 0.625 of 8 groups are pairs.
        """
        if are_of_pairs(self.values("advantage_max"), -self.values("advantage_min")):
            return 2.0
        if match := _PASS_OF_GROUP.search(self.key("zero_wrong")):
            return float(match[1])
        if not self.has_binary_rewards or len(np.unique(self.values("zero_signal"))) < 4:
            return None
        rollouts, groups = denominator(self.values("reward")), denominator(self.values("zero_signal"))
        return rollouts / groups if rollouts and groups and rollouts % groups == 0 and rollouts > groups else None

    @cached_property
    def facts(self) -> Facts | None:
        """Statistics of the training rollouts; None where there are none."""
        rollouts = self.training_rollouts
        return None if rollouts is None or not len(rollouts) else Facts(rollouts, self.rollouts)
