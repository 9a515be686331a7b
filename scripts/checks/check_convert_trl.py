"""Comparison of `gxpo convert trl SCRIPT` with the arguments that running the script gives.

python scripts/checks/check_convert_trl.py SCRIPT... [-v]

Each script runs in a process of its own, where every library but Python's is a stub: no network, no other process, at
most 20 seconds, and the end is the first call of a trainer's `train()`. What it gave GRPOConfig and the trainer is
converted too, and each key of the two conversions is counted: equal, open in the script's (`???`), or wrong. Exit 1 if
a key is wrong.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import dataclasses
import dis
import importlib.abc
import importlib.machinery
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
from collections import Counter
from pathlib import Path
from typing import Any

UNKNOWN = "<unknown>"
HIDDEN = ("model", "task", "tasks.options.split", "tasks.options.config")


# ---------------------------------------------------------------- the run of a script, in a child process
class Stub:
    """A value of a library: whatever is done with it gives another one."""

    def __init__(self, name: str = "") -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__version__", "__name__", "__dict__"):
            raise AttributeError(name)
        return "9.9.9" if name == "__version__" else name if name == "__name__" else Stub(name)

    def __call__(self, *values: Any, **keywords: Any) -> Any:
        # a decorator leaves the function as it is
        is_data = self._name in ("map", "filter", "from_list", "from_generator", "signature", "create_dynamic_function")
        is_decorator = (
            not is_data
            and len(values) == 1
            and not keywords
            and (isinstance(values[0], type) or hasattr(values[0], "__code__"))
        )
        return values[0] if is_decorator else Stub()

    def __iter__(self) -> Any:
        # `a, b = value` gets as many values as it has names
        frame = sys._getframe(1)
        code = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 2]
        return iter([Stub() for _ in range(code[1] if dis.opname[code[0]].startswith("UNPACK_SEQUENCE") else 0)])

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (Base,)

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __enter__(self) -> Stub:
        return self

    def __exit__(self, *error: Any) -> bool:
        return False

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return 1

    def __int__(self) -> int:
        return 1

    def __float__(self) -> float:
        return 1.0

    def __index__(self) -> int:
        return 1

    def __eq__(self, other: Any) -> bool:
        return self is other

    def __lt__(self, other: Any) -> bool:
        return False

    def __contains__(self, key: Any) -> bool:
        return False

    def __deepcopy__(self, memo: Any) -> Stub:
        return self

    def __str__(self) -> str:
        return "<--stub"

    def __format__(self, form: str) -> str:
        return "<--stub"

    def __round__(self, digits: int = 0) -> float:
        return 1.0

    __hash__ = object.__hash__
    __repr__ = __str__
    __gt__ = __le__ = __ge__ = __lt__
    __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __call__
    __xor__ = __rxor__ = __rand__ = __ror__ = __lshift__ = __rshift__ = __floordiv__ = __rfloordiv__ = __mod__ = (
        __pow__
    ) = __or__ = __and__ = __neg__ = __matmul__ = __call__


class Base:
    """A class of a library that a script derives from."""

    def __init__(self, *values: Any, **keywords: Any) -> None:
        for name, value in keywords.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub()


class Data:
    """A data set, of which the source is known and no row."""

    def __init__(self, path: Any, name: Any = None, split: Any = None, data_files: Any = None, **options: Any) -> None:
        self.path, self.name, self.split, self.data_files, self.is_cut = path, name, split, data_files, False

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return Stub()
        new = Data(self.path, self.name, self.split if self.is_cut else key, self.data_files)
        new.is_cut = self.is_cut
        return new

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 100

    def __contains__(self, key: Any) -> bool:
        return True

    def train_test_split(self, *values: Any, **keywords: Any) -> Data:
        new = Data(self.path, self.name, self.split, self.data_files)
        new.is_cut = True
        return new

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("column_names", "features", "info", "num_rows", "shape"):
            return {"column_names": [], "features": {}, "num_rows": 100}.get(name, Stub())
        return lambda *values, **keywords: self


def _loaded(path: Any, name: Any = None, split: Any = None, **options: Any) -> Any:
    if isinstance(split, list):
        return [Data(path, name, s) for s in split]
    return Data(path, name, split, options.get("data_files"))


class Model(Base):
    """A model with the name that it was loaded by."""

    source: Any = None
    dtype: Any = None

    @classmethod
    def from_pretrained(cls, name: Any = None, *values: Any, **keywords: Any) -> Any:
        model = cls()
        model.source = keywords.get("model_name", keywords.get("pretrained_model_name_or_path", name))
        model.dtype = keywords.get("torch_dtype", keywords.get("dtype"))
        return (model, Stub()) if cls.__name__.startswith("Fast") else model

    @staticmethod
    def get_peft_model(model: Any, *values: Any, **keywords: Any) -> Any:
        model.lora = values[0] if values else keywords.get("peft_config", Lora(**keywords))
        return model

    def to(self, *values: Any, **keywords: Any) -> Model:
        return self

    cuda = eval = train = to


class Lora(Base):
    """A configuration of LoRA."""


def config_class(name: str, changes: dict[str, Any]) -> type:
    """Return TRL's configuration, with the fields whose defaults are known."""
    from gxpo.adapters.trl_config import DEFAULTS

    fields = {**DEFAULTS, "max_prompt_length": 512, **changes}
    built = dataclasses.make_dataclass(
        name, [(k, Any, dataclasses.field(default=v)) for k, v in fields.items()], bases=(Base,)
    )
    init = built.__init__

    def accepting(self: Any, *values: Any, **keywords: Any) -> None:
        own_options = {k: v for k, v in keywords.items() if k in fields}
        init(self, **({"output_dir": values[0]} if values else {}), **own_options)
        for key, value in keywords.items():
            setattr(self, key, value)

    built.__init__ = accepting
    built.TRL = built
    return built


class Trainer(Base):
    """A trainer, which tells what it was given and ends the run."""

    def __init__(self, *values: Any, **keywords: Any) -> None:
        names = ("model", "reward_funcs", "args", "train_dataset")
        self.arguments = {**dict(zip(names, values, strict=False)), **keywords}
        self.args = self.arguments.get("args")
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
    defaults = (
        {f.name: f.default for f in dataclasses.fields(kind)} if (kind := getattr(type(args), "TRL", None)) else {}
    )
    fields = {
        k: v for k, v in fields.items() if not (k in defaults and type(v) is type(defaults[k]) and v == defaults[k])
    }
    fields.pop("output_dir", None)
    fields["model_name_or_path"] = model.source if isinstance(model, Model) else model
    lora = arguments.get("peft_config") or (vars(model).get("lora") if isinstance(model, Model) else None)
    if isinstance(lora, Lora):
        own_options = {k: v for k, v in vars(lora).items() if k in ("r", "lora_alpha", "target_modules")}
        fields |= {"use_peft": True, "lora_r": 8, "lora_alpha": 8}
        fields |= {f"lora_{k.removeprefix('lora_')}": v for k, v in own_options.items()}
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
    Path(os.environ["TOLD"]).write_text(json.dumps({k: plain(v) for k, v in fields.items()}))


def plain(value: Any, depth: int = 0) -> Any:
    if isinstance(value, (bool, int, float, type(None))):
        return value
    if isinstance(value, os.PathLike):
        return str(value)
    if isinstance(value, str):
        return UNKNOWN if "<--" in value or "Stub" in value else value
    if depth < 8 and isinstance(value, dict):
        return {str(k): plain(v, depth + 1) for k, v in value.items()}
    if depth < 8 and isinstance(value, (list, tuple)):
        return [plain(v, depth + 1) for v in value]
    return UNKNOWN


def _peft_config(m: Any) -> Any:
    if not m.use_peft:
        return None
    return Lora(r=m.lora_r, lora_alpha=m.lora_alpha, target_modules=m.lora_target_modules)


def trl_class(name: str) -> Any:
    from gxpo.adapters.script.calls import TRAINERS
    from gxpo.adapters.script.parsers import CONFIGS, SCRIPT_CLASSES

    if name.endswith("Trainer") and TRAINERS.search(name):
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
        return _loaded
    return Stub()


class Parser:
    """A parser of dataclasses, at their defaults."""

    def __init__(self, classes: Any = (), **keywords: Any) -> None:
        classes = keywords.get("dataclass_types", classes)
        self.classes = classes if isinstance(classes, (list, tuple)) else [classes]

    def parse_args_and_config(self, *values: Any, **keywords: Any) -> Any:
        return tuple(_at_defaults(c) if isinstance(c, type) else Stub() for c in self.classes)

    parse_args_into_dataclasses = parse_args_and_config


def _at_defaults(cls: type) -> Any:
    """Return an instance with defaults, and stubs for fields that the command line has to set."""
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    missing = (dataclasses.MISSING,) * 2
    return cls(**{f.name: Stub() for f in fields if (f.default, f.default_factory) == missing})


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
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if full in sys.modules:
            return sys.modules[full]
        built = name if self.__name__ == "torch" and name in ("bfloat16", "float16", "float32") else trl_class(name)
        setattr(self, name, built)
        return built


KEPT: set[str] = set()
OPEN_FILE = open
# functions by which a script could reach beyond its process
LEAVING = {
    subprocess: "run Popen call check_call check_output",
    os: "system popen remove unlink rename kill rmdir makedirs mkdir",
    shutil: "rmtree move copy copytree",
}


def _opened(file: Any, mode: str = "r", *values: Any, **keywords: Any) -> Any:
    """Open a file to read; files that are missing, and those to write, are stubs."""
    try:
        return OPEN_FILE(file, mode, *values, **keywords) if set(mode) <= {"r", "b", "t"} else Stub()
    except (OSError, TypeError):
        return Stub()


def run_child(path: Path) -> None:
    """Run a script among stubs."""
    from gxpo.adapters import convert_script

    resource.setrlimit(resource.RLIMIT_CPU, (15, 15))
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".ipynb":
        cells = convert_script._cells(path, text)
        text = "\n".join(convert_script._without_magics([x for _, x in cells], True))
    code = compile(convert_script._without_cells(ast.parse(text)), str(path), "exec")
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
    builtins.open = _opened  # type: ignore[assignment]
    load, loads = json.load, json.loads
    json.load = lambda file, **keywords: Stub() if isinstance(file, Stub) else load(file, **keywords)
    json.loads = lambda text, **keywords: Stub() if isinstance(text, Stub) else loads(text, **keywords)
    add = argparse.ArgumentParser.add_argument

    def optional(self: Any, *flags: Any, **keywords: Any) -> Any:
        if keywords.pop("required", False) or (flags and not flags[0].startswith("-")):
            keywords["default"] = f"<{flags[-1]}>"
            keywords["nargs"] = "?" if not flags[0].startswith("-") else keywords.get("nargs")
            keywords = {k: v for k, v in keywords.items() if v is not None and k not in ("choices",)}
        return add(self, *flags, **keywords)

    argparse.ArgumentParser.add_argument = optional  # type: ignore[method-assign]
    sys.argv = [path.name]
    module = types.ModuleType("__main__")
    module.__dict__.update({"__file__": str(path), "display": Stub(), "get_ipython": Stub()})
    sys.modules["__main__"] = module
    exec(code, module.__dict__)  # a script of the person who starts this check
    if Trainer.latest is not None:
        tell(Trainer.latest.arguments)


# ---------------------------------------------------------------- the comparison
def truth_of(script: Path) -> dict[str, Any] | str:
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
                run_child(script)
            except BaseException:  # of a script of somebody else
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(0)
        for _ in range(200):
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
    truth = truth_of(script.resolve())
    if isinstance(truth, str):
        counts["not run"] += 1
        print(f"not run     {script}: {truth}")
        return
    counts["run"] += 1
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
        if key.startswith("tasks.options") and is_open(conversion.keys["task"]):
            continue
        if ours == theirs and not is_open(ours):
            counts["equal"] += 1
        elif is_open(ours):
            counts["open"] += 1
            counts["open, and no run decides it"] += is_open(theirs) or theirs is None
        else:
            counts["wrong"] += 1
            wrong.append(f"{key}: {ours!r} is {theirs!r} when it runs")
    if verbose or wrong:
        print(f"{'WRONG' if wrong else 'right'}       {script}: {'; '.join(wrong) or f'{len(conversion.keys)} keys'}")


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
