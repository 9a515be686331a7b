"""`gxpo verify`: recompute recorded log-probs from the weights that sampled them, and locate what differs.

Records of a step name the version of the policy that sampled each token: the optimiser had updated it in so many steps.
Version v is the checkpoint of step v, version 0 the policy that the run began with. The log-probs are recomputed by the
run's own learner (`Learner.outputs`), with the temperature and support of the records. Causes of a difference are told
apart in `verify_causes`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.doctor.readers.files import VERIFIED
from gxpo.forest.forest import Forest
from gxpo.forest.records import load
from gxpo.parts.definition import SettingValue
from gxpo.sampling.rollouts.logged import LOGGED
from gxpo.training import checkpoint, cluster, config
from gxpo.training.directory import METRICS, run_of
from gxpo.training.metrics import read as read_metrics
from gxpo.training.models import pipelines
from gxpo.training.start import read_verified_config
from gxpo.training.verify_causes import explain, refused_support
from gxpo.training.verify_comparison import TOLERANCE, Comparison, Place, Weights

FILE = VERIFIED  # the result, in the run directory
STEPS = 3  # steps that are recomputed unless somebody says how many
SAVE_BOTH = (
    "records of step k + 1 and a checkpoint of step k are needed: set trainer.rollouts_every=1, and "
    "trainer.checkpoint_every and trainer.keep_checkpoints so that checkpoints are kept"
)


@dataclass(frozen=True)
class StepCheck:
    """Comparison of one step's records with the policy.

    versions   of the policy, whose weights were there
    tokens     compared;   different: those beyond `tolerance` (nats);   rollouts, rollouts_different: as of tokens
    left_out   tokens that were not compared, by reason
    largest    deviation, nats, at `place`; `mean` over the compared tokens
    gap_then   the largest deviation that the run itself saw in the step; None: not recorded
    cause      None if equal, else "weights" | "age" | "support" | "records" | "temperature" | "dtype" | "unknown"
    """

    step: int
    versions: tuple[int, ...]
    tokens: int
    different: int
    rollouts: int
    rollouts_different: int
    tolerance: float
    largest: float
    mean: float
    left_out: Mapping[str, int] = field(default_factory=dict)
    gap_then: float | None = None
    place: Place | None = None
    cause: str | None = None
    finding: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Verification:
    """Result of `verify`: `steps` that were recomputed, `notes`, and the advice where nothing could be."""

    run: str
    steps: tuple[StepCheck, ...] = ()
    notes: tuple[str, ...] = ()
    advice: str = ""

    @property
    def verdict(self) -> str:
        """ "equal", "different", or "unknown": no record has the weights that sampled it."""
        if not self.steps:
            return "unknown"
        return "different" if any(s.cause is not None for s in self.steps) else "equal"

    @property
    def exit_code(self) -> int:
        return {"equal": 0, "different": 1, "unknown": 2}[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON; a figure that is no finite number is null."""
        return finite({"verdict": self.verdict, "exit_code": self.exit_code, **asdict(self)})

    def text(self) -> str:
        lines = [f"{self.run}: {self._headline()}"]
        for s in self.steps:
            state = "equal" if s.cause is None else f"DIFFERENT ({s.cause})"
            lines.append(
                f"step {s.step}: {state}; {s.tokens} tokens of {s.rollouts} rollouts, policy version "
                f"{', '.join(map(str, s.versions))}; largest deviation {s.largest:.2g} nats, mean {s.mean:.2g}, "
                f"tolerance {s.tolerance:.2g}"
            )
            lines += [f"  not compared: {n} tokens, {reason}" for reason, n in s.left_out.items()]
            if s.cause is not None:
                lines += [f"  {s.finding}", *([f"  at {s.place}"] if s.place is not None else []), f"  {s.remedy}"]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def _headline(self) -> str:
        if not self.steps:
            return f"nothing to compare: {self.advice}"
        n = len(self.steps)
        bad = sum(s.cause is not None for s in self.steps)
        if not bad:
            return f"recorded log-probs are the policy's in {n} of {n} steps"
        return f"recorded log-probs are not the policy's in {bad} of {n} steps"


def finite(value: Any) -> Any:
    """A nested value with null in the place of numbers that are not finite."""
    if isinstance(value, dict):
        return {k: finite(x) for k, x in value.items()}
    if isinstance(value, list | tuple):
        return [finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def verify(path: str | Path, steps: int = STEPS, notify: Callable[[str], None] = lambda line: None) -> Verification:
    """Recompute the recorded log-probs of so many of a run's steps, and write the result to RUN/verify.json.

    Steps are spread evenly over those whose weights are there. GxpoError where the run can't be read; rewards and
    texts of the records are not looked at.
    """
    run = run_of(Path(path))
    result = _verify(run, steps, notify)
    checkpoint.write_atomic(run / FILE, json.dumps(result.as_json(), indent=1) + "\n")
    return result


def _verify(run: Path, steps: int, notify: Callable[[str], None]) -> Verification:
    # Which records have weights is known from names of files: nothing is loaded for a run that saved too little.
    files = {int(p.stem.rpartition("-")[2]): p for p in sorted((run / "rollouts").glob("step-*.jsonl"))}
    if not files:
        return Verification(str(run), advice=f"no rollouts were written; {SAVE_BOTH}")
    resolved = _resolve(read_verified_config(run)[0])
    versions = [0, *checkpoint.steps(run)]
    age = resolved.settings.async_.max_staleness
    candidates = [k for k in files if any(k - 1 - age <= v < k for v in versions)]
    if not candidates:
        return Verification(
            str(run),
            advice=f"rollouts are of steps {_join_steps(files)}, checkpoints of steps {_join_steps(versions[1:])}; "
            f"{SAVE_BOTH}",
        )
    phase_of_step = {row["step"]: row.get("phase") for row in read_metrics(run / METRICS)}
    checked_steps = sorted({candidates[round(i * (len(candidates) - 1) / max(1, steps - 1))] for i in range(steps)})
    checks, notes = list[StepCheck](), list[str]()
    weights, loaded_number = None, None
    for step in checked_steps if steps > 1 else candidates[-1:]:
        # The learner of a step is that of its phase: value heads, objective and sampling may be others in the next one.
        number = phase_of_step.get(step) if resolved.phases else None
        if resolved.phases and number not in range(1, len(resolved.phases) + 1):
            notes.append(
                f"step {step}: metrics.jsonl does not say which phase it is of, so that its learner is unknown"
            )
            continue
        if weights is None or number != loaded_number:
            notify(f"loading {resolved.settings.model}" + ("" if number is None else f" as of phase {number}"))
            weights, loaded_number = None, number  # the one before goes first: two might not fit into memory
            weights = Weights(run, resolved if number is None else resolved.phases[number - 1], notify, number)
            notes += [note for note in weights.notes if note not in notes]
        notify(f"step {step}")
        one = check_step(weights, step, load(files[step]))
        if isinstance(one, str):
            notes.append(f"step {step}: {one}")
        else:
            checks.append(one)
    advice = "" if checks else "; ".join(notes)
    return Verification(str(run), tuple(checks), tuple(notes), advice)


def _join_steps(steps: Any) -> str:
    numbers = sorted(steps)
    return ", ".join(map(str, numbers if len(numbers) < 8 else [*numbers[:3], "...", *numbers[-3:]])) or "none"


def _resolve(keys: Mapping[str, SettingValue]) -> config.RunConfig:
    """The run's configuration with a learner of this process: samplers elsewhere, and shards, are left out."""
    resolved = config.resolve(keys)
    s = resolved.settings
    if s.cluster.backend in cluster.ENGINES:
        raise ConfigError(
            f"the weights of this run are a training engine's (cluster.backend={s.cluster.backend}), which alone reads "
            "its checkpoints: nothing can be recomputed here"
        )
    here: dict[str, Any] = {} if s.cluster.backend == "local" else {"cluster.backend": "local"}
    if not pipelines.denoises(s.model) and resolved.method.likelihood is None:
        here |= {"sampling.engine": "torch", "sampling.engine_options": {}}
        here |= {k: None for k in ("sampling.servers", "sampling.engine_python")}
    return config.resolve({**keys, **{k: SettingValue(v, "verify") for k, v in here.items()}})


# ---------------------------------------------------------------- one step
def check_step(weights: Weights, step: int, forest: Forest) -> StepCheck | str:
    """Compare the records of a step; a line that says why there is nothing to compare."""
    # Tokens that can be compared: the sampler's log-prob is known, at a temperature, under the context it had.
    forest = forest.in_context("sampled")
    node_P = forest.token_node[forest.path_token]
    version_P = forest.policy_version[node_P]
    reasons = _reasons(weights, forest, version_P)
    is_compared_P = torch.ones_like(forest.path_trainable)
    left_out: dict[str, int] = {}
    for reason, mask_P in reasons.items():
        if n := int((mask_P & is_compared_P).sum()):
            left_out[reason] = n
        is_compared_P &= ~mask_P
    if not bool(is_compared_P.any()):
        return "nothing to compare: " + "; ".join(f"{n} tokens {reason}" for reason, n in left_out.items())
    # Only their rollouts go through the model: others may be of kinds that it can't read.
    rows = torch.unique(forest.path_trajectory[is_compared_P])
    entries = forest.entries_of(rows)
    forest, version_P, is_compared_P = forest.select(rows), version_P[entries], is_compared_P[entries]
    gap_then = weights.gaps.get(step)
    low, high = TOLERANCE[weights.dtype]
    tolerance = min(max(low, 2 * (gap_then or 0.0)), high)
    nothing_P = torch.full((forest.n_entries,), torch.nan, dtype=torch.float64)
    comparison = Comparison(step, forest, is_compared_P, version_P, nothing_P, tolerance, gap_then, {})
    versions = tuple(sorted(set(version_P[is_compared_P].tolist())))
    # Records that name no support can't be recomputed as they were sampled.
    if (refusal := refused_support(forest, is_compared_P)) is not None:
        return _result(comparison, versions, left_out, ("support", *refusal))
    for version in versions:
        try:
            trouble = weights.use(version)
        except CheckpointError as error:  # damaged: nothing can be computed with it
            comparison.trouble[version] = str(error)
            continue
        if trouble:
            comparison.trouble[version] = trouble
        is_of_version_P = is_compared_P & (version_P == version)
        comparison.recomputed = torch.where(is_of_version_P, weights.logprobs(forest), comparison.recomputed)
    comparison.is_compared = is_compared_P & ~comparison.recomputed.isnan() if comparison.trouble else is_compared_P
    cause = explain(comparison, weights) if comparison.trouble or bool(comparison.is_different.any()) else None
    return _result(comparison, versions, left_out, cause)


def _reasons(weights: Weights, forest: Forest, version_P: Tensor) -> dict[str, Tensor]:
    """[P] masks of tokens that can't be compared, by reason, the first that holds counting."""
    is_logged_R = torch.tensor([origin == LOGGED for origin in forest.origin], dtype=torch.bool)
    is_greedy_R = torch.tensor([s.get("temperature") == 0 for s in forest.sampling], dtype=torch.bool)
    has_weights = torch.isin(version_P, torch.tensor(sorted(weights.versions), dtype=version_P.dtype))
    return {
        "whose sampler's log-prob is not recorded": forest.path_behaviour_logprob.isnan(),
        "sampled by another run (origin logged)": forest.to_path(is_logged_R, "R"),
        "sampled greedily, without a distribution": forest.to_path(is_greedy_R, "R"),
        "of no recorded policy version": version_P < 0,
        f"of a policy version without a checkpoint ({SAVE_BOTH})": ~has_weights,
    }


def _result(
    comparison: Comparison, versions: tuple[int, ...], left_out: Mapping[str, int], cause: tuple[str, ...] | None
) -> StepCheck:
    """Put the figures of a comparison together; cause: (its name, finding, remedy)."""
    name, finding, remedy = cause or (None, "", "")
    deviation_P, compared_P = comparison.deviation, comparison.is_compared & ~comparison.recomputed.isnan()
    deviations = deviation_P[compared_P]
    worst = int(torch.where(compared_P, deviation_P, -1.0).argmax()) if bool(compared_P.any()) else None
    return StepCheck(
        step=comparison.step,
        versions=versions,
        tokens=int(compared_P.sum()),
        different=int((comparison.is_different & compared_P).sum()),
        rollouts=len(torch.unique(comparison.forest.path_trajectory[compared_P])),
        rollouts_different=len(torch.unique(comparison.forest.path_trajectory[comparison.is_different & compared_P])),
        tolerance=comparison.tolerance,
        largest=float(deviations.max()) if len(deviations) else 0.0,
        mean=float(deviations.mean()) if len(deviations) else 0.0,
        left_out=dict(left_out),
        gap_then=comparison.gap_then,
        place=None if worst is None or name is None else comparison.place(worst),
        cause=name,
        finding=finding,
        remedy=remedy,
    )
