"""Waits of a training step for its device, and copies, by place in gxpo: `python scripts/waits.py 1024 128`.

Counted in the second step of `tiny:cold` on arithmetic with that many rollouts of up to that many tokens, on the strict
device of the tests, a device in name only: no time is measured, and no GPU is needed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tests.strict_device import Counts, counting, strict  # noqa: E402  # after the path of this checkout

import gxpo  # noqa: E402
from gxpo.parts.definition import Stated  # noqa: E402
from gxpo.training import config  # noqa: E402

GROUP = 8
KINDS = ("item", "shape", "to host", "to device")


def even(completion: str) -> float:
    """A reward that half of random completions get."""
    return float(sum(map(ord, completion)) % 2)


def counts_of_step(rollouts: int, tokens: int, sets: dict[str, str]) -> tuple[Counts, dict[str, int]]:
    """Counts of the second step, and its tokens."""
    keys = {
        "model": "tiny:cold", "task": "arithmetic", "method": "grpo", "rollout.group_size": GROUP, "eval.every": 0,
        "tasks.per_step": rollouts // GROUP, "sampling.max_new_tokens": tokens, "learner.device": "strict",
        "trainer.checkpoint_every": 0, "trainer.steps": 3, "eval.tasks": 2, **sets,
    }  # fmt: skip
    resolved = config.resolve({key: Stated(value, "waits") for key, value in keys.items()})
    opened, rows = ExitStack(), []

    def watch(row: dict[str, Any]) -> bool:
        """Begin to count after the first step, which sets things up, and end after the second."""
        rows.append((row, opened.enter_context(counting()) if not rows else None))
        if len(rows) == 2:
            opened.close()
        return len(rows) == 2

    with strict(), tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gxpo.train(resolved=resolved, reward=even, out=Path(folder) / "run", watch=watch)
    (before, counts), (row, _) = rows
    assert counts is not None
    return counts, {"generated": row["generated_tokens"] - before["generated_tokens"], "forward": row["tokens_forward"]}


def main() -> None:
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("rollouts", type=int, help=f"a multiple of {GROUP}")
    about.add_argument("tokens", type=int, help="of an answer at most")
    about.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further settings of the run")
    given = about.parse_args()
    counts, row = counts_of_step(given.rollouts, given.tokens, dict(item.split("=", 1) for item in given.set))
    print(f"tokens: {row['generated']:,} generated, {row['forward']:,} through the update")
    print(f"waits {counts.waits}, calls {counts.calls}")
    for kind in KINDS:
        print(f"{kind:<10} {counts.of(kind):>6} {counts.bytes(kind):>14,} bytes")
    print("\nby place: times, bytes")
    print(counts)


if __name__ == "__main__":
    main()
