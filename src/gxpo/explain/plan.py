"""`gxpo plan`: prompts, rollouts, tokens and steps of a run before it starts, and its cost by a probe of two steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gxpo.environments import envs
from gxpo.environments.rewards.tournament import matches
from gxpo.learning.base import steps_of
from gxpo.parts.definition import show
from gxpo.parts.options import Unexecuted
from gxpo.parts.settings import RunSettings
from gxpo.training.config import RunConfig
from gxpo.training.phase_plan import shares

JUDGE = "judge"


def arithmetic(resolved: RunConfig) -> dict[str, Any]:
    """Count prompts, rollouts, tokens, micro-batches, optimiser steps and reuse, per step and for the run.

    Nothing is loaded. Tokens are None where an environment's own limit of actions decides (no `env.max_turns`), or a
    team in a file that is not run; rollouts are None where the rollout part has no `group_size`. Rollouts that are
    sampled and not trained (drafts, hints that do not work) are not counted. With phases: a step of the first one, the
    sums over all, and each phase with its steps if neither `until` nor a budget ends it.
    """
    rules = [one.phase for one in resolved.phases if one.phase is not None]
    if not rules:
        return _arithmetic(resolved, resolved.settings.trainer.steps)
    steps = shares(rules, resolved.settings.trainer.steps)
    figures_by_phase = [_arithmetic(one, n) for one, n in zip(resolved.phases, steps, strict=True)]
    # one phase with an unknown figure makes the sum unknown, instead of too small
    sums = {}
    for name in ("rollouts", "optimiser_steps", "generated_tokens_at_most"):
        phase_values = [figures[name] for figures in figures_by_phase]
        sums[name] = None if None in phase_values else sum(phase_values)
    phase_rows = [
        {"phase": number, "method": one.method.name, "steps_at_most": n, "rule": str(one.phase)}
        | {"own": {k: show(s.value) for k, s in rule.keys.items() if k != "method"}}
        for number, (one, rule, n) in enumerate(zip(resolved.phases, rules, steps, strict=True), 1)
    ]
    needs = list(dict.fromkeys(x for figures in figures_by_phase for x in figures["needs"]))
    return figures_by_phase[0] | sums | {"steps": resolved.settings.trainer.steps, "needs": needs, "phases": phase_rows}


def _arithmetic(resolved: RunConfig, steps: int) -> dict[str, Any]:
    """Compute the figures of `steps` steps of one method."""
    s, method = resolved.settings, resolved.method
    group_size = getattr(method.rollout, "group_size", None)
    epochs = int(getattr(method.update, "epochs", 1))
    prompts = s.tasks.per_step
    rollouts = None if group_size is None else prompts * int(group_size)
    turns = turns_at_most(s, getattr(method.rollout, "calls", 1))
    tokens = None if turns is None or rollouts is None else rollouts * turns * s.sampling.max_new_tokens
    updates = steps_of(method.update, prompts)
    microbatch_tokens = s.learner.tokens_per_microbatch
    # at least: a micro-batch holds whole trajectories, and is rarely full
    microbatches = None if tokens is None or microbatch_tokens == "auto" else -(-tokens // microbatch_tokens)
    questions = judge_questions(s, group_size)
    return {
        "prompts_per_step": prompts,
        "group_size": group_size,
        "rollouts_per_step": rollouts,
        "actions_per_rollout_at_most": turns,
        "generated_tokens_per_step_at_most": tokens,
        "microbatches_per_epoch_at_least": microbatches,
        "optimiser_steps_per_step": updates,
        "rollouts_per_optimiser_step": None if rollouts is None else rollouts * epochs // updates,
        "reuse_of_each_rollout": epochs,
        "on_policy": updates == 1,
        "policy_age_at_most": updates - 1,
        "steps": steps,
        "rollouts": None if rollouts is None else rollouts * steps,
        "optimiser_steps": updates * steps,
        "generated_tokens_at_most": None if tokens is None else tokens * steps,
        "budget": budget_of(s),
        **({} if questions is None else {"judge_questions_per_step_at_most": questions}),
        "needs": list(method.needs),
        "couples": method.couples,
        "not_run": [p.path for p in method.parts() if isinstance(p, Unexecuted)],
    }


def judge_questions(s: RunSettings, group_size: int | None) -> int | None:
    """Return the maximum number of questions to judges in a step, both orders of a match counted.

    None where the reward is no judge, or the group size is not known.
    """
    reward_names = s.rewards if isinstance(s.rewards, Mapping) else {s.rewards: 1.0}
    if JUDGE not in reward_names or group_size is None:
        return None
    options = s.scoring.options.get(JUDGE, {})
    # a panel's judges replace the one judge and inherit its options; held-out judges are asked beside them
    rubric_questions = 1 if options.get("refresh") else 0
    held_out_questions = [_questions_of_judge({**options, **x}, group_size) for x in options.get("held_out", ())]
    paid_questions = [_questions_of_judge({**options, **x}, group_size) for x in options.get("panel", ())] or [
        _questions_of_judge(options, group_size)
    ]
    return s.tasks.per_step * sum((*paid_questions, *held_out_questions)) + rubric_questions


def _questions_of_judge(options: Mapping[str, Any], n: int) -> int:
    """Count the questions of one judge about a group of n."""
    if options.get("mode") == "pairwise":
        return 2 * matches(options.get("pairs") or options.get("compare", "all"), n)
    return n * (2 if options.get("mode") == "debate" else 1)


def budget_of(s: RunSettings) -> dict[str, float]:
    """Return the budgets that can stop the run early, by unit: tokens, updates, seconds."""
    t = s.trainer
    limits = {"tokens": t.max_tokens, "updates": t.max_updates, "seconds": t.max_seconds}
    return {unit: limit for unit, limit in limits.items() if limit is not None}


def turns_at_most(s: RunSettings, calls: int | None = 1) -> int | None:
    """Return the maximum number of actions of a rollout.

    That is `calls` (of a team) where tasks are prompts, `env.max_turns` in an environment.
    """
    options = {k: v for k, v in s.tasks.options.items() if k != "pool"}
    return calls if envs.source(s.task, options) is None else s.env.max_turns


def show_keys(resolved: RunConfig) -> None:
    """Print every key with its value and origin."""
    from rich.table import Table

    from gxpo.base import terminal

    table = Table("key", "value", "from", box=None, header_style="bold")
    for key, setting in resolved.keys.items():
        table.add_row(key, show(setting.value), setting.origin)
    terminal.console(width=max(120, terminal.console().width)).print(table)


def show_plan(figures: dict[str, Any]) -> None:
    """Print a step in one line, then all figures as a table."""
    from gxpo.base import terminal

    console = terminal.console()
    f = figures
    tokens = f["generated_tokens_per_step_at_most"]
    tokens_text = "tokens as the environment decides" if tokens is None else f"at most {tokens:,} tokens"
    # a tree search or a resampling rollout has no group size: there is nothing to multiply
    if f["group_size"] is None:
        rollouts_text = f"{f['prompts_per_step']} prompts, rollouts as the rollout part grows them"
        batch_text = "a part of them"
    else:
        rollouts_text = (
            f"{f['prompts_per_step']} prompts x {f['group_size']} = {f['rollouts_per_step']} rollouts ({tokens_text})"
        )
        batch_text = f"{f['rollouts_per_optimiser_step']} rollouts"
    console.print(
        f"\na step: {rollouts_text} -> {f['optimiser_steps_per_step']} optimiser step(s) of {batch_text}, each used "
        f"{f['reuse_of_each_rollout']}x, by a policy at most {f['policy_age_at_most']} optimiser step(s) older"
    )
    for phase in figures.get("phases", ()):
        settings_text = "".join(f", {key}={value}" for key, value in phase["own"].items())
        console.print(f"phase {phase['phase']}: {phase['method']}, {phase['rule']}{settings_text}")
    for name, value in figures.items():
        if name == "phases":
            continue
        if name == "budget":
            value = ", ".join(f"{limit:,g} {unit}" for unit, limit in value.items()) or None
        console.print(f"  {name:<36} {value}")


def show_probe(measured: dict[str, Any]) -> None:
    """Print the cost of two real steps (`gxpo.training.probe`), and its extrapolation to the whole run."""
    from gxpo.base import terminal

    console, m = terminal.console(), measured
    console.print(
        f"\nprobe, second of two real steps on {m['device']}: {m['time_step_s']:.3g} s (sampling "
        f"{m['time_sample_s']:.3g}, scoring {m['time_score_s']:.3g}, update {m['time_update_s']:.3g}); "
        f"{m['generated_tokens_per_step']:,} tokens of at most {m['generated_tokens_per_step_at_most']:,}"
    )
    console.print(
        f"the run: about {duration(m['time_run_s'])} ({duration(m['time_steps_s'])} of {m['steps']:,} steps, "
        f"{m['evaluations']} evaluations {duration(m['time_evaluations_s'])}, {m['checkpoints']} checkpoints "
        f"{duration(m['time_checkpoints_s'])}); memory peak {m['memory_peak_mb']:,.0f} MiB, "
        f"{m['memory_above_loading_mb']:,.0f} of them above the loaded model; disk for checkpoints at most "
        f"{m['disk_checkpoints_mb']:,.1f} MiB"
    )
    if m["update_forced"]:
        console.print("no group of the second step had a signal: the update was measured with every rollout counting")
    for name, value in measured.items():
        console.print(f"  {name:<36} {f'{value:.4g}' if isinstance(value, float) else value}")


def duration(seconds: float) -> str:
    """Format a duration: `95 s` up to two minutes, then minutes, then hours.

    >>> duration(95), duration(600), duration(9000)
    ('95 s', '10 min', '2.5 h')
    """
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
