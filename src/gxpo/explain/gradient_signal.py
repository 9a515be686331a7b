"""`gxpo signal`: table of the gradient signal by method and group size, and advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def show(rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any] | None, told_apart: bool) -> None:
    """Print a row for each method and group size, and the one that needs the fewest tokens."""
    from rich.table import Table

    from gxpo.base import terminal

    table = Table(box=None, header_style="bold")
    columns = (
        "method",
        "group size",
        "agreement",
        "signal a task",
        "+-",
        "zero_signal_groups",
        "tokens a task",
        "tokens to agree",
        "against the first",
        "+-",
        "along",
    )
    for name in columns:
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in rows:
        agree = row["tokens_to_agree"]
        table.add_row(
            row["method"],
            str(row["group_size"]),
            f"{row['agreement']:.3f}",
            f"{row['signal']:.4f}",
            f"{row['signal_error']:.4f}",
            f"{row['zero_signal_groups']:.0%}",
            f"{row['tokens_per_task']:.0f}",
            "-" if agree is None else f"{agree:,.0f}",
            "-" if row["relative"] is None else f"{row['relative']:.2f}",
            "-" if row["relative_error"] is None else f"{row['relative_error']:.2f}",
            "-" if row["along"] is None else f"{row['along']:.2f}",
        )
    # eleven columns of numbers need 132 columns of text; narrower, rich would cut them off
    console = terminal.console(width=max(132, terminal.console().width))
    console.print(
        "agreement: expected cosine of the gradients of two halves of these tasks; tokens to agree: that two batches "
        "need each for a cosine of 1/2; against the first: signal per token over that of the first row; "
        "along: the cosine of the expected gradients",
        soft_wrap=True,
    )
    console.print(table)
    console.print(advice(best, told_apart), soft_wrap=True)


def advice(best: Mapping[str, Any] | None, told_apart: bool) -> str:
    """Return the recommended settings in one line."""
    if best is None:
        return (
            "No method has a signal here: its gradients on different tasks do not agree. More --tasks, or easier ones."
        )
    what = f"rollout.group_size={best['group_size']} with {best['method']} needs the fewest tokens"
    if told_apart:
        return f"{what}: set that."
    return f"{what}, but the next is within the error: more --tasks would tell them apart, or take what suits you."
