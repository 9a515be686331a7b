"""Values of libraries for a script that runs without them: data, models, and a stub that answers to everything."""

from __future__ import annotations

import dis
import sys
from typing import Any

TEXT = "ValueOfLibrary"  # of a stub; a name, as some libraries compile texts


class Stub(str):
    """A value of a library: whatever is done with it gives another one.

    It is a text, too, so that Python's own functions take it; `agrees` makes it equal to whatever it is compared with.
    """

    agrees = False

    def __new__(cls, name: str = "") -> Stub:
        stub = super().__new__(cls, TEXT)
        stub._name = name
        return stub

    def __init__(self, name: str = "") -> None:
        pass

    def __getattribute__(self, name: str) -> Any:
        return Stub(name) if name in OF_TEXTS else object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__version__", "__name__", "__dict__"):
            raise AttributeError(name)
        return "9.9.9" if name == "__version__" else name if name == "__name__" else Stub(name)

    def __call__(self, *values: Any, **keywords: Any) -> Any:
        first = values[0] if len(values) == 1 and not keywords else None
        # what starts a function with the words of the command line
        if self._name in ("Fire", "run", "cli") and hasattr(first, "__code__"):
            return fill_arguments(first)()
        # a decorator leaves the function as it is, but for words of the command line
        is_data = self._name in ("map", "filter", "from_list", "from_generator", "signature", "create_dynamic_function")
        if is_data or not (isinstance(first, type) or hasattr(first, "__code__")):
            return Stub(self._name)
        if "time_limit" in self._name:  # what it limits may go on for ever
            return lambda *values, **keywords: Stub()
        return first if isinstance(first, type) else fill_arguments(first)

    def __iter__(self) -> Any:
        # `a, b = value` gets as many values as it has names, and a loop goes round once
        frame = sys._getframe(1)
        code = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 2]
        return iter([Stub() for _ in range(code[1] if dis.opname[code[0]].startswith("UNPACK_SEQUENCE") else 1)])

    def __next__(self) -> Stub:
        return Stub()

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
        return self is other or Stub.agrees

    def __ne__(self, other: Any) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        return False

    def __contains__(self, key: Any) -> bool:
        return Stub.agrees

    def __deepcopy__(self, memo: Any) -> Stub:
        return self

    def __str__(self) -> str:
        return TEXT

    def __format__(self, form: str) -> str:
        return TEXT

    def __round__(self, digits: int = 0) -> float:
        return 1.0

    def keys(self) -> Any:
        return {}.keys()

    def _other(self, *values: Any) -> Stub:
        return Stub()

    __hash__ = object.__hash__
    __repr__ = __str__
    __gt__ = __le__ = __ge__ = __lt__
    __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _other
    __xor__ = __rxor__ = __rand__ = __ror__ = __lshift__ = __rshift__ = __floordiv__ = __rfloordiv__ = __mod__ = (
        __pow__
    ) = __or__ = __and__ = __neg__ = __matmul__ = __rmod__ = __rpow__ = __abs__ = _other


# methods of texts, which a stub of another kind of value may be meant to have
OF_TEXTS = frozenset(name for name in dir(str) if not name.startswith("_"))


def fill_arguments(function: Any) -> Any:
    """Return a function whose missing arguments are stubs, as of those that the command line gives."""

    def call(*values: Any, **keywords: Any) -> Any:
        code = getattr(function, "__code__", None)
        if code is None:
            return function(*values, **keywords)
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        present = {*names[: len(values)], *keywords, *(function.__kwdefaults__ or ())}
        present |= set(names[: code.co_argcount][code.co_argcount - len(function.__defaults__ or ()) :])
        return function(*values, **{name: Stub() for name in names if name not in present}, **keywords)

    call.__dict__.update(getattr(function, "__dict__", {}), __name__=getattr(function, "__name__", ""))
    call.__wrapped__ = function
    return call


class Kind(type):
    """Kind of the classes of libraries: each has every attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub(name)


class Base(metaclass=Kind):
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
        return iter((Stub(),))

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
        if name in ("column_names", "features", "info", "num_rows", "shape", "to_pandas", "to_list", "unique"):
            return {"column_names": [], "features": {}, "num_rows": 100}.get(name, Stub(name))
        return lambda *values, **keywords: self


def load_dataset(path: Any, name: Any = None, split: Any = None, **options: Any) -> Any:
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
