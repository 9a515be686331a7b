"""Compare `gxpo convert trl SCRIPT` with the arguments that running the script gives.

python scripts/checks/check_convert_trl.py SCRIPT... [-v]

Each script runs in a process of its own, where every library but Python's is a stub: no network, no other process, at
most 20 seconds, and the end is the first call of a trainer's `train()`. What it gave GRPOConfig and the trainer is
converted too, and each key of the two conversions is counted: equal, open in the script's (`???`), or wrong. Exit 1 if
a key is wrong.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from trainer_arguments import UNKNOWN, truth_of


def compare(script: Path, counts: Counter[str], verbose: bool) -> None:
    """Compare the two conversions of one script, and count their keys."""
    from gxpo.adapters.convert import Conversion, convert_trl
    from gxpo.adapters.convert_script import Value
    from gxpo.adapters.trl_launch import of_fields
    from gxpo.base.errors import ConfigError
    from gxpo.base.yamltext import is_open

    try:
        conversion = convert_trl(script)
    except ConfigError as error:
        counts["refused"] += 1
        print(f"refused     {script}: {error}")
        return
    counts["converted"] += 1
    truth, world = truth_of(script.resolve())
    if isinstance(truth, str):
        counts["not run"] += 1
        print(f"not run     {script}: {truth}")
        return
    counts["run"] += 1
    counts["run, where more is there than beside it"] += bool(world)
    is_rloo = truth.pop("is_rloo")
    fields = {k: Value("???" if is_unknown(v) else v, "") for k, v in truth.items()}
    settings = of_fields(fields)
    settings.kind = "RLOO" if is_rloo else "GRPO"
    settings.unsloth = bool(re.search(r"^ *from unsloth", script.read_text(errors="replace").replace('"', "\n"), re.M))
    expected = Conversion(settings, script, 1).converted()
    wrong = []
    for key in dict.fromkeys([*expected.keys, *conversion.keys]):
        if key in ("reward", "scoring.weights", "out"):
            continue
        ours, theirs = conversion.keys.get(key), expected.keys.get(key)
        if key == "trainer.callbacks" and any(
            what.startswith("report_to is not known") for _, what in conversion.notes
        ):
            counts["open"] += 1
            continue
        if key.startswith("tasks.options") and is_open(conversion.keys["task"]):
            continue
        if ours == theirs and not is_open(ours):
            counts["equal"] += 1
        elif is_open(ours):
            counts["open"] += 1
            counts["open, and no run decides it"] += is_open(theirs) or theirs is None
        elif world and "unless" in conversion.origins.get(key, ""):
            counts["of another choice of the caller"] += 1
        else:
            counts["wrong"] += 1
            wrong.append(f"{key}: {ours!r} is {theirs!r} when it runs")
    if verbose or wrong:
        verdict = "; ".join(wrong) or f"{len(conversion.keys)} keys"
        print(f"{'WRONG' if wrong else 'right'}       {script} ({', '.join(world)}): {verdict}")


def is_unknown(value: Any) -> bool:
    return value == UNKNOWN or (isinstance(value, (list, dict)) and UNKNOWN in json.dumps(value))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", type=Path)
    parser.add_argument("-v", action="store_true", help="name the scripts that are right, too")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    for script in options.scripts:
        compare(script, counts, options.v)
    print("; ".join(f"{n} {name}" for name, n in counts.items()))
    sys.exit(counts["wrong"] > 0)


if __name__ == "__main__":
    main()
