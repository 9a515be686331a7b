"""Meaning of the calls in a training script: configurations, trainers, models and data sets."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gxpo.adapters.script.expressions import source_of
from gxpo.adapters.script.parsers import CONFIGS, SCRIPT_CLASSES, Parsers
from gxpo.adapters.script.values import (
    ABSENT,
    CHANGES,
    FUNCTIONS,
    Function,
    Import,
    Thing,
    Unknown,
    compute,
    method_of,
    with_notes,
    without_notes,
)
from gxpo.adapters.script.walk import Exit
from gxpo.adapters.trl_config import DEFAULTS

TRAINERS = re.compile(r"(GRPO|RLOO)\w*Trainer\w*$")
# arguments of GRPOTrainer by position
TRAINER = ("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class",
           "reward_processing_classes", "callbacks", "optimizers", "quantization_config", "peft_config", "tools",
           "rollout_func", "environment_factory")  # fmt: skip
# functions that neither change their arguments nor matter
HARMLESS = re.compile(
    r"(print|display|len|type|id|hash|isinstance|str|repr|vars|dir|format|logg\w*\.\w+|log\.\w+|.*\.(info|warning|debug|"
    r"warn|print|init|watch|config\.update|log)|os\.makedirs|time\.\w+|set_seed|.*set_seed|torch\.\w+.*|"
    r"get_last_checkpoint|.*exists|.*isdir|init_wandb_training|.*\.save_pretrained|.*\.dump|.*\.append|.*\.add)$"
)
# `model = prepare(model)`: the same model
SAME_MODEL = ("prepare_model_for_kbit_training", "compile", "to", "cuda", "cpu", "eval", "train", "half", "bfloat16")


class Calls(Parsers):
    """A walk that knows what calls mean in TRL, transformers, datasets, peft, unsloth and argparse."""

    # ------------------------------------------------------------ calls
    def call(self, node: ast.Call) -> Any:
        """Return what a call gives."""
        self.count()
        receiver = self.value(node.func.value) if isinstance(node.func, ast.Attribute) else None
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        inner, notes = without_notes(receiver)
        if name and isinstance(inner, (str, dict, list, int)) and not isinstance(inner, bool):
            return self.method(receiver, name, node)
        if name and isinstance(inner, Thing) and (result := self.thing_call(inner, name, node)) is not ABSENT:
            return with_notes(result, notes)
        target = self.attribute(receiver, name, node.func) if name else self.value(node.func)
        arguments, keywords = self.arguments(node)
        return self.apply(without_notes(target)[0], arguments, keywords, node)

    def arguments(self, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a call: those by position, and those by name ("**": of an unknown mapping)."""
        values: list[Any] = []
        for argument in node.args:
            value = self.value(argument)
            inner, notes = without_notes(value)
            if isinstance(argument, ast.Starred) and isinstance(inner, (list, tuple)):
                values += [with_notes(v, notes) for v in inner]
            else:
                values.append(value)
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
                continue
            inner, notes = without_notes(value)
            if isinstance(inner, dict):
                keywords |= {str(k): with_notes(v, notes) for k, v in inner.items()}
            elif isinstance(inner, Thing) and inner.kind in ("namespace", "instance"):
                keywords |= {k: v for k, v in inner.fields.items()}
            else:
                keywords["**"] = inner if isinstance(inner, Unknown) else self.unknown(keyword.value)
        return values, keywords

    def place_of(self, node: ast.Call, name: str) -> str:
        keyword = next((k for k in node.keywords if k.arg == name), None)
        keyword = keyword or next((k for k in node.keywords if k.arg is None), None)
        return self.where(keyword.value if keyword is not None else node)

    def apply(self, target: Any, values: list[Any], keywords: dict[str, Any], node: ast.Call) -> Any:
        """Return what a call of `target` gives."""
        if isinstance(target, Function):
            return self.called(target, values, keywords, node)
        if isinstance(target, Thing) and target.kind == "class":
            return self.instance(target, values, keywords, node)
        if isinstance(target, Thing) and target.kind == "partial":
            more = target.fields
            return self.apply(more["function"], [*more["values"], *values], {**more["named"], **keywords}, node)
        if isinstance(target, Thing) and "__call__" in (target.of.fields if isinstance(target.of, Thing) else {}):
            return self.called(target.of.fields["__call__"], [target, *values], keywords, node)
        path = target.path if isinstance(target, Import) else ""
        name = path.rpartition(".")[2] or source_of(node.func).rpartition(".")[2]
        # a trainer is known by its name or, of whatever class, by its reward functions
        if (TRAINERS.search(name) and name != "PatchFastRL") or ("reward_funcs" in keywords and "args" in keywords):
            return self.trainer(target, name, values, keywords, node)
        if CONFIGS.search(name):
            return self.config(target, name, values, keywords, node)
        return self.library(path or source_of(node.func), name, values, keywords, node, target)

    def library(
        self, path: str, name: str, values: list[Any], keywords: dict[str, Any], node: ast.Call, target: Any
    ) -> Any:
        """Return what a call of another module's function gives."""
        first = without_notes(values[0])[0] if values else None
        if path in FUNCTIONS:
            return (
                compute(lambda *x: FUNCTIONS[path](*x), values, self.unknown(node))
                if not keywords
                else self.unknown(node)
            )
        match name:
            case "exit" | "quit" | "_exit" if path in ("exit", "quit", "sys.exit", "os._exit"):
                return Exit()
            case "get" | "getenv" if path in ("os.environ.get", "os.getenv"):
                return self.variable(values, keywords, node)
            case "dict" if path == "dict" and (not values or isinstance(first, dict)):
                return {**(first or {}), **keywords}
            case "getattr" if path == "getattr" and len(values) > 1:
                member = self.attribute(values[0], str(without_notes(values[1])[0]), node)
                missing = (
                    isinstance(first, Thing) and self.field(first, str(without_notes(values[1])[0]), node) is ABSENT
                )
                return values[2] if missing and len(values) > 2 and getattr(first, "kind", "") != "config" else member
            case "setattr" if path == "setattr" and len(values) == 3 and isinstance(first, Thing):
                field = without_notes(values[1])[0]
                if isinstance(field, str):
                    first.fields[field], first.places[field] = values[2], self.where(node)
                else:
                    first.extra_fields = self.unknown(node)
                return None
            case "run" if path == "asyncio.run" and values:
                return values[0]
            case "import_module" if path == "importlib.import_module" and isinstance(first, str):
                return Import(first)
            case "from_pretrained" if "." in path:
                return self.pretrained(path, values, keywords, node)
            case "get_peft_model" if values and isinstance(first, Thing):
                lora = keywords.get("peft_config", values[1] if len(values) > 1 else None)
                plain_lora = Thing("lora", "LoraConfig", self.where(node), keywords)
                first.fields["peft"] = plain_lora if lora is None else lora
                return first
            case "setup_chat_format" if values:
                return (values[0], self.unknown(node))
            case "load_dataset" | "load_from_disk":
                fields = {**dict(zip(("path", "name"), values, strict=False)), **keywords}
                places = {k: self.place_of(node, k) for k in fields}
                if isinstance(splits := without_notes(fields.get("split"))[0], list):  # a data set for each
                    return [Thing("dataset", name, self.where(node), {**fields, "split": s}, places) for s in splits]
                return Thing("dataset", name, self.where(node), fields, places)
            case "LoraConfig":
                return Thing("lora", name, self.where(node), keywords, extra_fields=keywords.get("**"))
            case "get_peft_config" if values and isinstance(first, Thing):
                return self.peft_of(first)
            case "ArgumentParser":
                return Thing("parser", name, self.where(node), {})
            case "HfArgumentParser" | "TrlParser" if values or "dataclass_types" in keywords:
                classes = without_notes(keywords.get("dataclass_types", values[0] if values else ()))[0]
                classes = list(classes) if isinstance(classes, (list, tuple)) else [classes]
                return Thing("parser", name, self.where(node), {"classes ": classes})
            case "partial" if path in ("functools.partial", "partial"):
                return Thing(
                    "partial", name, self.where(node), {"function": first, "values": values[1:], "named": keywords}
                )
            case "replace" if path in ("dataclasses.replace", "replace", "copy.replace") and isinstance(first, Thing):
                new = copy.deepcopy(first)
                new.fields |= keywords
                new.places |= {k: self.place_of(node, k) for k in keywords}
                return new
            case "deepcopy" | "copy" if path.startswith("copy.") and values:
                return copy.deepcopy(values[0])
            case "asdict" | "vars" if isinstance(first, Thing) and first.kind in ("instance", "namespace"):
                return {k: v for k, v in first.fields.items()}
            case "SimpleNamespace" | "EasyDict" | "Namespace" | "DotDict" | "AttrDict":
                return Thing(
                    "namespace", name, self.where(node), {**(first if isinstance(first, dict) else {}), **keywords}
                )
            case "field" if path in ("dataclasses.field", "field"):
                factory = keywords.get("default_factory")
                if factory is not None:
                    return self.apply(without_notes(factory)[0], [], {}, node)
                return keywords.get("default", self.unknown(node, "it has no default"))
            case "ModelConfig" | "ScriptArguments" | "GRPOScriptArguments" | "DatasetMixtureConfig":
                return Thing("namespace", name, self.where(node), {**SCRIPT_CLASSES[name], **keywords})
            case _ if name in SAME_MODEL and isinstance(first, Thing) and first.kind == "model":
                return first
            case "Accelerator" | "PartialState":
                return self.unknown(node)
        self.warn(path, values, keywords, node)
        return self.unknown(node)

    def warn(self, path: str, values: Sequence[Any], keywords: Mapping[str, Any], node: ast.Call) -> None:
        """Say of a configuration that code of another file is given it, and may change it."""
        if HARMLESS.match(path):
            return
        for value in (*values, *keywords.values()):
            thing = without_notes(value)[0]
            if isinstance(thing, Thing) and thing.kind == "config":
                note = f"{source_of(node)}: code of another file, which may change the configuration"
                thing.notes.append((self.where(node), note))

    def variable(self, values: Sequence[Any], keywords: Mapping[str, Any], node: ast.Call) -> Any:
        """Return an environment variable: what the script sets it to, else its default with a note."""
        name = without_notes(values[0])[0] if values else keywords.get("key")
        default = values[1] if len(values) > 1 else keywords.get("default")
        if not isinstance(name, str):
            return self.unknown(node)
        return self.state["environ"].get(name, with_notes(default, [f"environment variable {name}"]))

    def item(self, owner: Any, index: ast.expr, node: ast.AST) -> Any:
        if isinstance(owner, Import) and owner.path == "os.environ":
            key = without_notes(self.value(index))[0]
            unknown = Unknown(f"environment variable {key} is set by the caller", self.where(node))
            return self.state["environ"].get(key, unknown) if isinstance(key, str) else unknown
        if isinstance(owner, Thing) and owner.kind == "dataset":
            split = without_notes(self.value(index))[0]
            if isinstance(split, str):
                new = copy.copy(owner)
                new.fields, new.places = dict(owner.fields), dict(owner.places)
                if "cut" not in new.fields:
                    new.fields["split"], new.places["split"] = split, self.where(node)
                else:
                    new.fields["part"] = split
                return new
        if isinstance(owner, Thing) and owner.kind in ("namespace", "instance"):
            key = without_notes(self.value(index))[0]
            return owner.fields.get(key, self.unknown(node)) if isinstance(key, str) else self.unknown(node)
        return super().item(owner, index, node)

    def attribute(self, owner: Any, name: str, node: ast.AST) -> Any:
        inner, _ = without_notes(owner)
        if isinstance(inner, Import) and inner.path == "torch" and name in ("bfloat16", "float16", "float32", "half"):
            return name
        if isinstance(inner, Thing) and inner.kind == "config" and name not in inner.fields and name in DEFAULTS:
            if inner.extra_fields is not None or not isinstance(inner.of, (Import, type(None))):
                return inner.extra_fields or super().attribute(owner, name, node)
            return with_notes(DEFAULTS[name], [f"--{name}"] if inner.fields.get("parsed ") else [])
        if isinstance(inner, Thing) and inner.kind == "trainer" and name in inner.fields:
            return inner.fields[name]
        return super().attribute(owner, name, node)

    def method(self, receiver: Any, name: str, node: ast.Call) -> Any:
        """Return what a method of a constant, list or mapping gives, and change the list or mapping as it does."""
        inner, _ = without_notes(receiver)
        values, keywords = self.arguments(node)
        kind = dict if isinstance(inner, dict) else list if isinstance(inner, list) else None
        if kind is not None and name in CHANGES[kind]:
            if name == "update" and isinstance(inner, dict):
                for extra in values:
                    mapping, notes = without_notes(extra)
                    inner |= (
                        {k: with_notes(v, notes) for k, v in mapping.items()}
                        if isinstance(mapping, dict)
                        else {"**": self.unknown(node)}
                    )
                inner.update(keywords)
                return None
            positions = (
                values
                if isinstance(inner, dict)
                else [without_notes(values[0])[0], *values[1:]]
                if name == "insert"
                else values
            )
            try:
                return getattr(inner, name)(*positions)
            except Exception:  # of a list that is not what it seems
                return self.unknown(node)
        if isinstance(inner, dict) and name == "get" and values:
            key = without_notes(values[0])[0]
            if isinstance(key, (Unknown, Thing, Import, dict, list)):
                return self.unknown(node)
            if "**" in inner and key not in inner:
                return inner["**"]
            return inner.get(key, values[1] if len(values) > 1 else None)
        function = method_of(inner, name)
        if function is None:
            return self.unknown(node)
        return compute(lambda *x: function(*x[: len(values)], **dict(zip(keywords, x[len(values) :], strict=True))),
                        [*values, *keywords.values()], self.unknown(node))  # fmt: skip

    # ------------------------------------------------------------ classes of the script
    def instance(self, cls: Thing, values: list[Any], keywords: dict[str, Any], node: ast.Call) -> Any:
        """Return an instance of a class of the script; a configuration or a trainer where it is derived from one."""
        bases = self.bases(cls)
        imported = [b for b in bases if isinstance(b, (Import, Unknown))]
        names = [b.name for b in bases if isinstance(b, (Thing, Import))]
        is_trainer = any(TRAINERS.search(n) for n in names) and not makes_trainer(cls, bases)
        if is_trainer or ("reward_funcs" in keywords and "args" in keywords):
            return self.trainer(cls, cls.name, values, keywords, node)
        if any(CONFIGS.search(b.name) for b in imported if isinstance(b, Import)):
            return self.config(cls, cls.name, values, keywords, node)
        thing = Thing("instance", cls.name, self.where(node), of=cls)
        init = next((b.fields["__init__"] for b in bases if isinstance(b, Thing) and "__init__" in b.fields), None)
        if isinstance(init, Function):
            self.called(init, [thing, *values], keywords, node)
            return thing
        # a dataclass: its fields in order, those of bases first
        fields = [n for b in reversed(bases) if isinstance(b, Thing) for n in b.fields.get("annotated ", ())]
        thing.fields = {**dict(zip(fields, values, strict=False)), **keywords}
        for field in fields:
            if field not in thing.fields:
                member = self.field(thing, field, node)
                thing.fields[field] = self.unknown(node) if member is ABSENT else copy.deepcopy(member)
        if imported and not all(
            getattr(b, "name", "") in ("object", "ABC", "NamedTuple", "BaseModel") for b in imported
        ):
            for name, defaults in SCRIPT_CLASSES.items():
                if name in names:
                    thing.fields = {**defaults, **thing.fields}
        post = next(
            (b.fields["__post_init__"] for b in bases if isinstance(b, Thing) and "__post_init__" in b.fields), None
        )
        if isinstance(post, Function):
            self.called(post, [thing], {}, node)
        return thing

    def config(self, cls: Any, name: str, values: list[Any], keywords: dict[str, Any], node: ast.AST) -> Thing:
        """Return a configuration: its arguments, after the defaults of a class of the script."""
        thing = Thing("config", name, self.where(node), of=cls if isinstance(cls, (Import, Thing)) else None)
        if isinstance(cls, Thing):
            for base in reversed(self.bases(cls)):
                if isinstance(base, Thing):
                    own_fields = {
                        k: v for k, v in base.fields.items() if not k.endswith(" ") and not isinstance(v, Function)
                    }
                    thing.fields |= copy.deepcopy(own_fields)
                    thing.places |= {k: base.places.get(k, base.where) for k in own_fields}
                    if "__post_init__" in base.fields or "__init__" in base.fields:
                        note = f"{base.name} sets fields in its own code (__init__ or __post_init__)"
                        thing.notes.append((base.where, note))
        thing.extra_fields = keywords.pop("**", None)
        thing.fields |= {**dict(zip(("output_dir",), values, strict=False)), **keywords}
        if isinstance(node, ast.Call):
            thing.places |= {k: self.place_of(node, k) for k in keywords}
            if values:
                thing.places["output_dir"] = self.where(node)
        library = elsewhere(self.bases(cls) if isinstance(cls, Thing) else [cls])
        if library and thing.extra_fields is None:
            thing.extra_fields = Unknown(
                f"{name} is of {library}: its defaults may be other than TRL's", self.where(node)
            )
        self.record(thing, node)
        return thing

    def trainer(self, cls: Any, name: str, values: list[Any], keywords: dict[str, Any], node: ast.Call) -> Thing:
        """Return a trainer, and record it."""
        fields = {**dict(zip(TRAINER, values, strict=False)), **keywords}
        thing = Thing("trainer", name, self.where(node), fields, extra_fields=keywords.get("**"), of=cls)
        thing.places = {k: self.place_of(node, k) for k in fields}
        thing.notes = _trainer_notes(cls, name, self.bases(cls) if isinstance(cls, Thing) else [cls], self.where(node))
        self.record(thing, node)
        return thing

    def record(self, thing: Thing, node: ast.AST) -> None:
        """Record a configuration or trainer in the order of the calls; a call that is made again is another one."""
        key = f"{thing.kind} {getattr(node, 'lineno', 0):06d} {getattr(node, 'col_offset', 0)}"
        records = self.state["records"]
        records[key if key not in records else f"{key} {thing.number}"] = thing

    # ------------------------------------------------------------ methods of objects
    def thing_call(self, thing: Thing, name: str, node: ast.Call) -> Any:
        """Return what a method of an object gives; ABSENT for a method that has no meaning here."""
        member = self.field(thing, name, node) if thing.kind in ("class", "instance") else ABSENT
        if isinstance(member, Function):
            values, keywords = self.arguments(node)
            bound = [thing] if thing.kind == "instance" and member.kind != "staticmethod" else []
            bound = [thing if thing.kind == "class" else thing.of] if member.kind == "classmethod" else bound
            return self.called(member, [*bound, *values], keywords, node)
        if member is not ABSENT:
            return self.apply(without_notes(member)[0], *self.arguments(node), node)
        match thing.kind:
            case "dataset":
                values, keywords = self.arguments(node)
                new = copy.copy(thing)
                new.fields, new.places = dict(thing.fields), dict(thing.places)
                new.notes = [*thing.notes, (self.where(node), name)]
                if name == "train_test_split":
                    new.fields["cut"] = True
                return new
            case "model" if name in SAME_MODEL:
                return thing
            case "parser":
                return self.parser_call(thing, name, node)
            case "trainer":
                if name == "train":
                    self.state["records"].setdefault("trained", thing)
                self.arguments(node)
                if name == "add_callback":
                    thing.notes.append((self.where(node), f"{source_of(node)}: a callback of gxpo, trainer.callbacks"))
                return self.unknown(node)
            case "config" if name in ("to_dict", "__dict__"):
                return self.unknown(node)
        return ABSENT

    def pretrained(self, path: str, values: list[Any], keywords: dict[str, Any], node: ast.Call) -> Any:
        """Return what `from_pretrained` gives: a model, with its tokenizer where it is unsloth's."""
        owner = path.split(".")[-2]
        if "Model" not in owner or owner == "PeftModel":
            return self.unknown(node)
        source = keywords.get(
            "model_name", keywords.get("pretrained_model_name_or_path", values[0] if values else self.unknown(node))
        )
        keyword = next((k for k in ("model_name", "pretrained_model_name_or_path") if k in keywords), "")
        model = Thing("model", owner, self.where(node), {"source": source, **keywords})
        model.places = {**{k: self.place_of(node, k) for k in keywords}, "source": self.place_of(node, keyword)}
        if node.args and not keyword:
            model.places["source"] = self.where(node.args[0])
        return (model, self.unknown(node)) if owner.startswith("Fast") else model

    def peft_of(self, thing: Thing) -> Any:
        """Return the adapter that TRL's `get_peft_config(model_args)` makes; None without use_peft."""
        use, notes = without_notes(self.field(thing, "use_peft", ast.Constant(0)))
        if not isinstance(use, bool):
            return Unknown("use_peft is not known", thing.where)
        if not use:
            return with_notes(None, notes)
        names = {"lora_r": "r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout",
                 "lora_target_modules": "target_modules", "use_dora": "use_dora",
                 "use_rslora": "use_rslora"}  # fmt: skip
        return Thing(
            "lora", "LoraConfig", thing.where, {v: self.field(thing, k, ast.Constant(0)) for k, v in names.items()}
        )


def makes_trainer(cls: Thing, bases: Sequence[Any]) -> bool:
    """Return True if a class of the script derives from none of another file, and calls a trainer or configuration."""
    functions = [f.node for b in bases if isinstance(b, Thing) for f in b.fields.values() if isinstance(f, Function)]
    calls = [n for f in functions for n in ast.walk(f) if isinstance(n, ast.Call)]
    names = [source_of(call.func).rpartition(".")[2] for call in calls]
    return all(isinstance(b, Thing) for b in bases) and any(TRAINERS.search(n) or CONFIGS.search(n) for n in names)


def elsewhere(bases: Sequence[Any]) -> str:
    """Return the module of the class that a script derives from or uses, if it is not TRL's own."""
    for base in bases:
        if isinstance(base, Unknown):
            return base.reason
        is_import = isinstance(base, Import) and "." in base.path
        if is_import and not re.match(r"(trl\.(?!experimental)|gxpo\.|unsloth\.|abc\.|typing\.)", base.path):
            return base.path.rpartition(".")[0] or base.path
    return ""


def _trainer_notes(cls: Any, name: str, bases: Sequence[Any], where: str) -> list[tuple[str, str]]:
    """Say of a trainer of the script, or of another module, that its loss may be another."""
    notes = []
    for base in bases:
        if isinstance(base, Thing):
            methods = [k for k, v in base.fields.items() if isinstance(v, Function)]
            names = f" ({', '.join(methods)})" if methods else ""
            notes.append(
                (
                    base.where,
                    f"{base.name} is a trainer of its own, with methods of its own{names}: its loss may be another",
                )
            )
    if isinstance(cls, Unknown):
        notes.append((where, f"which trainer {name} is, is not known ({cls.reason}): its loss may be another"))
    elif library := elsewhere(bases):
        notes.append((where, f"{name} is of {library}, not of TRL: its loss may be another"))
    return notes
