"""`gxpo plan`: the arithmetic of a run, before it is run."""

from __future__ import annotations

from typing import Any

from gxpo.config import Resolved
from gxpo.keys import show


def arithmetic(resolved: Resolved) -> dict[str, Any]:
    """Prompts -> rollouts -> tokens -> micro-batches -> optimiser steps -> reuse, per step and for the run."""
    s, method = resolved.settings, resolved.method
    group = int(getattr(method.rollout, "group_size", 1))
    epochs = int(getattr(method.update, "epochs", 1))
    prompts, rollouts = s.tasks.per_step, s.tasks.per_step * group
    tokens = rollouts * s.sampling.max_new_tokens
    updates = method.update.optimiser_steps(prompts)
    return {
        "prompts_per_step": prompts,
        "group_size": group,
        "rollouts_per_step": rollouts,
        "generated_tokens_per_step_at_most": tokens,
        "microbatches_per_epoch_at_least": -(-tokens // s.learner.tokens_per_microbatch),
        "optimiser_steps_per_step": updates,
        "rollouts_per_optimiser_step": rollouts * epochs // updates,
        "reuse_of_each_rollout": epochs,
        "on_policy": updates == 1,
        "steps": s.trainer.steps,
        "rollouts": rollouts * s.trainer.steps,
        "optimiser_steps": updates * s.trainer.steps,
        "generated_tokens_at_most": tokens * s.trainer.steps,
        "needs": list(method.needs),
        "couples": method.couples,
    }


def show_keys(resolved: Resolved) -> None:
    """Every key, its value and where it came from."""
    from rich.console import Console
    from rich.table import Table

    table = Table("key", "value", "from", box=None, header_style="bold")
    for key, stated in resolved.keys.items():
        table.add_row(key, show(stated.value), stated.origin)
    Console(width=max(120, Console().width)).print(table)


def show_plan(figures: dict[str, Any]) -> None:
    """The figures as a table, and the step in one line."""
    from rich.console import Console

    console = Console(highlight=False)
    f = figures
    console.print(
        f"\na step: {f['prompts_per_step']} prompts x {f['group_size']} = {f['rollouts_per_step']} rollouts "
        f"(at most {f['generated_tokens_per_step_at_most']:,} tokens) -> {f['optimiser_steps_per_step']} optimiser "
        f"step(s) of {f['rollouts_per_optimiser_step']} rollouts, each used {f['reuse_of_each_rollout']}x"
    )
    for name, value in figures.items():
        console.print(f"  {name:<36} {value}")
