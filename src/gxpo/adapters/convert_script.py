"""Reader of TRL scripts and notebooks without running them: what their trainer and its configuration are given."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gxpo.adapters.script.calls import TRAINERS, Calls, elsewhere
from gxpo.adapters.script.expressions import source_of
from gxpo.adapters.script.parsers import CONFIGS
from gxpo.adapters.script.values import ABSENT, Function, Import, Noted, Thing, Unknown, plain, without_notes
from gxpo.base.errors import ConfigError
from gxpo.base.yamltext import OPEN

LARGEST = 5_000_000  # characters of a file


@dataclass(frozen=True)
class Value:
    """Value of a setting and its place ("line 12", "cell 3 line 2", "line 4 of CONFIG.yaml").

    note  what changes the value ("--lr"); of a value that is OPEN, why it is not known
    """

    value: Any
    where: str
    note: str = ""

    @property
    def is_open(self) -> bool:
        """True if the value is not known."""
        return isinstance(self.value, str) and self.value == OPEN


@dataclass
class SourceSettings:
    """Settings that a source states.

    settings  fields of GRPOConfig, and further fields of YAML files; `OPEN` where a value is not known
    parts     arguments of the trainer: "model", "dataset", "split", "dataset_config", "peft" (a mapping)
    rewards   of the trainer, in order: ("function", name) of the source, ("trl", name), ("model", name), ("open", "")
    open      (where, what) for what is to be said of the source
    kind      "GRPO" or "RLOO";   system: trainer and version whose defaults hold
    extra_fields  why others may be set;   is_parsed: True if the command line may set any field
    is_guarded    True if importing the source runs no training;   unsloth: True if that library is imported
    """

    settings: dict[str, Value] = field(default_factory=dict)
    parts: dict[str, Value] = field(default_factory=dict)
    rewards: list[tuple[str, Value]] = field(default_factory=list)
    open: list[tuple[str, str]] = field(default_factory=list)
    extra_fields: str = ""
    is_parsed: bool = False
    is_guarded: bool = True
    unsloth: bool = False
    kind: str = "GRPO"
    system: str = "TRL 1.16"


def read(path: Path, words: Sequence[Any] | None = None) -> SourceSettings:
    """Read the settings of a script (.py) or notebook (.ipynb); ConfigError if it is not Python.

    words  of the command line after the script's name, where they are known
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8: save it with that encoding") from None
    if len(text) > LARGEST:
        raise ConfigError(f"{path}: {len(text):,} characters are too many for a script")
    lines = _cells(path, text) if path.suffix == ".ipynb" else [(f"line {i}", x) for i, x in _numbered(text)]
    code = "\n".join(_without_magics([line for _, line in lines], path.suffix == ".ipynb"))
    # a parser's own limits of depth end as errors of several kinds
    try:
        tree = _without_cells(ast.parse(code))
        return _Reader(tree, [where for where, _ in lines], path, words).source
    except SyntaxError as error:
        where = lines[error.lineno - 1][0] if error.lineno and error.lineno <= len(lines) else "somewhere"
        # which quotes may stand within those of an f-string
        is_newer = "f-string" in str(error.msg) and sys.version_info < (3, 12)
        newer = "; newer than Python 3.11? Then convert it with Python 3.12" if is_newer else ""
        raise ConfigError(f"{path}: {where}: not Python: {error.msg}{newer}") from None
    except (RecursionError, MemoryError):
        raise ConfigError(f"{path}: expressions are nested too deeply to read") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not Python: {error}") from None


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    yield from enumerate(text.split("\n"), 1)


def _cells(path: Path, text: str) -> list[tuple[str, str]]:
    """Return the lines of a notebook's code cells, each with its place."""
    try:
        cells = json.loads(text)["cells"]
        code = [(n, "".join(c["source"])) for n, c in enumerate(cells, 1) if c["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path}: not a notebook: {error}") from None
    # a cell of another language, or one that is run by a shell, holds no Python
    return [
        (f"cell {n} line {i}", x) for n, source in code if not source.lstrip().startswith("%%") or
        re.match(r"\s*%%(time|capture|timeit)", source) for i, x in _numbered(source)
    ]  # fmt: skip


def _without_magics(lines: Sequence[str], is_notebook: bool) -> Iterator[str]:
    """Replace magics and shell lines by `pass`, and what follows their backslashes by nothing; line numbers stay."""
    goes_on = False
    for line in lines:
        is_magic = is_notebook and bool(re.match(r"\s*([%!?]|\w+ *= *[%!])", line))
        indent = line[: len(line) - len(line.lstrip())]
        yield "" if goes_on else f"{indent}pass" if is_magic else line
        goes_on = (is_magic or goes_on) and line.rstrip().endswith("\\")


def _without_cells(tree: ast.Module) -> ast.Module:
    """Put the bodies of a marimo notebook's cells, which are functions there, in their places at the top level."""
    body: list[ast.stmt] = []
    for node in tree.body:
        decorators = [ast.unparse(d).partition("(")[0] for d in getattr(node, "decorator_list", ())]
        if isinstance(node, ast.FunctionDef) and "app.cell" in decorators:
            body += [s for s in node.body if not isinstance(s, ast.Return)]
        else:
            body.append(node)
    tree.body = body
    return tree


class _Reader:
    """Reader of one script into `source`."""

    def __init__(self, tree: ast.Module, places: list[str], path: Path, words: Sequence[Any] | None) -> None:
        self.source, self.path = SourceSettings(), path
        self.walk = Calls(tree, places)
        self.walk.words = words
        self.walk.block(tree.body)
        self._follow_uncalled(tree)
        records = self.walk.state["records"]
        trainers = [t for k, t in records.items() if k.startswith("trainer")]
        configs = [t for k, t in records.items() if k.startswith("config")]
        if not configs and not trainers:
            raise ConfigError(_without_trainer(tree, self.walk.where))
        # of several trainers the one that trains first is taken, and the others are named
        trained = records.get("trained")
        trainer = trained if isinstance(trained, Thing) else trainers[0] if trainers else None
        for second in trainers:
            if second is not trainer and (trainer is None or second.where != trainer.where):
                self._say(
                    second.where,
                    f"a second trainer ({second.name}): the one in {trainer.where} is taken" if trainer else "",
                )
        self.source.unsloth = any(
            isinstance(n, ast.ImportFrom) and (n.module or "").startswith("unsloth") for n in ast.walk(tree)
        )
        config, notes = without_notes(
            trainer.fields.get("args", trainer.fields.get("config")) if trainer is not None else configs[0]
        )
        if trainer is None or config is None:
            for more in [c for c in configs if c is not config][(0 if config is not None else 1) :]:
                self._say(more.where, f"a second {more.name}: the first one is taken")
            if config is None and configs and trainer is not None:
                self._say(configs[0].where, f"{configs[0].name}: the trainer is not given it (args=)")
        else:
            for more in configs:
                if more is not config and more.where != getattr(config, "where", ""):
                    self._say(more.where, f"a second {more.name}: that of the trainer is taken")
        if trainer is not None and config is None and (library := self._other_library(trainer)):
            raise ConfigError(f"{trainer.where}: {trainer.name} is {library}, not of TRL, and is given no GRPOConfig: "
                              "state its settings in gxpo's keys, see docs/migrate.md")  # fmt: skip
        self._config(config, notes, trainer)
        self._trainer(trainer)
        self._unknown_adapter(tree, trainer)
        self.source.is_guarded = not _trains_on_import(tree)

    def _say(self, where: str, problem: str) -> None:
        if (where, problem) not in self.source.open and problem:
            self.source.open.append((where, problem))

    def _follow_uncalled(self, tree: ast.Module) -> None:
        """Follow functions that nothing in the file calls, where no trainer was met: their arguments are not known."""
        for pattern in (TRAINERS, CONFIGS):
            kind = "trainer" if pattern is TRAINERS else ""
            if any(k.startswith(kind or ("trainer", "config")) for k in self.walk.state["records"]):
                continue
            self.walk.is_guess = True
            for top in tree.body:
                for node in [top, *(top.body if isinstance(top, ast.ClassDef) else ())]:
                    is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                    is_trainer = isinstance(top, ast.ClassDef) and TRAINERS.search(top.name) and top.bases
                    if is_function and node not in self.walk.entered and _calls_one(node, pattern) and not is_trainer:
                        self._follow(top, node)
            self.walk.is_guess = False

    def _follow(self, top: ast.stmt, node: Any) -> None:
        frame = self.walk.state["frames"][0]
        if top is node and isinstance(function := frame.get(node.name), Function):
            self.walk.called(function, [], {}, node)
        elif isinstance(top, ast.ClassDef) and isinstance(cls := frame.get(top.name), Thing):
            instance = self.walk.instance(
                cls, [], {}, ast.Call(ast.Name(top.name), [], [], lineno=node.lineno, col_offset=0)
            )
            if isinstance(function := cls.fields.get(node.name), Function) and node not in self.walk.entered:
                self.walk.called(function, [instance], {}, node)

    def _other_library(self, trainer: Thing) -> str:
        """Return what a trainer is, if neither it nor a class that it derives from can be TRL's; else ""."""
        if isinstance(trainer.of, Import):
            return f"of {library}" if (library := elsewhere([trainer.of])) else ""
        bases = self.walk.bases(trainer.of) if isinstance(trainer.of, Thing) else [trainer.of]
        return "a class of this file" if all(isinstance(b, Thing) for b in bases) else ""

    def _unknown_adapter(self, tree: ast.Module, trainer: Thing | None) -> None:
        """Leave the adapter open where it is put on a model in a place that is not known."""
        model = without_notes(trainer.fields.get("model"))[0] if trainer is not None else None
        is_mentioned = any(
            re.search(r"get_peft_model|PeftModel|LoraConfig", getattr(n, "id", getattr(n, "attr", "")))
            for n in ast.walk(tree) if isinstance(n, (ast.Name, ast.Attribute))
        )  # fmt: skip
        if isinstance(model, Unknown) and trainer is not None and is_mentioned and "peft" not in self.source.parts:
            where = trainer.places.get("model", trainer.where)
            self.source.parts["peft"] = Value(OPEN, where, "whether the model has an adapter is not known")

    # ------------------------------------------------------------ results
    def _value(self, value: Any, where: str, prefix: str = "") -> Value:
        """Return a value with its place; OPEN, with the reason, if it is not known."""
        plain_value, notes = plain(value)
        if isinstance(plain_value, Unknown):
            place = "" if plain_value.where in ("", where) else f" ({plain_value.where})"
            return Value(OPEN, where, f"{prefix}{plain_value.reason}{place}")
        return Value(plain_value, where, ", ".join(dict.fromkeys(notes)))

    def _config(self, config: Any, notes: Sequence[str], trainer: Thing | None) -> None:
        """Take over the fields of the configuration."""
        source = self.source
        if config is None:
            self.source.kind = "RLOO" if trainer is not None and "RLOO" in trainer.name else "GRPO"
            return
        if not isinstance(config, Thing):
            place = trainer.places.get("args", trainer.where) if trainer is not None else ""
            unknown = config if isinstance(config, Unknown) else Unknown("args is made by code of another file", place)
            source.extra_fields = f"{place}: {unknown.reason}"
            attributes = self.walk.state["attributes"].get(f"{unknown.where}: {unknown.reason}")
            for name, value in attributes.fields.items() if isinstance(attributes, Thing) else ():
                source.settings[name] = self._value(value, attributes.places[name])
            return
        bases = (
            [config.name, *(getattr(b, "name", "") for b in self.walk.bases(config.of) if config.of is not None)]
            if isinstance(config.of, Thing)
            else [config.name]
        )
        source.kind = "RLOO" if any("RLOO" in name for name in bases) else "GRPO"
        source.is_parsed = bool(config.fields.get("parsed "))
        if isinstance(config.extra_fields, Unknown):
            source.extra_fields = f"{config.extra_fields.where}: {config.extra_fields.reason}"
        for name, value in config.fields.items():
            where = config.places.get(name, config.where)
            inner, why = without_notes(value)
            if inner is ABSENT:
                self._say(where, f"{name} is set with {', '.join(why)}")
            elif name == "**":
                source.extra_fields = f"{where}: {getattr(inner, 'reason', 'keys are made when the script runs')}"
            elif not name.endswith(" ") and isinstance(name, str):
                source.settings[name] = self._value(
                    Noted(value, tuple(notes)) if notes and not isinstance(value, (Unknown, Noted)) else value, where
                )
        for where, note in config.notes:
            self._say(where, note)

    def _trainer(self, trainer: Thing | None) -> None:
        """Take over the arguments of the trainer."""
        parts = self.source.parts
        if trainer is None:
            parts["model"] = parts["dataset"] = Value(OPEN, "", "no trainer in the file names one")
            return
        for where, note in trainer.notes:
            self._say(where, note)
        if trainer.extra_fields is not None:
            self._say(trainer.extra_fields.where, f"{trainer.name}: further arguments: {trainer.extra_fields.reason}")
        self._model(trainer)
        self._dataset(trainer)
        self._rewards(trainer)
        peft = trainer.fields.get("peft_config")
        if peft is not None:
            self._peft(peft, trainer.places.get("peft_config", trainer.where))
        if "method" in trainer.fields:  # of gxpo.adapters.trl
            parts["method"] = self._value(trainer.fields["method"], trainer.places["method"])
        for name, value in trainer.fields.items():
            place, (inner, why) = trainer.places.get(name, trainer.where), without_notes(value)
            if (
                inner is not None
                and inner is not ABSENT
                and (problem := ARGUMENTS.get(name, "not an argument of TRL's"))
            ):
                with_option = f" (set with {', '.join(why)})" if why else ""
                self._say(place, f"{trainer.name}({name}=...): {problem}{with_option}")

    def _model(self, trainer: Thing) -> None:
        model, notes = without_notes(trainer.fields.get("model", trainer.fields.get("policy", ABSENT)))
        where = trainer.places.get("model", trainer.where)
        parts = self.source.parts
        if model is ABSENT or model is None:
            parts["model"] = Value(
                OPEN, where, f"{', '.join(notes)} names it" if notes else "the trainer is given none"
            )
        elif isinstance(model, Thing) and model.kind == "model":
            parts["model"] = self._text(self._value(model.fields["source"], model.places["source"]), "model")
            for name, value in model.fields.items():
                if name in ("torch_dtype", "dtype", "load_in_4bit", "load_in_8bit"):
                    parts[name] = self._value(value, model.places.get(name, model.where))
                elif name == "peft":
                    self._peft(value, value.where if isinstance(value, Thing) else model.where)
                elif name not in MODEL_ARGUMENTS and without_notes(value)[0] not in (None, False):
                    self._say(
                        model.places.get(name, model.where),
                        f"from_pretrained({name}=...): {LOADING.get(name, 'no counterpart')}",
                    )
        else:
            value = trainer.fields.get("model", model)
            parts["model"] = self._text(self._value(value, where), "model")

    def _text(self, value: Value, what: str) -> Value:
        """Return a value that has to be a text: OPEN if it is another."""
        if value.is_open or (isinstance(value.value, str) and value.value):
            return value
        reason = f"set with {value.note}" if value.note else f"{value.value!r} is no name"
        return Value(OPEN, value.where, reason)

    def _dataset(self, trainer: Thing) -> None:
        parts = self.source.parts
        data, where = trainer.fields.get("train_dataset"), trainer.places.get("train_dataset", trainer.where)
        inner, _ = without_notes(data)
        if isinstance(inner, Thing) and inner.kind == "dataset" and inner.name == "load_dataset":
            for theirs, ours in (("path", "dataset"), ("name", "dataset_config"), ("split", "split"),
                                 ("data_files", "data_files"), ("revision", "revision"),
                                 ("data_dir", "data_dir")):  # fmt: skip
                if theirs in inner.fields:
                    value = self._value(inner.fields[theirs], inner.places.get(theirs, inner.where))
                    if value.value is not None:
                        parts[ours] = value
            parts["dataset"] = self._text(parts.get("dataset", Value(None, inner.where)), "data set")
            for place, name in inner.notes:
                if STEPS.get(name) == "":
                    continue
                self._say(
                    place, f"data: {STEPS.get(name, f'.{name}() is not carried over: prepare the data in a file')}"
                )
            return
        if isinstance(inner, Unknown):
            parts["dataset"] = Value(OPEN, where, inner.reason + (f" ({inner.where})" if inner.where != where else ""))
        elif inner is None:
            parts["dataset"] = Value(OPEN, where, "the trainer is given no data")
        else:
            parts["dataset"] = Value(OPEN, where, "rows that are made in code: write prompts and answers to a .jsonl")

    def _peft(self, peft: Any, where: str) -> None:
        inner, notes = without_notes(peft)
        if inner is None:
            if notes:
                self._say(where, f"an adapter is set with {', '.join(notes)}")
            return
        if not isinstance(inner, Thing):
            reason = inner.reason if isinstance(inner, Unknown) else "it is made by code of another file"
            self.source.parts["peft"] = Value(OPEN, where, reason)
            return
        options = {k: self._value(v, inner.where) for k, v in inner.fields.items() if k in PEFT}
        self.source.parts["peft"] = Value(
            {k: v.value for k, v in options.items()}, inner.where,
            "; ".join(f"{k}: {v.note}" for k, v in options.items() if v.note),
        )  # fmt: skip

    def _rewards(self, trainer: Thing) -> None:
        value = trainer.fields.get("reward_funcs", ABSENT)
        where = trainer.places.get("reward_funcs", trainer.where)
        inner, _ = without_notes(value)
        if inner is ABSENT or inner is None:
            self.source.rewards.append(("open", Value(OPEN, where, "the trainer is given no reward")))
            return
        for reward in inner if isinstance(inner, (list, tuple)) else [inner]:
            self.source.rewards.append(self._reward(reward, where))

    def _reward(self, reward: Any, where: str) -> tuple[str, Value]:
        reward, notes = without_notes(reward)
        note = ", ".join(notes)
        if isinstance(reward, str):
            return ("model", Value(reward, where, note))
        if isinstance(reward, Function):
            name = getattr(reward.node, "name", "lambda")
            is_top = getattr(reward.node, "col_offset", 1) == 0 and name != "lambda"
            return (
                "function" if is_top else "other",
                Value(name if is_top else f"{name} (made within a function)", where, note),
            )
        if isinstance(reward, Import):
            return (
                "trl" if reward.path.startswith("trl.") else "other",
                Value(reward.name if reward.path.startswith("trl.") else reward.path, where, note),
            )
        if isinstance(reward, Unknown):
            return ("open", Value(OPEN, where, reward.reason))
        return ("other", Value(getattr(reward, "name", source_of(reward)), where, note))


# arguments of the trainer that are no settings; "" for those that are carried over elsewhere, or need no word
ARGUMENTS = {
    "model": "", "reward_funcs": "", "args": "", "train_dataset": "", "peft_config": "", "method": "", "**": "",
    "processing_class": "", "tokenizer": "", "config": "",
    "eval_dataset": "data of its own for evaluation: gxpo evaluates on held-out tasks of its task (eval.*)",
    "callbacks": "state it in gxpo's keys (trainer.callbacks)", "overrides": "state it in gxpo's keys",
    "success_at": "state it in gxpo's keys", "answers": "state it in gxpo's keys",
    "optimizers": "an optimiser or schedule of its own: gxpo steps with learner.optimiser and optim.*",
    "quantization_config": "gxpo trains adapters on float32 or bfloat16 weights, or over NF4: set learner.base=nf4",
    "tools": "an environment of gxpo", "rollout_func": "an environment of gxpo",
    "environment_factory": "an environment of gxpo",
    "reward_processing_classes": "tokenizers of reward models, which are judges in gxpo (teacher.models)",
    "ref_model": "gxpo's reference is the policy of the first step",
}  # fmt: skip
PEFT = ("r", "lora_alpha", "target_modules", "lora_dropout", "use_rslora", "use_dora", "modules_to_save",
        "target_parameters", "rank_pattern", "alpha_pattern", "bias", "init_lora_weights")  # fmt: skip
# arguments of from_pretrained that change where and how a model is held, and not what it computes
MODEL_ARGUMENTS = frozenset({
    "source", "model_name", "pretrained_model_name_or_path", "device_map", "attn_implementation", "max_seq_length",
    "fast_inference", "gpu_memory_utilization", "max_lora_rank", "use_cache", "low_cpu_mem_usage", "token", "cache_dir",
    "use_gradient_checkpointing", "local_files_only", "**", "unsloth_vllm_standby", "torch_dtype", "dtype",
})  # fmt: skip
LOADING = {
    "trust_remote_code": "gxpo runs no code of a model: it needs a type that transformers knows",
    "quantization_config": "gxpo trains adapters on float32 or bfloat16 weights, or over NF4: set learner.base=nf4",
    "revision": "a revision of the hub: download it and name its directory",
    "load_in_4bit": "gxpo trains adapters on float32 or bfloat16 weights, or over NF4: set learner.base=nf4",
    "load_in_8bit": "gxpo trains adapters on float32 or bfloat16 weights",
}
STEPS = {
    "map": "columns that map() makes: tasks.options.prompt and answer name those that are there, template and "
    "answer_after say the rest",
    "shuffle": "shuffle(): gxpo draws its tasks by seed",
    "rename_column": "rename_column(): tasks.options.prompt and answer name columns",
    "remove_columns": "", "with_format": "", "set_format": "",
}  # fmt: skip


def _calls_one(node: ast.AST, pattern: re.Pattern[str]) -> bool:
    """Return True if a syntax tree holds a call of a name that matches, or one with reward functions."""
    return any(
        isinstance(n, ast.Call)
        and (pattern.search(_last_name(n.func)) or any(k.arg == "reward_funcs" for k in n.keywords))
        for n in ast.walk(node)
    )


def _without_trainer(tree: ast.Module, where: Callable[[ast.AST], str]) -> str:
    """Say what there is in a file in which no trainer was met, and what to do."""
    nodes = list(ast.walk(tree))
    calls = [(n, _last_name(n.func)) for n in nodes if isinstance(n, ast.Call)]
    classes = [n for n in nodes if isinstance(n, ast.ClassDef)]
    for call, name in calls:
        if TRAINERS.search(name) or CONFIGS.search(name):
            return f"{where(call)}: {name}(...) is in code that is never called: call it at the top level of the file"
    for cls in classes:
        if TRAINERS.search(cls.name) or any(TRAINERS.search(_last_name(b)) for b in cls.bases):
            return (
                f"{where(cls)}: {cls.name} is a class of a trainer, which nothing makes: convert the script that does"
            )
    for call, name in calls:
        if any(k.arg == "reward_funcs" for k in call.keywords):
            return (
                f"{where(call)}: {name}(reward_funcs=...) is code of another file: convert the one that makes a trainer"
            )
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and "reward" in node.name:
            return f"there is a reward in it ({where(node)}: {node.name}) and no trainer: convert the script of that"
    return "there is neither a GRPOConfig nor a GRPOTrainer in it"


def _trains_on_import(tree: ast.Module) -> bool:
    """Return True if a trainer is made at the top level, so that importing the file for its rewards would train."""
    return any(
        isinstance(n, ast.Call) and TRAINERS.search(_last_name(n.func))
        for top in tree.body
        if not isinstance(top, (ast.FunctionDef, ast.ClassDef)) and not _is_main(top)
        for n in ast.walk(top)
    )


def _last_name(node: ast.expr) -> str:
    """The last name of a dotted one."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and bool(re.search(r"__name__.*__main__", ast.unparse(node.test)))
