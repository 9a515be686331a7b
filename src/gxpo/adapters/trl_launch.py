"""Files that start TRL: YAML of `trl grpo`, and shell scripts with `trl grpo`, `accelerate launch` or `swift rlhf`."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gxpo.adapters import convert_script
from gxpo.adapters.convert_script import SourceSettings, Value
from gxpo.adapters.script.parsers import literal, options_of
from gxpo.adapters.script.values import Unknown
from gxpo.adapters.shell.files import find_file
from gxpo.adapters.shell.script import Script
from gxpo.adapters.shell.values import Call, to_text
from gxpo.adapters.shell.values import Unknown as UnknownText
from gxpo.adapters.trl_config import DEFAULTS
from gxpo.base import yamltext
from gxpo.base.errors import ConfigError

REWARDS = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward", "get_soft_overlong_punishment",
           "accuracy")  # fmt: skip


def read_yaml(path: Path) -> SourceSettings:
    """Read a YAML file of `trl grpo`: fields of GRPOConfig beside those of its model, data and adapter."""
    return of_fields(_leaves(path))


def of_fields(fields: Mapping[str, Value]) -> SourceSettings:
    """Return the settings of `trl grpo` that fields of its classes make."""
    source = SourceSettings(settings=dict(fields))
    for theirs, ours in (("model_name_or_path", "model"), ("dataset_name", "dataset"),
                         ("dataset_config", "dataset_config"), ("dataset_train_split", "split"),
                         ("torch_dtype", "torch_dtype"), ("dtype", "dtype"), ("load_in_4bit", "load_in_4bit"),
                         ("load_in_8bit", "load_in_8bit")):  # fmt: skip
        if theirs in source.settings and source.settings[theirs].value is not None:
            source.parts[ours] = source.settings[theirs]
    if (use_peft := source.settings.get("use_peft")) is not None and use_peft.value:
        lora = {"r": 16, "lora_alpha": 32, "target_modules": None, "lora_dropout": 0.05}
        names = {"lora_r": "r", "lora_alpha": "lora_alpha", "lora_target_modules": "target_modules",
                 "lora_dropout": "lora_dropout", "use_rslora": "use_rslora", "use_dora": "use_dora"}  # fmt: skip
        lora |= {names[k]: v.value for k, v in source.settings.items() if k in names}
        source.parts["peft"] = Value({k: v for k, v in lora.items() if v is not None}, use_peft.where)
    if "reward_model_name_or_path" in source.settings:
        source.rewards.append(("model", source.settings["reward_model_name_or_path"]))
    reward_funcs = source.settings.get("reward_funcs", Value([], ""))
    for name in reward_funcs.value if isinstance(reward_funcs.value, list) else [reward_funcs.value]:
        kind = "open" if name == yamltext.OPEN else "trl" if name in REWARDS else "other"
        source.rewards.append((kind, Value(name, reward_funcs.where, reward_funcs.note)))
    return source


def _leaves(path: Path) -> dict[str, Value]:
    """Return the fields of a YAML file, each with its line."""
    from ruamel.yaml.error import YAMLError

    try:
        document = yamltext.load(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8: save it with that encoding") from None
    except YAMLError as error:
        problem, line = yamltext.problem_of(error)
        raise ConfigError(f"{path}{line}: not YAML: {problem}") from None
    if not isinstance(document, Mapping):
        raise ConfigError(f"{path}: a configuration is a mapping of fields to values")
    lines = getattr(getattr(document, "lc", None), "data", {}) or {}
    return {
        str(k): Value(yamltext.plain(v, f"{path}: {k}"), f"line {lines[k][0] + 1}" if k in lines else "the file")
        for k, v in document.items()
    }


# ---------------------------------------------------------------- launches
# programs that start a script, and their options for the number of processes
LAUNCHERS = ("accelerate", "torchrun", "deepspeed", "python", "python3", "uv", "srun")
PROCESSES = ("num_processes", "nproc_per_node", "num_gpus", "nproc-per-node")
UNREAD_LAUNCHERS = {
    "megatron": "megatron rlhf (ms-swift) is not read: state its settings in gxpo's keys, see docs/migrate.md",
    "swift": "only `swift rlhf --rlhf_type grpo` is read of ms-swift",
}
# defaults of ms-swift's GRPO where they are not TRL's, and its names of TRL's fields, as of 3602360a:
# swift/arguments/rlhf_args.py, sft_args.py, trainers/arguments.py
SWIFT: Mapping[str, Any] = {
    "freeze_vit": True,
    "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "weight_decay": 0.1, "adam_beta2": 0.95,
    "lr_scheduler_type": "cosine", "beta": 0.04, "temperature": 0.9, "top_k": -1, "loss_type": "grpo",
    "use_bias_correction_kl": False, "vllm_importance_sampling_correction": False, "report_to": "tensorboard",
    "tuner_type": "lora", "lora_rank": 8, "lora_alpha": 32, "lora_dropout": 0.05, "target_modules": "all-linear",
}  # fmt: skip
SWIFT_NAMES = {
    "model": "model_name_or_path", "lora_rank": "lora_r", "target_modules": "lora_target_modules",
    "overlong_filter": "mask_truncated_completions", "system": "system_prompt", "tau_pos": "sapo_temperature_pos",
    "tau_neg": "sapo_temperature_neg", "quant_bits": "load_in_4bit",
    "off_policy_sequence_mask_delta": "off_policy_mask_threshold",
    "rollout_importance_sampling_mode": "vllm_importance_sampling_mode",
    "rollout_importance_sampling_threshold": "vllm_importance_sampling_clip_max",
}  # fmt: skip
SWIFT_WITHOUT_EFFECT = re.compile(
    r"rlhf_type|tuner_type|train_type|load_from_cache_file|attn_impl|.*num_proc|dataset_shuffle|offload_.*|sleep_level|"
    r"move_model_batches|vllm_.*|external_plugins|model_type|template|add_version|logging_.*|create_checkpoint_symlink|"
    r"val_dataset_shuffle|split_dataset_ratio|log_.*|advantage_estimator|lazy_tokenize|check_model|use_hf|ddp_.*|padding_free|save_only_model|async_generate"
)


def read(path: Path, processes: int) -> tuple[SourceSettings, Path, int]:
    """Read a shell script that starts TRL or ms-swift; return settings, the file with its rewards, and processes."""
    script = Script(path, lambda words: _program(words) != "")
    launches = [call for call in script.calls if _program(call.words)]
    if not launches:
        raise ConfigError(f"{path}: it starts neither trl, accelerate, torchrun, python nor swift rlhf")
    # servers of completions beside the training are not it
    trainings = [c for c in launches if _program(c.words) != "swift" or "rlhf" in c.words or "rlhf.py" in str(c.words)]
    call = (trainings or launches)[0]
    more = [(c.where, "a second launch: the first one is taken") for c in trainings[1:]]
    if call.why:
        more.append((call.where, f"whether it is started is not known: {call.why}"))
    more += script.notes
    find = functools.partial(_find_started, path, call, more)
    source, file, count = of_words([_word(w, call.where) for w in call.words], call.where, find)
    source.open = [*more, *source.open]
    # the number of processes is that of the launch, unless the command line of gxpo says another
    environment = re.search(r"^\s*NPROC_PER_NODE=(\d+)", path.read_text(encoding="utf-8"), re.M)
    plain_value = count or (int(environment[1]) if environment and call.words[0] == "swift" else 0)
    if not plain_value and processes == 1:
        source.open.append((call.where, "the number of processes is not known: say it (--processes)"))
    return source, file or path, processes if processes != 1 else plain_value or 1


def of_line(text: str) -> tuple[SourceSettings, Path, int]:
    """Read a command line that starts TRL or ms-swift."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{text[:60]}: not a command line: {error}") from None
    while words and re.match(r"[A-Z_]+=", words[0]):
        words.pop(0)
    if not _program(words):
        raise ConfigError(
            f"{text[:60]}: give a file, or a command line of `trl grpo`, `accelerate launch` or `swift rlhf`"
        )
    source, file, count = of_words(words, "the command line", Path)
    return source, file or Path("it"), count or 1


def _word(word: Any, where: str) -> Any:
    return Unknown(f"{word.text}: {word.why}", where) if isinstance(word, UnknownText) else word


def _program(words: Sequence[Any]) -> str:
    """Return what a command starts: "trl", "swift", "megatron", "script"; "" for something else."""
    name = words[0].rpartition("/")[2] if words and isinstance(words[0], str) else ""
    texts = [w if isinstance(w, str) else "" for w in words]
    if name in ("trl", "swift", "megatron") and len(words) > 1:
        return name if name != "trl" or texts[1] in ("grpo", "rloo") else ""
    is_trl_module = any(re.search(r"trl/scripts/(grpo|rloo)\.py$|^trl\.scripts\.(grpo|rloo)$", t) for t in texts)
    if name in LAUNCHERS and is_trl_module:
        return "trl"
    if name in LAUNCHERS and any("swift" in t and t.endswith(("rlhf.py", "rlhf")) for t in texts):
        return "swift"
    return "script" if name in LAUNCHERS and any(t.endswith(".py") for t in texts) else ""


def _find_started(script: Path, call: Call, notes: list[tuple[str, str]], name: str) -> Path:
    """Find a file that a launch in a script names; one below a directory that is not certain is noted."""
    path = find_file(script, name, (".py", ".yaml", ".yml"), call.directory)
    is_where_it_says = isinstance(call.directory, str) and str(path).endswith(str(Path(call.directory) / name))
    if path is not None and not is_where_it_says:
        notes.append((call.where, f"{name}: {path} is taken, for its directory {to_text(call.directory)} is not here"))
    return path or script.parent / name


def of_words(words: Sequence[Any], where: str, find: Callable[[str], Path]) -> tuple[SourceSettings, Path | None, int]:
    """Return the settings of a launch, the script that it starts, and its processes (0: not said).

    find  gives the path of a file by its name in the launch
    """
    program = _program(words)
    texts = [w if isinstance(w, str) else "" for w in words]
    start = next((i for i, t in enumerate(texts) if t.endswith(".py") or t in ("grpo", "rloo", "rlhf")
                  or re.match(r"trl\.scripts\.|swift\.cli\.", t)), 0)  # fmt: skip
    before, after = options_of(words[1:start]) or {}, words[start + 1 :]
    counts = [before[p] for p in PROCESSES if p in before] or [
        v for k, v in (options_of(after) or {}).items() if k == "num_processes"
    ]
    count = int(counts[0]) if counts and isinstance(counts[0], str) and counts[0].isdigit() else 0
    if program == "script":
        file = find(texts[start])
        if not file.is_file():
            raise ConfigError(f"{texts[start]}: no such file, started in {where}: convert it where it lies")
        return convert_script.read(file, after), file, count
    options = options_of(after) or {}
    if program == "swift":
        if options.get("rlhf_type") != "grpo":
            raise ConfigError(f"{where}: {UNREAD_LAUNCHERS['swift']}")
        return _swift(options, where), None, count
    if program == "megatron":
        raise ConfigError(f"{where}: {UNREAD_LAUNCHERS['megatron']}")
    fields: dict[str, Value] = {}
    if isinstance(config := options.pop("config", None), str):
        file = find(config)
        if not file.is_file():
            raise ConfigError(f"{config}: no such file, named in {where}")
        fields = {k: Value(v.value, f"{v.where} of {file.name}") for k, v in _leaves(file).items()}
    options = {k: v for k, v in options.items() if k not in ("num_processes", "config_file", "accelerate_config")}
    source = of_fields({**fields, **{k: _option_value(v, where) for k, v in options.items()}})
    if any("rloo" in t for t in texts[: start + 1]):
        source.kind = "RLOO"
    return source, None, count


def _option_value(value: Any, where: str) -> Value:
    unknown = next((v for v in (value if isinstance(value, list) else [value]) if isinstance(v, Unknown)), None)
    return Value(yamltext.OPEN, where, unknown.reason) if unknown is not None else Value(literal(value), where)


def _swift(options: Mapping[str, Any], where: str) -> SourceSettings:
    """Return the settings of `swift rlhf --rlhf_type grpo` as fields of TRL."""
    default = "ms-swift's default"
    values = {k: Value(v, default) for k, v in SWIFT.items()} | {k: _option_value(v, where) for k, v in options.items()}
    is_lora = "lora" in str((values.get("train_type") or values["tuner_type"]).value)
    if "learning_rate" not in options:
        values["learning_rate"] = Value(1e-4 if is_lora else 1e-5, default)
    notes: list[tuple[str, str]] = []
    fields: dict[str, Value] = {"use_peft": Value(is_lora, values["tuner_type"].where)}
    for name, value in values.items():
        if name == "dataset":
            fields |= _swift_dataset(value, notes)
        elif name in ("lora_rank", "lora_alpha", "lora_dropout", "target_modules") and not is_lora:
            continue
        elif name == "stop_words":
            fields["generation_kwargs"] = Value({"stop": value.value}, value.where)
        elif name == "enable_thinking":
            fields["chat_template_kwargs"] = Value({"enable_thinking": value.value}, value.where)
        elif name == "scale_rewards" and value.value == "gdpo":
            fields["multi_objective_aggregation"] = Value("normalize_then_sum", value.where)
        elif name in ("advantage_estimator", "loss_type") and value.value not in SWIFT_KNOWN[name]:
            fields["loss_type"] = Value(
                yamltext.OPEN, value.where, f"{name} {value.value}: set method, gxpo methods lists them"
            )
        elif name == "rollout_importance_sampling_mode" and not value.is_open:
            fields |= {"vllm_importance_sampling_correction": Value(True, value.where), SWIFT_NAMES[name]: value}
        elif name == "system" and str(value.value).endswith(".txt"):
            fields["system_prompt"] = Value(yamltext.OPEN, value.where, f"the text of {value.value}")
        elif name in SWIFT_METHODS:
            fields["loss_type"] = Value(yamltext.OPEN, value.where, f"{name}={value.value!r}: {SWIFT_METHODS[name]}")
        elif name in ("reward_model", "max_length", "dynamic_sample", "kl_in_reward", "val_dataset", "freeze_vit"):
            notes.append((value.where, f"{name}={value.value!r}: {SWIFT_NOTES[name]}"))
        elif name in DEFAULTS or not SWIFT_WITHOUT_EFFECT.fullmatch(name):
            fields[SWIFT_NAMES.get(name, name)] = value
    source = of_fields(fields)
    source.open, source.system = notes, "ms-swift 4.6"
    source.rewards = [
        ("trl" if r.value == "accuracy" else "open" if r.is_open else "other", r) for _, r in source.rewards
    ]
    return source


SWIFT_KNOWN = {"advantage_estimator": ("grpo",), "loss_type": ("grpo", "bnpo", "dapo", "dr_grpo", "cispo", "sapo")}
SWIFT_METHODS = dict.fromkeys(
    ("chord_sft_dataset", "teacher_model", "teacher_model_server", "advantage_reweight", "sdar_loss_coef"),
    "another method: set method, gxpo methods lists them",
)
SWIFT_NOTES = {
    "reward_model": "a reward model: teacher.models",
    "max_length": "of the prompt: tasks.too_long",
    "dynamic_sample": "groups without signal are sampled again: method dapo does so",
    "kl_in_reward": "objective.kl.place: reward",
    "freeze_vit": "learner.freeze_vision_tower, where the model has one",
    "val_dataset": "gxpo evaluates on held-out tasks of its task (eval.*)",
}


def _swift_dataset(value: Value, notes: list[tuple[str, str]]) -> dict[str, Value]:
    """Return the data set of ms-swift's `ID:SUBSET#ROWS`; several are open."""
    if not isinstance(value.value, str) or value.is_open:
        reason = value.note or "several data sets: join their rows in a file of tasks"
        return {"dataset_name": Value(yamltext.OPEN, value.where, reason)}
    name, _, rows = value.value.partition("#")
    name, _, subset = name.partition(":")
    if rows:
        notes.append((value.where, f"{rows} rows of the data: gxpo draws from all"))
    if name.endswith(".json"):
        return {"dataset_name": Value(yamltext.OPEN, value.where, f"{name}: write its rows to a .jsonl")}
    out = {"dataset_name": Value(name, value.where)}
    return out | ({"dataset_config": Value(subset, value.where)} if subset else {})
