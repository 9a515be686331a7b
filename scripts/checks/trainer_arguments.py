"""Run a script of TRL in a process of its own, where every library is a stub, and return what it gives its trainer."""

from __future__ import annotations

import argparse
import ast
import builtins
import dataclasses
import glob
import importlib.abc
import importlib.machinery
import io
import json
import logging
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stubs_of_libraries import TEXT, Base, Data, Lora, Model, Stub, fill_arguments, load_dataset

UNKNOWN = "<unknown>"


def config_class(name: str, changes: dict[str, Any]) -> type:
    """Return TRL's configuration, with the fields whose defaults are known."""
    from gxpo.adapters.trl_config import DEFAULTS

    fields = {**DEFAULTS, "max_prompt_length": 512, **changes}
    kind = dataclasses.make_dataclass(
        name, [(k, Any, dataclasses.field(default=v)) for k, v in fields.items()], bases=(Base,)
    )
    init = kind.__init__

    def set_fields(self: Any, *values: Any, **keywords: Any) -> None:
        known_fields = {k: v for k, v in keywords.items() if k in fields}
        init(self, **({"output_dir": values[0]} if values else {}), **known_fields)
        for key, value in keywords.items():
            setattr(self, key, value)

    kind.__init__ = set_fields
    kind.TRL = kind
    return kind


def _fields_class(cls: type) -> Any:
    """Return the class of TRL's fields that a configuration's class is or derives from, if it does."""
    return next((vars(c)["TRL"] for c in cls.__mro__ if "TRL" in vars(c)), None)


class Trainer(Base):
    """A trainer, which tells what it was given and ends the run."""

    def __init__(self, *values: Any, **keywords: Any) -> None:
        names = ("model", "reward_funcs", "args", "train_dataset")
        self.arguments = {**dict(zip(names, values, strict=False)), **keywords}
        self.args = self.arguments.get("args", self.arguments.get("config", Stub()))
        Trainer.latest = self

    def train(self, *values: Any, **keywords: Any) -> None:
        tell(self.arguments)
        raise SystemExit(0)

    latest: Any = None


def tell(arguments: dict[str, Any]) -> None:
    """Write what a trainer was given as fields of `trl grpo`."""
    args, model, data = (
        arguments.get("args", arguments.get("config")),
        arguments.get("model", arguments.get("policy")),
        arguments.get("train_dataset"),
    )
    fields = {k: v for k, v in vars(args).items() if not k.startswith("_")} if args is not None else {}
    defaults = {f.name: f.default for f in dataclasses.fields(kind)} if (kind := _fields_class(type(args))) else {}
    fields = {
        k: v for k, v in fields.items() if not (k in defaults and type(v) is type(defaults[k]) and v == defaults[k])
    }
    fields.pop("output_dir", None)
    fields["model_name_or_path"] = model.source if isinstance(model, Model) else model
    lora = arguments.get("peft_config") or (vars(model).get("lora") if isinstance(model, Model) else None)
    if isinstance(lora, Lora):
        lora_fields = {k: v for k, v in vars(lora).items() if k in ("r", "lora_alpha", "target_modules")}
        fields |= {"use_peft": True, "lora_r": 8, "lora_alpha": 8}
        fields |= {f"lora_{k.removeprefix('lora_')}": v for k, v in lora_fields.items()}
    elif lora is not None:
        fields["use_peft"] = Stub()
    if isinstance(model, Model) and isinstance(model.dtype, str):
        fields["torch_dtype"] = model.dtype
    if isinstance(data, Data):
        fields |= {"dataset_name": data.path, "dataset_config": data.name, "dataset_train_split": data.split}
        if data.data_files is not None:
            fields["dataset_name"] = Stub()
    else:
        fields["dataset_name"] = Stub()
    fields["is_rloo"] = "RLOO" in type(args).__name__ or any("RLOO" in c.__name__ for c in type(args).__mro__)
    with OPEN_FILE(os.environ["TOLD"], "w") as file:
        file.write(json.dumps({k: plain(v) for k, v in fields.items()}))


def plain(value: Any, depth: int = 0) -> Any:
    if type(value) is Stub:
        return UNKNOWN
    if isinstance(value, (bool, int, float, type(None))):
        return value
    if isinstance(value, os.PathLike):
        return str(value)
    if isinstance(value, str):
        return UNKNOWN if "<--" in value or TEXT in value else value
    if depth < 8 and isinstance(value, dict):
        return {str(k): plain(v, depth + 1) for k, v in value.items()}
    if depth < 8 and isinstance(value, (list, tuple)):
        return [plain(v, depth + 1) for v in value]
    return UNKNOWN


def trl_class(name: str) -> Any:
    from gxpo.adapters.script.calls import TRAINERS
    from gxpo.adapters.script.parsers import CONFIGS, SCRIPT_CLASSES

    if re.search(r"Trainer(?!.*(Config|Callback|State|Arguments))", name) and TRAINERS.search(name):
        return type(name, (Trainer,), {})
    if CONFIGS.search(name):
        return config_class(name, {"num_generations": 2, "beta": 0.05} if "RLOO" in name else {})
    if name in SCRIPT_CLASSES:
        fields = [
            (k, Any, dataclasses.field(default_factory=list) if v == [] else dataclasses.field(default=v))
            for k, v in SCRIPT_CLASSES[name].items()
        ]
        return dataclasses.make_dataclass(name, fields, bases=(Base,))
    if name in ("TrlParser", "HfArgumentParser"):
        return Parser
    if name == "get_peft_config":
        return lambda m: (
            Lora(r=m.lora_r, lora_alpha=m.lora_alpha, target_modules=m.lora_target_modules) if m.use_peft else None
        )
    if name == "LoraConfig":
        return Lora
    if name == "get_peft_model":
        return Model.get_peft_model
    if "Model" in name and name != "PeftModel":
        return type(name, (Model,), {})
    if name in ("prepare_model_for_kbit_training", "PatchFastRL"):
        return lambda model=None, *values, **keywords: model
    if name == "load_dataset":
        return load_dataset
    return Stub(name)


class Parser:
    """A parser of dataclasses, at their defaults; `is_given` sets what has none, but for TRL's configuration."""

    is_given = False

    def __init__(self, classes: Any = (), **keywords: Any) -> None:
        classes = keywords.get("dataclass_types", classes)
        self.classes = classes if isinstance(classes, (list, tuple)) else [classes]

    def parse_args_and_config(self, *values: Any, **keywords: Any) -> Any:
        rest = [Stub()] if keywords.get("return_remaining_strings") else []
        return (*(_at_defaults(c) if isinstance(c, type) else Stub() for c in self.classes), *rest)

    parse_args_into_dataclasses = parse_args_and_config


def _at_defaults(cls: type) -> Any:
    """Return an instance with defaults, and stubs for fields that the command line has to set."""
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    missing = (dataclasses.MISSING,) * 2
    out = cls(**{f.name: Stub() for f in fields if (f.default, f.default_factory) == missing})
    for field in fields if Parser.is_given and _fields_class(cls) is None else ():
        if getattr(out, field.name) is None:
            setattr(out, field.name, f"<--{field.name}")
    return out


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Importer that gives a stub for each module that is not Python's own."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        root = name.partition(".")[0]
        if root in sys.stdlib_module_names or root == "gxpo" or root in KEPT:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        return StubModule(spec.name)

    def exec_module(self, module: Any) -> None:
        module.__path__ = []


class StubModule(type(sys)):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return "9.9.9"
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if full in sys.modules:
            return sys.modules[full]
        value = name if self.__name__ == "torch" and name in ("bfloat16", "float16", "float32") else trl_class(name)
        setattr(self, name, value)
        return value


KEPT: set[str] = set()
OPEN_FILE = open
# functions by which a script could reach beyond its process
LEAVING = {
    subprocess: "run Popen call check_call check_output",
    os: "system popen remove unlink rename kill rmdir makedirs mkdir chdir replace symlink execv execvp fork",
    shutil: "rmtree move copy copytree",
}


def _open_to_read(file: Any, mode: str = "r", *values: Any, **keywords: Any) -> Any:
    """Open a file to read; files that are missing, and those to write, are stubs."""
    try:
        if type(file) is Stub or type(mode) is Stub:
            return Stub()
        return OPEN_FILE(file, mode, *values, **keywords) if set(mode) <= {"r", "b", "t"} else Stub()
    except (OSError, TypeError):
        return Stub()


def _accept_stubs() -> None:
    """Let Python's own functions take stubs where they would refuse what is no text, class or value of JSON."""
    get, is_instance, load, loads = getattr, isinstance, json.load, json.loads
    missing = object()

    def attribute(value: Any, name: Any, default: Any = missing) -> Any:
        if type(name) is Stub:
            return Stub()
        return get(value, name) if default is missing else get(value, name, default)

    def is_kind(value: Any, kinds: Any) -> bool:
        several = kinds if type(kinds) is tuple else (kinds,)
        return is_instance(value, tuple(kind for kind in several if type(kind) is not Stub))

    builtins.getattr, builtins.isinstance = attribute, is_kind
    json.load = lambda file, **keywords: Stub() if type(file) is Stub else load(file, **keywords)
    json.loads = lambda text, **keywords: Stub() if type(text) is Stub else loads(text, **keywords)
    for name in ("dump", "dumps"):
        write = get(json, name)
        setattr(json, name, lambda *values, write=write, **keywords: write(*values, **{"default": str, **keywords}))


# what a script may find where it runs, tried in this order until a trainer trains: functions that it doesn't call are
# called, files are there that are not beside it, options and environment variables without a default are set, values of
# libraries are as they are compared with
WORLDS = [(), ("calls",), *(("calls", *more) for more in (
    ("files",), ("options",), ("files", "options"), ("agrees",), ("files", "options", "agrees")))]  # fmt: skip


def _change_world(world: Sequence[str]) -> None:
    """Make files, options or values be there that are not."""
    Stub.agrees = "agrees" in world
    if "files" in world:
        for name in ("exists", "isfile", "isdir"):
            setattr(os.path, name, lambda path: True)
            setattr(Path, {"isfile": "is_file", "isdir": "is_dir"}.get(name, name), lambda path, **options: True)
        for name in ("glob", "rglob", "iterdir"):
            setattr(Path, name, lambda path, *values: [path / "<--stub"])
        os.listdir = glob.glob = lambda path=".", **options: ["<--stub"]  # type: ignore[assignment]
    if "options" in world:
        parse, variables = argparse.ArgumentParser.parse_known_args, dict(os.environ)

        def parse_all(self: Any, *values: Any, **keywords: Any) -> Any:
            parsed, rest = parse(self, *values, **keywords)
            for key, value in vars(parsed).items():
                setattr(parsed, key, f"<--{key}" if value in (None, "") else value)
            return parsed, rest

        argparse.ArgumentParser.parse_known_args = parse_all  # type: ignore[method-assign]
        environ = type(os.environ)
        environ.__getitem__ = lambda self, key: variables.get(key, f"<--{key}")
        environ.get = lambda self, key, default=None: variables.get(key, default or f"<--{key}")
        environ.__setitem__ = variables.__setitem__
        os.getenv = lambda key, default=None: os.environ.get(key, default)
        Parser.is_given = True


def _call_uncalled(tree: ast.Module, names: dict[str, Any]) -> None:
    """Call functions and methods that make a trainer and that nothing in the file calls, with stubs for arguments."""
    from gxpo.adapters.convert_script import TRAINERS, _calls_one

    for top in tree.body:
        for node in top.body if isinstance(top, ast.ClassDef) else [top]:
            is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _calls_one(node, TRAINERS)
            if not is_function or (isinstance(top, ast.ClassDef) and top.bases and TRAINERS.search(top.name)):
                continue
            owner = fill_arguments(names[top.name].__init__) if top is not node else None
            if owner is None:
                fill_arguments(names[node.name])()
            else:
                instance = names[top.name].__new__(names[top.name])
                owner(instance)
                fill_arguments(getattr(names[top.name], node.name))(instance)
            if Trainer.latest is not None:
                return


def run_child(path: Path, world: Sequence[str] = ()) -> None:
    """Run a script among stubs."""
    from gxpo.adapters import convert_script

    resource.setrlimit(resource.RLIMIT_CPU, (8, 8))
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".ipynb":
        cells = convert_script._cells(path, text)
        text = "\n".join(convert_script._without_magics([x for _, x in cells], True))
    tree = convert_script._without_cells(ast.parse(text))
    code = compile(tree, str(path), "exec")
    KEPT.update(name.partition(".")[0] for name in sys.modules)
    KEPT.difference_update(("trl", "transformers", "torch", "datasets", "peft", "numpy", "tokenizers", "accelerate"))
    for name in [n for n in sys.modules if n.partition(".")[0] not in (*KEPT, *sys.stdlib_module_names)]:
        del sys.modules[name]
    sys.meta_path.insert(0, Finder())
    # nothing leaves this process
    socket.socket = Stub()  # type: ignore[misc]
    for module, names in LEAVING.items():
        for name in names.split():
            setattr(module, name, Stub())
    time.sleep = lambda seconds: None
    logging._checkLevel = lambda level: 0  # type: ignore[attr-defined]
    builtins.open = io.open = _open_to_read  # type: ignore[assignment]
    _accept_stubs()
    add = argparse.ArgumentParser.add_argument

    def optional(self: Any, *flags: Any, **keywords: Any) -> Any:
        if keywords.pop("required", False) or (flags and not flags[0].startswith("-")):
            keywords["default"] = f"<{flags[-1]}>"
            keywords["nargs"] = "?" if not flags[0].startswith("-") else keywords.get("nargs")
            keywords = {k: v for k, v in keywords.items() if v is not None and k not in ("choices",)}
        return add(self, *flags, **keywords)

    argparse.ArgumentParser.add_argument = optional  # type: ignore[method-assign]
    _change_world(world)
    sys.argv = [path.name]
    module = types.ModuleType("__main__")
    module.__dict__.update(
        {"__file__": str(path), "display": Stub(), "get_ipython": Stub(), "__package__": "beside" + ".it" * 8}
    )
    sys.modules["__main__"] = module
    exec(code, module.__dict__)  # a script of the person who starts this check
    if Trainer.latest is None and "calls" in world:
        _call_uncalled(tree, module.__dict__)
    if Trainer.latest is not None:
        tell(Trainer.latest.arguments)


# ---------------------------------------------------------------- the child process
def truth_of(script: Path) -> tuple[dict[str, Any] | str, Sequence[str]]:
    """Run a script in forked processes; return what it gave its trainer, or why it gave nothing, and in which world."""
    first = ""
    for world in WORLDS:
        truth = _truth_in(script, world)
        if not isinstance(truth, str):
            return truth, world
        first = first or truth
        if re.search("too slow|SyntaxError|IndentationError", truth):
            break
    return first, ()


def _truth_in(script: Path, world: Sequence[str]) -> dict[str, Any] | str:
    """Run a script in a forked process; return what it gave its trainer, or why it gave nothing."""
    with tempfile.TemporaryDirectory() as folder:
        record, errors = Path(folder) / "told.json", Path(folder) / "errors"
        pid = os.fork()
        if pid == 0:
            os.environ.clear()
            os.environ.update(PATH="/usr/bin:/bin", TOLD=str(record), HOME=folder)
            output = os.open(errors, os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(folder)
            try:
                run_child(script, world)
            except BaseException:  # of a script of somebody else
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(0)
        for _ in range(600):  # of a busy machine
            if os.waitpid(pid, os.WNOHANG)[0]:
                break
            time.sleep(0.1)
        else:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "too slow"
        if record.exists():
            return json.loads(record.read_text())
        lines = errors.read_text(errors="replace").strip().splitlines()
        place = [x.strip().partition(", line ")[2] for x in lines if script.name in x][-1:]
        return "; ".join([*place, *(lines[-1:] or ["it ended before a trainer trained"])])[:200]
