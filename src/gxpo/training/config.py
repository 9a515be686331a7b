"""Run configuration from YAML 1.2 and `--set`, with the origin of every key.

Order: defaults < methods from left to right < compat < YAML < --set < a phase's own. Nested mappings and dotted keys
mean the same, also where the value of a key is itself a mapping: `--set tasks.options.digits=3` states one entry of it.
"""

from __future__ import annotations

import platform
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml.error import YAMLError

from gxpo.base import yamltext
from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.methods.compose import method
from gxpo.methods.method import Method
from gxpo.parts.definition import JOINED, Stated, check_allowed, finite, is_schedule, is_section, joined, show, stage_of
from gxpo.parts.options import SECTIONS, canonical, dotted, leaves, settings_of, silent_keys
from gxpo.parts.settings import RUN_KEYS, RunSettings
from gxpo.sampling.rollouts.logged import OF_PHASES
from gxpo.training.phase_plan import RULES, Phase, expand, may_change

_INSTEAD = {"reward": "scoring.weights", "scoring.weights": "reward"}  # one reward, or several: never both
_OTHER = ("method", "compat", "versions")
_RECORDED = ("torch", "transformers", "numpy", "gxpo")
DATA = (".jsonl", ".json", ".csv", ".parquet")
# What other trainers (TRL, verl) call our keys.
ELSEWHERE = {
    "batch_size": "tasks.per_step",
    "beta": "objective.kl.coef",
    "dataset": "task",
    "epochs": "update.epochs",
    "epsilon": "objective.clip_low",
    "epsilon_high": "objective.clip_high",
    "group_size": "rollout.group_size",
    "learning_rate": "optim.lr",
    "max_completion_length": "sampling.max_new_tokens",
    "max_response_length": "sampling.max_new_tokens",
    "max_steps": "trainer.steps",
    "model_name_or_path": "model",
    "num_generations": "rollout.group_size",
    "num_iterations": "update.epochs",
    "output_dir": "out",
    "reward_funcs": "reward",
    "reward_weights": "scoring.weights",
    "total_training_steps": "trainer.steps",
    "train_batch_size": "tasks.per_step",
}


@dataclass(frozen=True)
class Resolved:
    """A resolved configuration: settings, method, and the value and origin of every key.

    phases  of a run with `phases`, what holds in each of them; `method` is then the first one's
    phase   of one of these: when it ends, and its reference policy
    """

    settings: RunSettings
    method: Method
    keys: dict[str, Stated]
    phases: tuple[Resolved, ...] = ()
    phase: Phase | None = None

    @property
    def methods(self) -> tuple[Method, ...]:
        """The method of each phase, or the run's."""
        return tuple(one.method for one in self.phases) or (self.method,)

    @property
    def label(self) -> str:
        """The method's name, of a run with phases all of them: "dpo, then grpo"."""
        return ", then ".join(dict.fromkeys(method.name for method in self.methods))

    @property
    def steps(self) -> int:
        """Steps of the run, or of a phase that states them."""
        own = None if self.phase is None else self.phase.steps
        return own or self.settings.trainer.steps

    def to_yaml(self, home: Path | None = None) -> str:
        """YAML that resolves to the same run, with the origin of each key as a comment.

        home  the directory of the file, a run's own: files in it are named from there, so that it can be moved
        """
        keys = self.keys
        if self.phases:  # the phases have the parts' keys
            keys = {k: s for k, s in keys.items() if k in RUN_KEYS or k in _OTHER}
            stated = [one._as_entry(keys) for one in self.phases]
            keys["phases"] = replace(keys["phases"], value=stated)
        document = {k: _plain(s.value) for k, s in keys.items()}
        if home is not None:
            document = {k: _renamed(k, v, f"{home}/", HERE) for k, v in document.items()}
        origins = {k: s.origin for k, s in keys.items()}
        return yamltext.dump({**document, "versions": versions()}, origins)

    def _as_entry(self, run: Mapping[str, Stated]) -> dict[str, Any]:
        """A phase as an entry of `phases`: its rules, every key of its parts, and settings that are not the run's."""
        assert self.phase is not None
        rules = {"steps": self.phase.steps, "until": self.phase.until and str(self.phase.until)}
        rules |= {name: getattr(self.phase, name) for name in ("reference", "optimiser", "weights")}
        own = {k: s.value for k, s in self.keys.items() if k not in RUN_KEYS or s.value != run[k].value}
        keys = {k: _plain(v) for k, v in own.items() if k not in ("phases", "compat", "versions")}
        return {k: v for k, v in rules.items() if v is not None} | keys


def _plain(value: Any) -> Any:
    """A value that YAML can hold: of a part its name."""
    return value if isinstance(value, (int, float, str, list, tuple, dict, type(None))) else show(value)


HERE = "run:"  # begins the name of a file beside config.yaml
_FILES = ("model", "task", "tasks.options", "reward", "scoring.weights")  # settings that may name one


def _renamed(key: str, value: Any, before: str, after: str) -> Any:
    """The value of a setting that may name files, with `after` in the place of `before` where a name begins so."""
    if key not in _FILES:
        return value
    if isinstance(value, Mapping):
        return {_renamed(key, k, before, after): _renamed(key, v, before, after) for k, v in value.items()}
    return after + value[len(before) :] if isinstance(value, str) and value.startswith(before) else value


def named_from(text: str, home: Path) -> str:
    """The text of a run's config.yaml for another directory: files of the run by their paths."""
    return re.sub(rf"(?<![\w./]){HERE}(?=\w)", f"{home}/", text)


def versions() -> dict[str, str]:
    """Versions of the software that determines a run's numbers."""
    found = {"python": platform.python_version()}
    for name in _RECORDED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def read(path: str | Path) -> dict[str, Stated]:
    """Leaf keys of a YAML file, each with its line."""
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{path}: {'not a file' if path.exists() else 'no such file'}{_configurations(path)}")
    if path.suffix in DATA:
        raise ConfigError(
            f"{path}: data, and a configuration (.yaml) is asked for: say task: {path} in it, or --set task={path}; "
            f"gxpo tasks {path} shows what is in it"
        )
    try:
        document = yamltext.load(path.read_text(encoding="utf-8"), str(path))
    except YAMLError as error:
        problem, line = yamltext.problem_of(error)
        raise ConfigError(f"{path}{line}: not YAML: {problem}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file") from None
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise ConfigError(f"{path}: a configuration is a mapping of keys to values")
    keys = [(canonical(key), stated) for key, stated in leaves("", document, str(path), str(path))]
    values = [yamltext.plain(stated.value, f"{stated.origin}: {key}") for key, stated in keys]
    out = _once([(key, Stated(value, s.origin)) for (key, s), value in zip(keys, values, strict=True)])
    return {k: replace(s, value=_renamed(k, s.value, HERE, f"{path.parent}/")) for k, s in out.items()}


def parse_set(items: Sequence[str]) -> dict[str, Stated]:
    """`--set key=value` arguments; values are YAML. Entries of mappings stay by themselves: see `over`."""
    stated: list[tuple[str, Any]] = []
    for item in items:
        key, sign, text = item.partition("=")
        key = key.strip()
        if key.startswith(DROP) and not sign:
            stated.append((key, None))
            continue
        if not sign or not key:
            raise ConfigError(f"--set {item}: write --set KEY=VALUE, or --set {DROP}KEY to drop what is stated")
        try:
            value = yamltext.load(text, f"--set {key}") if text.strip() else ""
        except YAMLError:
            value = text
        stated.append((key, yamltext.plain(value, f"--set {key}")))
    out: dict[str, Stated] = {}
    for key, value in stated:
        for leaf, entry in leaves(key, value, "--set"):
            name = canonical(leaf)
            out.pop(name, None)  # in the order of the last statements: see `over`
            out[name] = entry
    return out


DROP = "~"  # before a key: what is stated for it, and under it, is dropped


def over(below: Mapping[str, Stated], above: Mapping[str, Stated]) -> dict[str, Stated]:
    """Merge two sets of keys; `above` wins, in its order: an entry of a mapping (`tasks.options.digits`) joins those
    before it, and a whole mapping takes their place."""
    out, settings, silent = dict(below), settings_of(above), silent_keys(above)
    for key, stated in above.items():
        if key not in silent or not (key in out or is_section(key, out)):
            _state(key, stated, settings[key], out)
    return out


def _once(keys: Sequence[tuple[str, Stated]]) -> dict[str, Stated]:
    """The keys of one file by name. ConfigError where one is stated twice, by itself or within its mapping."""
    settings, silent, out = settings_of(key for key, _ in keys), silent_keys(dict(keys)), dict[str, Stated]()
    for key, stated in keys:
        whole, names = settings[key]
        value = out[whole].value if whole in out else None
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None or (not names and whole in out):
            raise ConfigError(f"{stated.origin}: {key} is set twice")
        if key in silent and is_section(key, out):
            continue
        _state(key, stated, settings[key], out)
    return out


def _state(key: str, stated: Stated, setting: tuple[str, list[str]], out: dict[str, Stated]) -> None:
    """Put a key into `out`; an entry of a mapping goes into a copy of what is stated there, and `~KEY` drops a key."""
    if key.startswith(DROP):
        name = key.removeprefix(DROP)
        dropped = [k for k in out if k == name or k.startswith(f"{name}.")]
        for k in dropped:
            del out[k]
        if not dropped:  # there may be something below
            out[key] = stated
        return
    whole, names = setting
    other = _INSTEAD.get(whole, "")
    if other in out and out[other].value is not None and stated.value is not None:
        if names:
            raise _no_entries(key, stated, other, out[other])
        del out[other]
    if not names:
        out[key] = stated
        return
    held = out.get(whole, Stated(None, stated.origin))
    mapping = inner = {} if held.value is None else held.value
    for i, name in enumerate(names):
        if not isinstance(inner, Mapping):
            raise _no_entries(key, stated, ".".join([whole, *names[:i]]), replace(held, value=inner))
        inner = inner.get(name, {})
    origins = dict.fromkeys((held.origin, stated.origin))
    out[whole] = Stated(_with(mapping, names, stated.value), ", ".join(origins))


def _with(mapping: Mapping[str, Any], names: list[str], value: Any) -> dict[str, Any]:
    """A copy of nested mappings with a value at the end of `names`."""
    head, *rest = names
    return {**mapping, head: _with(mapping.get(head, {}), rest, value) if rest else value}


def _no_entries(key: str, stated: Stated, of: str, held: Stated) -> ConfigError:
    return ConfigError(f"{_at(stated)}{key}: {of} is {show(held.value)}, which has no entries ({held.origin})")


def resolve(given: Mapping[str, Stated], *, composed: Method | None = None) -> Resolved:
    """Resolve the settings and method of a run. `composed`: a method built in Python, instead of the key `method`;
    keys of the method go over those that it was composed with."""
    places = [f"{_at(s)}{k}" for k, s in given.items()]
    plain = [yamltext.plain(s.value, place) for s, place in zip(given.values(), places, strict=True)]
    given = dotted({k: replace(s, value=value) for (k, s), value in zip(given.items(), plain, strict=True)})
    return _resolved(over({}, {canonical(k): s for k, s in given.items()}), composed)


def _resolved(given: Mapping[str, Stated], composed: Method | None = None) -> Resolved:
    """The settings and method of a run, from plain values by canonical keys: what `over` gives."""
    below = _below_phases(given, composed)
    stated = given.get("phases", below.pop("phases", None))
    if stated is None or not stated.value:
        return _check_sampled(_resolve(given, composed))
    return _in_phases(over(below, given), composed, stated)


def _resolve(given: Mapping[str, Stated], composed: Method | None) -> Resolved:
    """The settings and method of a run, or of one phase."""
    spec, compat = given.get("method", Stated("grpo", "default")), given.get("compat", Stated(None, "default"))
    if not isinstance(spec.value, str):
        raise ConfigError(f"method={spec.value!r} ({spec.origin}) is not a method's name")
    own = {k: s for k, s in given.items() if k in RUN_KEYS}
    staged = _staged(given)
    for key, stated in given.items():
        if key not in own and key not in staged and not _is_known(key, stated):
            if key.startswith(DROP):
                name = key.removeprefix(DROP)
                raise ConfigError(f"{_at(stated)}{key}: {name} is not stated: there is nothing to drop")
            rules = RULES if stated.origin.startswith("phases[") else ()
            raise ConfigError(f"{_at(stated)}unknown key {key!r}{near_key(key, rules)}")
    if composed is None:
        composed = method(spec.value, staged, compat=compat.value)
    elif staged or compat.value is not None:
        composed = method(composed, staged, compat=compat.value)
    if JOINED in own and JOINED in composed.run_keys:
        own[JOINED] = joined(own[JOINED], composed.run_keys[JOINED].value)
    own = over(composed.run_keys, own)
    settings = _validate(own)
    merged = {k: Stated(v, "default") for k, v in RUN_KEYS.items()} | own
    check_allowed(composed.rollout, merged)
    keys = {"method": Stated(composed.name, spec.origin), **merged, **composed.keys}
    if compat.value is not None:
        keys["compat"] = compat
    return Resolved(settings, composed, keys)


def _check_sampled(one: Resolved) -> Resolved:
    """A run without phases, or the first of them, as it is. ConfigError where it trains on the rollouts of a phase
    before."""
    if getattr(one.method.rollout, "file", None) in OF_PHASES:
        stated = one.keys["rollout.file"]
        raise ConfigError(
            f"{_at(stated)}rollout.file={stated.value}: it reads the rollouts of a phase, and there is none before: "
            "state phases, of which the first samples, or name a .jsonl file or a folder of them"
        )
    return one


def _is_known(key: str, stated: Stated) -> bool:
    """True if a key that states neither a setting nor a part is known: an empty section, a word for the whole run."""
    return key in _OTHER or (stated.is_silent and is_section(key, RUN_KEYS))


def _staged(given: Mapping[str, Stated]) -> dict[str, Stated]:
    """The keys of the method's parts."""
    return {k: s for k, s in given.items() if k not in RUN_KEYS and k not in _OTHER and stage_of(k) is not None}


# ---------------------------------------------------------------- phases
def _below_phases(given: Mapping[str, Stated], composed: Method | None) -> dict[str, Stated]:
    """The keys of the run's method where it states phases: of the run, below those that are given; else none."""
    if composed is not None:
        return {k: s for k, s in composed.run_keys.items() if k == "phases"}
    from gxpo.methods import METHODS

    spec = given["method"].value if "method" in given else None
    stating = (METHODS.get(word.split("@")[0].strip()) for word in spec.split("+")) if isinstance(spec, str) else ()
    found = next((d for d in stating if d is not None and "phases" in d.keys), None)
    return {} if found is None else {k: Stated(v, found.name) for k, v in found.keys.items()}


def _in_phases(given: Mapping[str, Stated], composed: Method | None, stated: Stated) -> Resolved:
    """A run with phases: each is resolved by itself, its keys over the run's.

    A key of a part that the run states reaches the phases whose composition has it; one that no phase has is unknown.
    """
    run = {k: s for k, s in given.items() if k != "phases"}
    plan = expand(yamltext.plain(stated.value, f"{_at(stated)}phases"))
    if "+" in getattr(run.get("method"), "value", "") and all("method" in p.keys for p in plan):
        raise ConfigError(
            f"method={run['method'].value}: its phases name their own methods, so the rest would do nothing: state "
            "phases in the file, with the compositions in them"
        )
    staged = _staged(run)
    found, lacking = [], dict(staged)
    for number, phase in enumerate(plan, 1):
        keys = {k: replace(s, optional=s.optional or k in staged) for k, s in run.items()}
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".* is left out: .* has no such key")
                one = _resolve(over(keys, phase.keys), None if "method" in phase.keys else composed)
                one = _check_sampled(one) if number == 1 else one
        except ConfigError as error:
            raise ConfigError(f"phase {number}: {error}") from None
        lacking = {k: s for k, s in lacking.items() if k not in (*one.keys, *SECTIONS)}
        found.append(replace(one, phase=phase))
    for key, held in lacking.items():
        known = [k for one in found for k in one.keys]
        raise ConfigError(f"{_at(held)}unknown key {key!r} in every phase{did_you_mean(key, known)}")
    steps = [phase.steps for phase in plan]
    if None not in steps:
        total = sum(x or 0 for x in steps)
        asked = given.get("trainer.steps", Stated(total, "phases"))
        if asked.value != total:
            raise ConfigError(
                f"{_at(asked)}trainer.steps={show(asked.value)}, and the phases take {total} steps: leave it out, or "
                "change the steps of a phase (one that states none has a share of trainer.steps)"
            )
        found = [_with_steps(one, replace(asked, value=total)) for one in found]
    spec = run.get("method", found[0].keys["method"])
    keys = {**found[0].keys, "method": spec, "phases": stated}
    keys |= {k: run.get(k, Stated(v, "default")) for k, v in RUN_KEYS.items() if k != "phases" and may_change(k)}
    return Resolved(found[0].settings, found[0].method, keys, tuple(found))


def _with_steps(one: Resolved, steps: Stated) -> Resolved:
    trainer = one.settings.trainer.model_copy(update={"steps": steps.value})
    settings = one.settings.model_copy(update={"trainer": trainer})
    return replace(one, settings=settings, keys=one.keys | {"trainer.steps": steps})


def near_key(key: str, further: Sequence[str] = ()) -> str:
    """`"; did you mean 'optim.lr'?"`: what an unknown key is called here, else the closest key or `further` name."""
    word = key.rpartition(".")[2].lower().replace("-", "_")
    if word in ELSEWHERE:
        return f"; did you mean {ELSEWHERE[word]!r}?"
    return did_you_mean(key, [*RUN_KEYS, *_OTHER, *SECTIONS, *method("grpo").keys, *further])


def _configurations(path: Path) -> str:
    """Names of YAML files where `path` was looked for, for the error that it is not there."""
    there = sorted(p.name for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
    if hint := did_you_mean(path.name, there):
        return hint
    return f"; there are {', '.join(there[:5])}" if there else "; gxpo demo needs no configuration"


def _at(stated: Stated) -> str:
    return "" if stated.origin == "default" else f"{stated.origin}: "


def _validate(keys: Mapping[str, Stated]) -> RunSettings:
    """The settings of a run from those that are stated."""
    nested: dict[str, Any] = {}
    moving = {k for k, s in keys.items() if is_schedule(s.value)}
    infinite = {k for k, s in keys.items() if not finite(s.value)}
    for key, stated in keys.items():
        if key in moving:
            instead = "set optim.schedule" if key == "optim.lr" else "set it to one number"
            raise ConfigError(
                f"{_at(stated)}{key}: a schedule moves numbers of the method's parts, and this is a setting of the "
                f"whole run: {instead}"
            )
        if key in infinite:
            raise ConfigError(f"{_at(stated)}{key}: numbers must be finite (got {show(stated.value)})")
        *sections, leaf = key.split(".")
        target = nested
        for section in sections:
            target = target.setdefault(section, {})
        target[leaf] = stated.value
    try:
        return RunSettings.model_validate(nested)
    except ValidationError as error:
        first = error.errors()[0]
        parts = [str(p) for p in first["loc"]]
        key = next((k for n in range(len(parts), 0, -1) if (k := ".".join(parts[:n])) in keys), ".".join(parts))
        stated = keys.get(key)
        place = _at(stated) if stated else ""
        got = f" (got {show(stated.value)})" if stated else ""
        raise ConfigError(f"{place}{key}: {first['msg'].lower()}{got}") from None


def load(path: str | Path | None = None, sets: Sequence[str] = ()) -> Resolved:
    """Load and resolve a YAML file with `--set` arguments."""
    return _resolved(over(read(path) if path is not None else {}, parse_set(sets)))
