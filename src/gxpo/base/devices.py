"""Limits of devices: float64 is missing on Apple's GPUs, and some kinds were never run on."""

from __future__ import annotations

import torch
from torch import Tensor

from gxpo.base.errors import ModelError

WITHOUT_FLOAT64 = {"mps"}  # types of devices that hold no float64, whose copies to the host convert on the device
UNTRIED = ("cuda", "mps")  # types of devices that gxpo has rules for and was never run on


def has_float64(device: torch.device | str) -> bool:
    """Return True if tensors of float64 can be on this device.

    >>> has_float64("cpu"), has_float64("cuda:1"), has_float64("mps")
    (True, True, False)
    """
    return torch.device(device).type not in WITHOUT_FLOAT64


def need_float64(device: torch.device | str, what: str) -> None:
    """Raise ModelError if `what` computes in float64 on a device that has none."""
    if not has_float64(device):
        kind = torch.device(device).type
        raise ModelError(f"{what}: computed in float64, which {kind} does not have; set learner.device=cpu")


def drawing_device(device: torch.device) -> torch.device:
    """Device on which tokens are drawn: probabilities are summed in float64, on the host where the device has none."""
    return device if has_float64(device) else torch.device("cpu")


def to_host_float64(x: Tensor) -> Tensor:
    """A tensor in float64 on the host, with its gradient; copied in its own dtype, half of the bytes of float32."""
    return x.to("cpu").to(torch.float64)


def untried_line(device: str) -> str | None:
    """The line that a run on a device begins with where gxpo was never run on one of its kind; None elsewhere."""
    kind = torch.device(device).type
    if kind not in UNTRIED:
        return None
    return (
        f"learner.device={device} is untried: gxpo's tests have run on CPUs alone; compare log-probs and gradients "
        "with the CPU's before you trust a run (docs/devices.md)"
    )
