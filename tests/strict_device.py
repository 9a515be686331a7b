"""A device in name only, for tests of GPU rules without a GPU: tensors say that they live on `strict:0`, CPUs compute.

Every mix of devices is an error, as on CUDA. `counting()` counts calls, waits of the host and copies by place in gxpo.
Under `apple()` the device has no float64 either, and lists the operators for which torch has no kernel on Apple's GPUs.
The name is an experimental Python backend of torch, set up once in a process; CPU tensors are as they were.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest
import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_map

NAME, CPU = "strict", torch.device("cpu")
COPIES = ("aten._to_copy", "aten.copy_", "aten._copy_from")
INDEXED = ("aten.index.", "aten.index_put", "aten._index_put_impl", "aten._unsafe_index")
SHAPED = ("aten.nonzero", "aten.masked_select", "aten.unique", "aten._unique", "aten.repeat_interleave.Tensor")


@dataclass
class Counts:
    """Calls of the device, waits of the host for it ("item", "shape", "to host") and copies to it, by place."""

    calls: int = 0
    by_place: Counter[tuple[str, str]] = field(default_factory=Counter)
    bytes_by_place: Counter[tuple[str, str]] = field(default_factory=Counter)
    largest: dict[str, tuple[int, ...]] = field(default_factory=dict)  # shape of the largest copy of a kind

    def add(self, kind: str, x: torch.Tensor | None = None) -> None:
        key = (kind, _place())
        self.by_place[key] += 1
        if x is not None:
            self.bytes_by_place[key] += x.numel() * x.element_size()
            before = self.largest.get(kind)
            if before is None or torch.Size(before).numel() < x.numel():
                self.largest[kind] = tuple(x.shape)

    def of(self, kind: str) -> int:
        """Number of waits or copies of a kind."""
        return sum(n for (each, _), n in self.by_place.items() if each == kind)

    @property
    def waits(self) -> int:
        """How often the host waits for the device."""
        return sum(map(self.of, ("item", "shape", "to host")))

    def bytes(self, kind: str) -> int:
        return sum(n for (each, _), n in self.bytes_by_place.items() if each == kind)

    def __str__(self) -> str:
        rows = [f"{n:5} {self.bytes_by_place[key]:10} {key[0]:9} {key[1]}" for key, n in self.by_place.most_common()]
        return "\n".join([f"{self.calls} calls", *rows])


_counts: list[Counts] = []


@contextmanager
def counting() -> Iterator[Counts]:
    """Context manager: count what happens on the device meanwhile."""
    counts = Counts()
    _counts.append(counts)
    try:
        yield counts
    finally:
        _counts.remove(counts)


# ---------------------------------------------------------------- Apple's rules
WIDE = (torch.float64, torch.complex128)
_lacking: list[set[str]] = []  # operators without a kernel, of each `apple()` that is open


@contextmanager
def apple() -> Iterator[set[str]]:
    """Context manager: the device refuses float64, also as the dtype of a copy to the host, which is converted where it
    comes from; gives the set of operators that it was asked for and that have no kernel for MPS in this torch."""
    from gxpo.base.devices import WITHOUT_FLOAT64

    lacking: set[str] = set()
    _lacking.append(lacking)
    WITHOUT_FLOAT64.add(NAME)
    try:
        yield lacking
    finally:
        _lacking.remove(lacking)
        WITHOUT_FLOAT64.discard(NAME)


@cache
def _dispatch() -> dict[str, tuple[str, str]]:
    """Operator -> (its dispatch keys, the operator that it delegates to), from the file torch is generated from."""
    import torchgen

    path = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"
    out = {}
    for block in re.split(r"^- func: ", path.read_text(), flags=re.M)[1:]:
        name = block.partition("(")[0]
        keys = re.search(r"^  dispatch:\n((?:    .*\n)+)", block, re.M)
        delegate = re.search(r"^  structured_delegate: (\S+)", block, re.M)
        out[name] = (keys[1] if keys else "", delegate[1] if delegate else "")
    return out


def has_mps_kernel(operator: str) -> bool:
    """Return True if `aten.NAME.OVERLOAD` runs on MPS: by a kernel of its own, or made of other operators."""
    name = operator.removeprefix("aten.").removesuffix(".default")
    keys, delegate = _dispatch().get(name, ("", ""))
    keys += _dispatch()[delegate][0] if delegate else ""
    return "MPS" in keys or "Composite" in keys or not keys


def _refuse_wide(name: str, out: Any) -> None:
    for x in _tensors([out] if isinstance(out, torch.Tensor) else out if isinstance(out, (list, tuple)) else ()):
        if x.dtype in WIDE:
            raise TypeError(f"Cannot convert a MPS Tensor to {x.dtype}, which MPS does not support: {name}")


def _place() -> str:
    """The innermost line of gxpo that is running."""
    frame = sys._getframe(1)
    while frame is not None:
        if "/src/gxpo/" in frame.f_code.co_filename:
            return f"{frame.f_code.co_filename.split('/src/gxpo/')[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


class StrictTensor(torch.Tensor):
    """A tensor that says it lives on the device; `there` is its data."""

    there: torch.Tensor

    @staticmethod
    def __new__(cls, there: torch.Tensor) -> StrictTensor:
        return torch.Tensor._make_wrapper_subclass(
            cls, there.size(), strides=there.stride(), storage_offset=there.storage_offset(), dtype=there.dtype,
            layout=there.layout, device=torch.device(NAME, 0), requires_grad=False,
        )  # fmt: skip

    def __init__(self, there: torch.Tensor) -> None:
        self.there = there

    def __repr__(self) -> str:
        return f"strict({self.there})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def new_tensor(self, data: Any, **options: Any) -> torch.Tensor:
        return torch.tensor(data, **{"dtype": self.dtype, "device": self.device, **options})

    @property
    def data(self) -> torch.Tensor:
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, value: StrictTensor) -> None:
        torch.Tensor.data.__set__(self, value)
        self.there = value.there

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl


def _is_strict(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator on the data of its tensors, if they are where a GPU would need them."""
    tensors = [*_tensors(args), *_tensors(kwargs.values())]
    there = [x for x in tensors if isinstance(x, StrictTensor)]
    here = [x for x in tensors if not isinstance(x, StrictTensor)]
    name, is_copy = str(func), str(func).startswith(COPIES)
    if there and here and not is_copy:
        _check(name, args, here)
    _count(name, args, there)
    # where the result lives: where it is asked for, else where the operands are
    device = kwargs.get("device")
    target = isinstance(args[0], StrictTensor) if name.startswith("aten.copy_") else bool(there)
    if name.startswith("aten._copy_from"):
        target = isinstance(args[1], StrictTensor)
    if device is not None:
        target, kwargs = _is_strict(device), {**kwargs, "device": CPU}
    kwargs.pop("pin_memory", None)
    random = kwargs.get("generator")
    if target and random is not None and random._cdata not in _generators:
        raise RuntimeError(f"Expected a {NAME} device type for generator but found cpu: {name}")
    if is_copy:
        source = args[1] if name.startswith("aten.copy_") else args[0]
        if isinstance(source, StrictTensor) != target:
            for counts in _counts:
                counts.add("to device" if target else "to host", source)
    if name.startswith("aten._copy_from"):
        func, args, kwargs = torch.ops.aten.copy_.default, (args[1], args[0]), {}
    out = func(*_data(args), **{key: _data(x) for key, x in kwargs.items()})
    if not target and not there:
        return out
    if _lacking and not name.startswith("aten._copy_from"):
        _refuse_wide(name, out)
        if name.startswith("aten.") and not has_mps_kernel(name):
            for lacking in _lacking:
                lacking.add(name)

    if isinstance(out, torch.Tensor):
        return _result(out, there, target)
    return tree_map(lambda x: _result(x, there, target) if isinstance(x, torch.Tensor) else x, out)


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Tensors among an operator's arguments and in lists of them."""
    for x in values:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from _tensors(x)


def _data(x: Any) -> Any:
    """An argument with data in the place of tensors of the device."""
    if isinstance(x, (list, tuple)):
        return type(x)(map(_data, x))
    return x.there if isinstance(x, StrictTensor) else x


def _result(x: torch.Tensor, there: list[StrictTensor], target: bool) -> torch.Tensor:
    """A result where it lives; operators in place return the tensor that they were given."""
    return next((y for y in there if y.there is x), StrictTensor(x) if target else x)


def _check(name: str, args: Any, here: list[torch.Tensor]) -> None:
    """Raise RuntimeError for a mix of devices that CUDA refuses: numbers of the CPU may meet tensors of the device, and
    indices of the CPU may index them."""
    if name.startswith(INDEXED):
        if not isinstance(args[0], StrictTensor):
            raise RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor: {name}")
        value = args[2] if len(args) > 2 else None
        here = [x for x in here if x is value]
    if far := [tuple(x.shape) for x in here if x.dim() > 0]:
        raise RuntimeError(f"Expected all tensors to be on the same device: {name} got {far} on cpu beside {NAME}:0")


def _count(name: str, args: Any, there: list[torch.Tensor]) -> None:
    """Count a call of the device, and a wait where the host needs its number or a shape that depends on numbers."""
    if not there or not _counts:
        return
    is_mask = name.startswith("aten.index.") and any(
        isinstance(x, StrictTensor) and x.dtype in (torch.bool, torch.uint8) for x in args[1]
    )
    kind = "item" if name.startswith("aten._local_scalar_dense") else "shape" if is_mask else ""
    kind = "shape" if name.startswith(SHAPED) else kind
    for counts in _counts:
        counts.calls += 1
        if kind:
            counts.add(kind)


# ---------------------------------------------------------------- the backend
class _Module(backend_registration._DummyBackendModule):
    """`torch.strict`: what programs ask a device's module; streams and memory are no-ops."""

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return 1 << 34, 1 << 34

    def memory_allocated(self, device: Any = None) -> int:
        return 0

    max_memory_allocated = memory_allocated

    def synchronize(self, device: Any = None) -> None:
        pass

    empty_cache = reset_peak_memory_stats = set_device = manual_seed = synchronize

    def get_device_name(self, device: Any = None) -> str:
        return NAME


class Generator(torch.Generator):
    """A generator of the device: numbers of the CPU's."""

    def __new__(cls, device: Any = "cpu") -> Any:
        made = super().__new__(cls, device=CPU)
        if _is_strict(device):
            _generators[made._cdata] = made
        return made


_generators: WeakValueDictionary[int, Generator] = WeakValueDictionary()  # those of the device, by their address


@cache
def install() -> torch.library.Library:
    """Make the device known to torch in this process, before its first backward pass: autograd starts a thread for each
    device that it knows then."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda func, *args, **kwargs: _run(func, args, kwargs), "PrivateUse1")
    library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    return library


def _builds(function: Any) -> Any:
    """torch.tensor and its like: built on the CPU and moved, which torch does itself for devices that it knows."""

    def build(*args: Any, device: Any = None, requires_grad: bool = False, **kwargs: Any) -> Any:
        if not _is_strict(device):
            kwargs |= {"requires_grad": True} if requires_grad else {}
            return function(*args, **kwargs) if device is None else function(*args, device=device, **kwargs)
        return function(*args, **kwargs).to(device).requires_grad_(requires_grad)

    return build


def _keeps_ties(apply: Any) -> Any:
    """nn.Module's conversion, after which one parameter of two modules is still one: torch puts tensors of classes of
    their own in the place of parameters, module by module, where for CUDA it changes the parameters' data."""

    def converted(self: torch.nn.Module, function: Any, recurse: bool = True) -> torch.nn.Module:
        places: dict[int, list[tuple[torch.nn.Module, str]]] = {}
        for module in self.modules():
            for name, p in module._parameters.items():
                if p is not None:
                    places.setdefault(id(p), []).append((module, name))
        out = apply(self, function, recurse)
        for (first, name), *others in places.values():
            for module, other in others:
                module._parameters[other] = first._parameters[name]
        return out

    return converted


def _dense_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score_mod: Any, block_mask: Any, scale: Any, enable_gqa: bool
) -> torch.Tensor:
    """FlexAttention's result, by a dense mask: its own reference needs functions of torch that know no such device."""
    rows, heads, queries, keys = (
        torch.arange(n, device=q.device).view([-1 if i == j else 1 for j in range(4)])
        for i, n in enumerate((q.shape[0], q.shape[1], q.shape[2], k.shape[2]))
    )
    times = q.shape[1] // k.shape[1] if enable_gqa else 1
    k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    scores = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    scores = scores if score_mod is None else score_mod(scores, rows, heads, queries, keys)
    return scores.masked_fill(~block_mask.mask_mod(rows, heads, queries, keys), -torch.inf).softmax(3).to(v) @ v


@contextmanager
def strict() -> Iterator[str]:
    """Context manager: the device exists; gives its name."""
    from gxpo.learning import block_mask

    install()
    patches = [(torch, name, _builds(getattr(torch, name))) for name in ("tensor", "as_tensor", "asarray")]
    patches += [(torch, "Generator", Generator), (torch.Tensor, "pin_memory", lambda self, device=None: self)]
    patches += [(block_mask, "flex_attention", _dense_attention)]
    patches += [(torch.nn.Module, "_apply", _keeps_ties(torch.nn.Module._apply))]
    before = [(place, name, getattr(place, name)) for place, name, _ in patches]
    for place, name, value in patches:
        setattr(place, name, value)
    try:
        yield NAME
    finally:
        for place, name, value in before:
            setattr(place, name, value)


DEVICE = os.environ.get("GXPO_TEST_DEVICE", NAME)  # cuda: tests of a device run there


@pytest.fixture
def device() -> Iterator[str]:
    """The device of tests of devices: a GPU where GXPO_TEST_DEVICE names it, else the strict one."""
    if DEVICE != NAME:
        yield DEVICE
        return
    with strict() as name:
        yield name
