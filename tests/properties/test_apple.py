"""Apple's rules without an Apple GPU: no float64 on the device, and no operator for which torch has no kernel there.

On the strict device (`tests.strict_device.apple`). Nothing here has run on MPS itself.
"""

import pytest
import torch
from tests.learning.llamas import small_llama
from tests.methods.test_training_steps import parity
from tests.properties.test_device_runs import KINDS, trained
from tests.strict_device import NAME, apple, has_mps_kernel, strict

from gxpo.base.devices import drawing_device, has_float64, to_host_float64, untried_line
from gxpo.base.errors import GxpoError
from gxpo.learning.optimiser_kinds import norm_of
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.torch import TorchEngine

QUICK = ("prompts",)
LACKING: set[str] = set()  # operators without a kernel for MPS that these runs ask for


@pytest.fixture
def lacking():
    with strict(), apple() as operators:
        yield operators


def test_the_device_refuses_float64(lacking):
    x = torch.ones(2, device=NAME)
    for wide in (lambda: x.double(), lambda: x.to("cpu", torch.float64), lambda: torch.zeros(1).double().to(NAME)):
        with pytest.raises(TypeError, match="MPS does not support"):
            wide()
    assert to_host_float64(x).tolist() == [1.0, 1.0] and to_host_float64(x).dtype == torch.float64
    assert not has_float64(NAME) and has_float64("cuda") and drawing_device(torch.device(NAME)).type == "cpu"


def test_operators_are_those_of_the_installed_torch():
    assert has_mps_kernel("aten.add.Tensor") and has_mps_kernel("aten.mm.default")
    assert not has_mps_kernel("aten._linalg_eigh.default") and not has_mps_kernel("aten.segment_reduce.default")


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.slow] * (k not in QUICK)) for k in KINDS if k != "flow"]
)
@pytest.mark.filterwarnings("ignore")
def test_a_run_needs_nothing_that_apple_lacks(kind, lacking, tmp_path, hardly_warm):
    method, keys = KINDS[kind]
    run = trained(
        method, NAME, tmp_path, None if kind == "preferences" else lambda completion: parity(completion), **keys
    )
    assert all(row["grad_norm"] > 0 for row in run.metrics) and lacking <= LACKING, " ".join(sorted(lacking))


def test_what_computes_in_float64_is_refused_in_one_line(lacking, tmp_path):
    for kind, keys in (("flow", {}), ("prompts", {"learner.dtype": "float64"})):
        method, own = KINDS[kind]
        with pytest.raises(GxpoError, match=f"computed in float64, which {NAME} does not have; set learner.device=cpu"):
            trained(method, NAME, tmp_path, None if kind == "flow" else parity, **own, **keys)


def test_samples_are_those_of_the_cpu(lacking):
    keys = tuple(StreamKey(seed=0, step=1, task="a", attempt=j) for j in range(6))
    one, other = (
        TorchEngine(small_llama(), device=device, stop_ids=(1,), kernels="transformers").sample(
            [Request((2, 3, 4), keys)], Sampling(max_new_tokens=9, top_k=5)
        )[0]
        for device in ("cpu", NAME)
    )
    assert [x.tokens for x in one] == [x.tokens for x in other] and len({tuple(x.tokens) for x in one}) > 1
    for x, y in zip(one, other, strict=True):
        assert x.logprobs == pytest.approx(y.logprobs, abs=1e-5)


def test_a_norm_that_overflows_float32_is_taken_on_the_host(lacking):
    assert norm_of([torch.full((4,), 1e30, device=NAME)]) == pytest.approx(2e30)


@pytest.mark.parametrize(("device", "is_untried"), [("cuda", True), ("cuda:1", True), ("mps", True), ("cpu", False)])
def test_a_run_says_where_nothing_has_run_yet(device, is_untried):
    line = untried_line(device)
    assert (line is not None) == is_untried and (line is None or (device in line and "\n" not in line))
