"""Whether what is measured before any training foretells which arm gains: gradient signal and fidelity, over studies.

    python scripts/predictors.py                                  # rank correlations over all lists of experiments
    python scripts/predictors.py --measure --minutes 20           # the signal of every arm first; goes on where it was
    gxpo bench fidelity frozenlake/ --out fidelity.json && python scripts/predictors.py --fidelity fidelity.json

What was measured is kept in studies/predictors.json.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gxpo.base.errors import GxpoError
from gxpo.compare.conclude import difference_spread
from gxpo.compare.inference import FEWEST_SEEDS
from study import HERE, STORE, keys_of, read_list, sides
from study_rows import digest, read_store, result_of, with_former

KNOWN = HERE / "studies" / "predictors.json"
LISTS = tuple(HERE / "studies" / f"{name}.yaml" for name in ("claims", "remedies", "remedies_2", "remedies_3"))
TASKS = 256  # that the signal is measured on
BATCH = 10_000  # generated tokens of the batches whose agreement is foretold
NOT_ITS_OWN = (
    "eval.",
    "trainer.",
    "doctor.",
    "optim.",
    "update.",
    "tasks.per_step",
)  # keys on which the first gradient does not depend


@dataclass(frozen=True)
class Pair:
    """An arm and its base in one setting: all keys but the seed, and how many seeds."""

    base: Mapping[str, Any]
    arm: Mapping[str, Any]
    seeds: int

    @property
    def names(self) -> tuple[str, str]:
        return digest(self.base), digest(self.arm)


def pairs_of(lists: Sequence[Mapping[str, Any]]) -> list[Pair]:
    """List every arm with its base, varied conditions too, each once."""
    out: dict[tuple[str, str], Pair] = {}
    for plan in lists:
        for experiment in plan["experiments"]:
            for setting, (base, *arms), seeds in sides(plan, experiment):
                for arm in arms:
                    pair = Pair(keys_of(setting, base), keys_of(setting, arm), seeds)
                    if pair.names[0] != pair.names[1]:
                        out.setdefault(pair.names, pair)
    return list(out.values())


def gain_of(pair: Pair, store: Mapping[tuple[str, int], Mapping[str, Any]]) -> float:
    """Return the mean difference of held-out accuracy at the end, paired by seed; nan for fewer than three pairs."""
    base, arm = pair.names
    seeds = [
        s
        for s in range(pair.seeds)
        if all((x, s) in store and not store[x, s].get("trouble") and store[x, s]["evaluations"] for x in (base, arm))
    ]
    if len(seeds) < FEWEST_SEEDS:
        return math.nan
    runs = [(result_of(store[arm, s], "arm"), result_of(store[base, s], "base")) for s in seeds]
    return difference_spread(runs, "eval_accuracy").mean


def first_gradient(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Select the keys on which the gradient signal before training depends."""
    return {k: v for k, v in keys.items() if not k.startswith(NOT_ITS_OWN)}


def measure_signals(pairs: Sequence[Pair], minutes: float, notify: Callable[[str], None] = print) -> dict[str, Any]:
    """Add the signal of every arm and base that `KNOWN` lacks, for at most so long."""
    from gxpo.training.gradient_signal import measure

    measurements = read_measurements()
    until = time.monotonic() + 60 * minutes
    for keys in (first_gradient(k) for pair in pairs for k in (pair.base, pair.arm)):
        name = digest(keys)
        if name in measurements["signal"] or time.monotonic() > until:
            continue
        overrides = {k: v for k, v in keys.items() if k not in ("model", "task", "method")}
        size = overrides.pop("rollout.group_size", 8)
        row: dict[str, Any] = {"task": keys["task"], "method": keys["method"], "group_size": size}
        try:
            estimate = measure(keys["model"], keys["task"], [keys["method"]], [size], tasks=TASKS, keys=overrides)[0]
            row |= {
                "signal": estimate.signal,
                "error": estimate.signal_error,
                "tokens_per_task": estimate.tokens_per_task,
                "silent": estimate.zero_signal_groups,
            }
        except (GxpoError, ValueError) as error:
            row["why"] = " ".join(str(error).split())[:160]
        measurements["signal"][name] = row
        KNOWN.write_text(json.dumps(measurements, indent=1) + "\n")
        notify(f"{row['task']} {row['method']} of {size}: {row.get('signal', row.get('why'))}")
    return measurements


def read_measurements() -> dict[str, Any]:
    """Read the measurements: `signal`: configuration -> row; `fidelity`: WORLD/METHOD -> rank correlation with the
    truth."""
    return json.loads(KNOWN.read_text()) if KNOWN.exists() else {"signal": {}, "fidelity": {}}


def by_signal(pair: Pair, measurements: Mapping[str, Any]) -> float:
    """Expected cosine of the gradients of two batches of `BATCH` generated tokens each, arm less base; nan where one
    was not measured, or neither signal is twice its error.

    agreement = n S / (1 + n S), n = BATCH / tokens a task, S the signal of a task, at least 0
    """
    from gxpo.training.gradient_signal import agreement_of

    rows = [measurements["signal"].get(digest(first_gradient(k)), {}) for k in (pair.arm, pair.base)]
    if any("signal" not in r for r in rows) or not any(r["signal"] > 2 * r["error"] for r in rows):
        return math.nan
    arm, base = (agreement_of(r["signal"], BATCH / r["tokens_per_task"]) for r in rows)
    return arm - base


def by_fidelity(pair: Pair, measurements: Mapping[str, Any]) -> float:
    """Fidelity of the arm's method less grpo's; nan where the arm differs from a base of grpo in more than the method,
    or one was not measured."""
    task, method = pair.arm["task"], pair.arm["method"]
    if digest({**pair.arm, "method": "grpo"}) != pair.names[0]:
        return math.nan
    fidelity = measurements["fidelity"]
    return fidelity.get(f"{task}/{method}", math.nan) - fidelity.get(f"{task}/grpo", math.nan)


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return Spearman's rank correlation and its two-sided p; nan for fewer than three pairs, or where one is
    constant."""
    if len(x) < 3 or len(set(x)) == 1 or len(set(y)) == 1:
        return math.nan, math.nan
    from scipy.stats import spearmanr

    result: Any = spearmanr(x, y)
    return float(result.statistic), float(result.pvalue)


def predict_gains(
    pairs: Sequence[Pair],
    store: Mapping[tuple[str, int], Mapping[str, Any]],
    predictor: Callable[[Pair], float],
) -> Iterator[tuple[str, float, float]]:
    """Yield (method, predictor, gain) of the pairs that have both."""
    for pair in pairs:
        x, y = predictor(pair), gain_of(pair, store)
        if math.isfinite(x) and math.isfinite(y):
            yield pair.arm["method"], x, y


def correlations(lists: Sequence[Mapping[str, Any]], store: Mapping[tuple[str, int], Mapping[str, Any]]) -> list[str]:
    """Write a sentence for each predictor."""
    measurements, pairs, out = read_measurements(), pairs_of(lists), []
    for name, predictor in (
        ("`gxpo signal`: expected agreement of two batches of 10,000 tokens, less the base's", by_signal),
        (
            "`gxpo bench fidelity`: rank of credit against the true advantage of a turn, less grpo's",
            by_fidelity,
        ),
    ):
        points = sorted(
            predict_gains(pairs, store, lambda p, of=predictor: of(p, measurements)), key=lambda row: -row[1]
        )
        rho, p = rank_correlation([x for _, x, _ in points], [y for _, _, y in points])
        if math.isnan(rho):
            out.append(f"{name}: {len(points)} arms have both, too few to tell.")
            continue
        ends = ", ".join(f"`{m}` {y:+.3f}" for m, _, y in (*points[:3], *points[-3:]))
        out.append(
            f"{name}: rank correlation with difference {rho:+.2f} over {len(points)} arms (p {p:.2g}). The three it "
            f"put first and the three it put last: {ends}."
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure the signal of arms not known first")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--fidelity", type=Path, help="what `gxpo bench fidelity --out` saved, to be kept")
    arguments = parser.parse_args()
    lists = [read_list(path) for path in LISTS if path.exists()]
    if arguments.fidelity:
        measurements, rows = read_measurements(), json.loads(arguments.fidelity.read_text())["rows"]
        measurements["fidelity"] |= {r["name"]: r["rank"] for r in rows if r.get("rank") is not None}
        KNOWN.write_text(json.dumps(measurements, indent=1) + "\n")
    if arguments.measure:
        measure_signals(pairs_of(lists), arguments.minutes)
    print("\n".join(correlations(lists, with_former(read_store(STORE)))))


if __name__ == "__main__":
    main()
