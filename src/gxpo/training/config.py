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
from gxpo.environments import verifiers
from gxpo.methods.compose import method
from gxpo.methods.method import Method
from gxpo.parts.definition import JOINED, SettingValue, check_allowed, finite, is_schedule, is_section, show, stage_of
from gxpo.parts.options import SECTIONS, canonical, flatten_keys, leaves, nest_keys, settings_of, silent_keys
from gxpo.parts.settings import RUN_KEYS, RunSettings
from gxpo.sampling.rollouts.logged import OF_PHASES
from gxpo.training.phase_plan import RULES, Phase, expand, may_change
from gxpo.training.task_player import with_player

_INSTEAD = {"reward": "scoring.weights", "scoring.weights": "reward"}  # one reward, or several: never both
_OTHER = ("method", "compat", "versions")
_RECORDED = ("torch", "transformers", "numpy", "bitsandbytes", "gxpo")
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
class RunConfig:
    """A resolved configuration: settings, method, and the value and origin of every key.

    phases  of a run with `phases`, what holds in each of them; `method` is then the first one's
    phase   of one of these: when it ends, and its reference policy
    """

    settings: RunSettings
    method: Method
    keys: dict[str, SettingValue]
    phases: tuple[RunConfig, ...] = ()
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
        phase_steps = None if self.phase is None else self.phase.steps
        return phase_steps or self.settings.trainer.steps

    def to_yaml(self, home: Path | None = None) -> str:
        """Write YAML that resolves to the same run, with the origin of each key as a comment.

        home  the directory of the file, a run's own: files in it are named from there, so that it can be moved
        """
        keys = self.keys
        if self.phases:  # the phases have the parts' keys
            keys = {k: s for k, s in keys.items() if k in RUN_KEYS or k in _OTHER}
            phase_entries = [one._as_entry(keys) for one in self.phases]
            keys["phases"] = replace(keys["phases"], value=phase_entries)
        document = {k: _plain(s.value) for k, s in keys.items()}
        if home is not None:
            document = {k: _rename(k, v, f"{home}/", HERE) for k, v in document.items()}
        origins = {k: s.origin for k, s in keys.items()}
        return yamltext.dump({**document, "versions": versions()}, origins)

    def _as_entry(self, run: Mapping[str, SettingValue]) -> dict[str, Any]:
        """Write a phase as an entry of `phases`: its rules, all keys of its parts, settings that are not the run's."""
        assert self.phase is not None
        rules = {"steps": self.phase.steps, "until": self.phase.until and str(self.phase.until)}
        rules |= {name: getattr(self.phase, name) for name in ("reference", "optimiser", "weights")}
        changes = {k: s.value for k, s in self.keys.items() if k not in RUN_KEYS or s.value != run[k].value}
        keys = {k: _plain(v) for k, v in changes.items() if k not in ("phases", "compat", "versions")}
        return {k: v for k, v in rules.items() if v is not None} | keys


def _plain(value: Any) -> Any:
    """Convert a value to one that YAML can hold: a part becomes its name."""
    return value if isinstance(value, (int, float, str, list, tuple, dict, type(None))) else show(value)


HERE = "run:"  # begins the name of a file beside config.yaml
_FILES = ("model", "task", "tasks.options", "reward", "scoring.weights")  # settings that may name one


def _rename(key: str, value: Any, before: str, after: str) -> Any:
    """Replace the prefix `before` by `after` in names of files, in a setting that may name some."""
    if key not in _FILES:
        return value
    if isinstance(value, Mapping):
        return {_rename(key, k, before, after): _rename(key, v, before, after) for k, v in value.items()}
    return after + value[len(before) :] if isinstance(value, str) and value.startswith(before) else value


def named_from(text: str, home: Path) -> str:
    """Rewrite a run's config.yaml for use from another directory: files of the run by their paths."""
    return re.sub(rf"(?<![\w./]){HERE}(?=\w)", f"{home}/", text)


def versions() -> dict[str, str]:
    """Versions of the software that determines a run's numbers."""
    version_by_name = {"python": platform.python_version()}
    for name in _RECORDED:
        try:
            version_by_name[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return version_by_name


def read(path: str | Path) -> dict[str, SettingValue]:
    """Read a YAML file: its leaf keys, each with its line as origin."""
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{path}: {'not a file' if path.exists() else 'no such file'}{_near_files(path)}")
    if path.suffix in DATA:
        raise ConfigError(
            f"{path}: data, and a configuration (.yaml) is asked for: say task: {path} in it, or --set task={path}; "
            f"gxpo tasks {path} shows what is in it"
        )
    # Parsed by the same reader as --set, with the line of every key.
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
    # Aliases of keys first, so that a file that uses both names is refused as setting one key twice.
    keys = [(canonical(key), setting) for key, setting in leaves("", document, str(path), str(path))]
    values = [yamltext.plain(setting.value, f"{setting.origin}: {key}") for key, setting in keys]
    out = _merge_file_keys([(key, SettingValue(value, s.origin)) for (key, s), value in zip(keys, values, strict=True)])
    return {k: replace(s, value=_rename(k, s.value, HERE, f"{path.parent}/")) for k, s in out.items()}


def parse_set(items: Sequence[str]) -> dict[str, SettingValue]:
    """`--set key=value` arguments; values are YAML. Entries of mappings stay by themselves: see `over`."""
    items_as_set: list[tuple[str, Any]] = []
    for item in items:
        key, sign, text = item.partition("=")
        key = key.strip()
        # `~KEY` has no value.
        if key.startswith(DROP) and not sign:
            items_as_set.append((key, None))
            continue
        if not sign or not key:
            raise ConfigError(f"--set {item}: write --set KEY=VALUE, or --set {DROP}KEY to drop what is stated")
        try:
            value = yamltext.load(text, f"--set {key}") if text.strip() else ""
        # What is no YAML is a text, such as a prompt with a colon.
        except YAMLError:
            value = text
        items_as_set.append((key, yamltext.plain(value, f"--set {key}")))
    out: dict[str, SettingValue] = {}
    for key, value in items_as_set:
        for leaf, entry in leaves(key, value, "--set"):
            name = canonical(leaf)
            out.pop(name, None)  # in the order of the last statements: see `over`
            out[name] = entry
    return out


DROP = "~"  # before a key: what is stated for it, and under it, is dropped


def over(below: Mapping[str, SettingValue], above: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Merge two sets of keys; `above` wins, in its order: an entry of a mapping (`tasks.options.digits`) joins those
    before it, and a whole mapping takes their place."""
    out, settings, silent = dict(below), settings_of(above), silent_keys(above)
    for key, setting in above.items():
        if key not in silent or not (key in out or is_section(key, out)):
            _set_key(key, setting, settings[key], out)
    return out


def _merge_file_keys(keys: Sequence[tuple[str, SettingValue]]) -> dict[str, SettingValue]:
    """Merge the keys of one file; ConfigError if one is set twice, by itself or within its mapping."""
    settings, silent, out = settings_of(key for key, _ in keys), silent_keys(dict(keys)), dict[str, SettingValue]()
    for key, entry in keys:
        mapping_key, names = settings[key]
        value = out[mapping_key].value if mapping_key in out else None
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        # Within one file nobody can say which of two statements was meant; across files the later one wins.
        if value is not None or (not names and mapping_key in out):
            raise ConfigError(f"{entry.origin}: {key} is set twice")
        if key in silent and is_section(key, out):
            continue
        _set_key(key, entry, settings[key], out)
    return out


def _set_key(key: str, entry: SettingValue, setting: tuple[str, list[str]], out: dict[str, SettingValue]) -> None:
    """Put a key into `out`; an entry of a mapping goes into a copy of what is stated there, and `~KEY` drops a key."""
    # `~KEY` drops the key and everything under it.
    if key.startswith(DROP):
        name = key.removeprefix(DROP)
        dropped_keys = [k for k in out if k == name or k.startswith(f"{name}.")]
        for k in dropped_keys:
            del out[k]
        if not dropped_keys:  # there may be something below
            out[key] = entry
        return
    mapping_key, names = setting
    # Reward and its weights: a run has either.
    exclusive_key = _INSTEAD.get(mapping_key, "")
    # `reward` and `scoring.weights` exclude each other: the later statement wins, but an entry has nothing to join.
    if exclusive_key in out and out[exclusive_key].value is not None and entry.value is not None:
        if names:
            raise _no_entries_error(key, entry, exclusive_key, out[exclusive_key])
        del out[exclusive_key]
    if not names:
        out[key] = entry
        return
    # An entry of a mapping: down to its place, refusing a value on the way that has no entries.
    current = out.get(mapping_key, SettingValue(None, entry.origin))
    mapping = inner = {} if current.value is None else current.value
    for i, name in enumerate(names):
        if not isinstance(inner, Mapping):
            raise _no_entries_error(key, entry, ".".join([mapping_key, *names[:i]]), replace(current, value=inner))
        inner = inner.get(name, {})
    origins = dict.fromkeys((current.origin, entry.origin))
    out[mapping_key] = SettingValue(_with(mapping, names, entry.value), ", ".join(origins))


def _with(mapping: Mapping[str, Any], names: list[str], value: Any) -> dict[str, Any]:
    """Copy nested mappings with a value at the end of the path `names`."""
    head, *rest = names
    return {**mapping, head: _with(mapping.get(head, {}), rest, value) if rest else value}


def _no_entries_error(key: str, entry: SettingValue, parent: str, current: SettingValue) -> ConfigError:
    return ConfigError(
        f"{entry.error_prefix}{key}: {parent} is {show(current.value)}, which has no entries ({current.origin})"
    )


def resolve(settings: Mapping[str, SettingValue], *, composition: Method | None = None) -> RunConfig:
    """Resolve the settings and method of a run. `composition`: a method built in Python, instead of the key `method`;
    keys of the method go over those that it was composed with."""
    places = [f"{s.error_prefix}{k}" for k, s in settings.items()]
    plain = [yamltext.plain(s.value, place) for s, place in zip(settings.values(), places, strict=True)]
    settings = flatten_keys({k: replace(s, value=value) for (k, s), value in zip(settings.items(), plain, strict=True)})
    return _resolve_run(over({}, {canonical(k): s for k, s in settings.items()}), composition)


def _resolve_run(settings: Mapping[str, SettingValue], composition: Method | None = None) -> RunConfig:
    """Resolve a run, with phases or without, from plain values by canonical keys (a result of `over`)."""
    if open_keys := [key for key, setting in settings.items() if yamltext.is_open(setting.value)]:
        place = settings[open_keys[0]].error_prefix
        raise ConfigError(f"{place}write a value in place of {yamltext.OPEN}, or --set it: {', '.join(open_keys)}")
    method_keys = _phased_method_keys(settings, composition)
    phases = settings.get("phases", method_keys.pop("phases", None))
    if phases is None or not phases.value:
        return _refuse_earlier_rollouts(_resolve(settings, composition))
    return _resolve_phases(over(method_keys, settings), composition, phases)


def _resolve(settings_given: Mapping[str, SettingValue], composition: Method | None) -> RunConfig:
    """Resolve the settings and method of a run without phases, or of one phase."""
    spec = settings_given.get("method", SettingValue("grpo", "default"))
    compat = settings_given.get("compat", SettingValue(None, "default"))
    if not isinstance(spec.value, str):
        raise ConfigError(f"method={spec.value!r} ({spec.origin}) is not a method's name")
    # Settings of the run and keys of parts lie in one file: apart from here on.
    stated_run_keys = {k: s for k, s in settings_given.items() if k in RUN_KEYS}
    part_keys = _part_keys(settings_given)
    for key, entry in settings_given.items():
        if key not in stated_run_keys and key not in part_keys and not _is_known(key, entry):
            if key.startswith(DROP):
                name = key.removeprefix(DROP)
                raise ConfigError(f"{entry.error_prefix}{key}: {name} is not stated: there is nothing to drop")
            # A phase has rules of its own (until, reference), which belong into suggestions.
            rules = RULES if entry.origin.startswith("phases[") else ()
            raise ConfigError(f"{entry.error_prefix}unknown key {key!r}{near_key(key, rules)}")
    # A method given as an object may be composed further by the keys of its parts.
    # The task's rollout first: a method's own would be replaced unseen.
    if "task" in settings_given and str(task := settings_given["task"].value).startswith(verifiers.PREFIX):
        part_keys = with_player(task, part_keys, spec.value if composition is None else composition)
    if composition is None:
        composition = method(spec.value, part_keys, compat=compat.value)
    elif part_keys or compat.value is not None:
        composition = method(composition, part_keys, compat=compat.value)
    # Options of rewards join: the method's stay for those that the user does not state.
    if JOINED in stated_run_keys and JOINED in composition.run_keys:
        stated_run_keys[JOINED] = stated_run_keys[JOINED].over_options(composition.run_keys[JOINED].value)
    stated_run_keys = over(composition.run_keys, stated_run_keys)
    settings = _validate(stated_run_keys)
    merged_keys = {k: SettingValue(v, "default") for k, v in RUN_KEYS.items()} | stated_run_keys
    check_allowed(composition.rollout, merged_keys)
    keys = {"method": SettingValue(composition.name, spec.origin), **merged_keys, **composition.keys}
    if compat.value is not None:
        keys["compat"] = compat
    return RunConfig(settings, composition, keys)


def _refuse_earlier_rollouts(one: RunConfig) -> RunConfig:
    """Refuse to train on rollouts of an earlier phase where there is none; return the configuration unchanged."""
    if getattr(one.method.rollout, "file", None) in OF_PHASES:
        file_setting = one.keys["rollout.file"]
        raise ConfigError(
            f"{file_setting.error_prefix}rollout.file={file_setting.value}: it reads the rollouts "
            "of an earlier phase, and there is none: state phases, of which the first samples, or name a .jsonl "
            "file or a folder of them"
        )
    return one


def _is_known(key: str, entry: SettingValue) -> bool:
    """True if a key that states neither a setting nor a part is known: an empty section, a word for the whole run."""
    return key in _OTHER or (entry.is_silent and is_section(key, RUN_KEYS))


def _part_keys(keys: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Select the keys of the method's parts."""
    return {k: s for k, s in keys.items() if k not in RUN_KEYS and k not in _OTHER and stage_of(k) is not None}


# ---------------------------------------------------------------- phases
def _phased_method_keys(settings: Mapping[str, SettingValue], composition: Method | None) -> dict[str, SettingValue]:
    """Keys that the method brings for the run if it has phases of its own; they go below the given ones."""
    if composition is not None:
        return {k: s for k, s in composition.run_keys.items() if k == "phases"}
    from gxpo.methods import METHODS

    spec = settings["method"].value if "method" in settings else None
    definitions = (METHODS.get(word.split("@")[0].strip()) for word in spec.split("+")) if isinstance(spec, str) else ()
    definition = next((d for d in definitions if d is not None and "phases" in d.keys), None)
    return {} if definition is None else {k: SettingValue(v, definition.name) for k, v in definition.keys.items()}


def _resolve_phases(
    keys_given: Mapping[str, SettingValue], composition: Method | None, phases: SettingValue
) -> RunConfig:
    """Resolve a run with phases: each by itself, its keys over the run's.

    A key of a part that the run states reaches the phases whose composition has it; one that no phase has is unknown.
    """
    run = {k: s for k, s in keys_given.items() if k != "phases"}
    plan = expand(yamltext.plain(phases.value, f"{phases.error_prefix}phases"))
    # A composition of methods beside phases that all name their own would have no effect.
    if "+" in getattr(run.get("method"), "value", "") and all("method" in p.keys for p in plan):
        raise ConfigError(
            f"method={run['method'].value}: its phases name their own methods, so the rest would do nothing: state "
            "phases in the file, with the compositions in them"
        )
    part_keys = _part_keys(run)
    resolved_phases, unused_keys = [], dict(part_keys)
    # A key of a part holds for each phase whose method has it; it is an error only if no phase has it.
    for number, phase in enumerate(plan, 1):
        keys = {k: replace(s, optional=s.optional or k in part_keys) for k, s in run.items()}
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".* is left out: .* has no such key")
                one = _resolve(over(keys, phase.keys), None if "method" in phase.keys else composition)
                # The first phase has no earlier rollouts to read.
                one = _refuse_earlier_rollouts(one) if number == 1 else one
        except ConfigError as error:
            raise ConfigError(f"phase {number}: {error}") from None
        unused_keys = {k: s for k, s in unused_keys.items() if k not in (*one.keys, *SECTIONS)}
        resolved_phases.append(replace(one, phase=phase))
    for key, entry in unused_keys.items():
        phase_keys = [k for one in resolved_phases for k in one.keys]
        raise ConfigError(f"{entry.error_prefix}unknown key {key!r} in every phase{did_you_mean(key, phase_keys)}")
    # Where every phase states its steps, they are the run's; trainer.steps may repeat the sum, not contradict it.
    steps = [phase.steps for phase in plan]
    if None not in steps:
        total = sum(x or 0 for x in steps)
        total_steps = keys_given.get("trainer.steps", SettingValue(total, "phases"))
        if total_steps.value != total:
            raise ConfigError(
                f"{total_steps.error_prefix}trainer.steps={show(total_steps.value)}, and the phases take {total} "
                "steps: leave it out, or change the steps of a phase (one that states none has a share)"
            )
        resolved_phases = [_with_steps(one, replace(total_steps, value=total)) for one in resolved_phases]
    # Keys of the whole run are shown as stated, those of a phase as the first one has them.
    spec = run.get("method", resolved_phases[0].keys["method"])
    keys = {**resolved_phases[0].keys, "method": spec, "phases": phases}
    keys |= {k: run.get(k, SettingValue(v, "default")) for k, v in RUN_KEYS.items() if k != "phases" and may_change(k)}
    return RunConfig(resolved_phases[0].settings, resolved_phases[0].method, keys, tuple(resolved_phases))


def _with_steps(one: RunConfig, steps: SettingValue) -> RunConfig:
    trainer = one.settings.trainer.model_copy(update={"steps": steps.value})
    settings = one.settings.model_copy(update={"trainer": trainer})
    return replace(one, settings=settings, keys=one.keys | {"trainer.steps": steps})


def near_key(key: str, further: Sequence[str] = ()) -> str:
    """`"; did you mean 'optim.lr'?"`: what an unknown key is called here, else the closest key or `further` name."""
    word = key.rpartition(".")[2].lower().replace("-", "_")
    if word in ELSEWHERE:
        return f"; did you mean {ELSEWHERE[word]!r}?"
    return did_you_mean(key, [*RUN_KEYS, *_OTHER, *SECTIONS, *method("grpo").keys, *further])


def _near_files(path: Path) -> str:
    """Hint for a missing configuration: a close name, or the YAML files in its folder."""
    names = sorted(p.name for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
    if hint := did_you_mean(path.name, names):
        return hint
    return f"; there are {', '.join(names[:5])}" if names else "; gxpo demo needs no configuration"


def _validate(keys: Mapping[str, SettingValue]) -> RunSettings:
    """Build the validated settings of a run; ConfigError names the key, its value and where it was set."""
    # Refused here and not by pydantic, which would report a type and not what to do.
    schedules = {k for k, s in keys.items() if is_schedule(s.value)}
    infinite = {k for k, s in keys.items() if not finite(s.value)}
    for key, entry in keys.items():
        if key in schedules:
            instead = "set optim.schedule" if key == "optim.lr" else "set it to one number"
            raise ConfigError(
                f"{entry.error_prefix}{key}: a schedule moves numbers of the method's parts, and this is a setting "
                f"of the whole run: {instead}"
            )
        if key in infinite:
            raise ConfigError(f"{entry.error_prefix}{key}: numbers must be finite (got {show(entry.value)})")
    try:
        return RunSettings.model_validate(nest_keys({key: entry.value for key, entry in keys.items()}))
    except ValidationError as error:
        # Report the longest prefix of the location that is a key of the user's: a mapping's entry has no origin.
        first = error.errors()[0]
        parts = [str(p) for p in first["loc"]]
        key = next((k for n in range(len(parts), 0, -1) if (k := ".".join(parts[:n])) in keys), ".".join(parts))
        entry = keys.get(key)
        place = entry.error_prefix if entry else ""
        value_text = f" (got {show(entry.value)})" if entry else ""
        raise ConfigError(f"{place}{key}: {first['msg'].lower()}{value_text}") from None


def load(path: str | Path | None = None, sets: Sequence[str] = ()) -> RunConfig:
    """Load and resolve a YAML file with `--set` arguments."""
    return _resolve_run(keys_with_sets(path, sets))


def keys_with_sets(path: str | Path | None, sets: Sequence[str]) -> dict[str, SettingValue]:
    """Keys of a YAML file with those of `--set` over them; ConfigError for a file without any."""
    if (keys := over({} if path is None else read(path), parse_set(sets))) or path is None:
        return keys
    raise ConfigError(f"{path}: an empty file; a configuration has at least model and task")


def demo_settings(*, seed: int = 0, method: str | None = None, steps: int | None = None) -> dict[str, SettingValue]:
    """The keys of `gxpo demo`: those of `demo.yaml` beside this file, with these on top."""
    keys = read(Path(__file__).with_name("demo.yaml"))
    for key, value in (("seed", seed), ("method", method), ("trainer.steps", steps)):
        if value is not None:
            keys[key] = SettingValue(value, "argument")
    return keys
