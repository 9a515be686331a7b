"""Reading what another reward has computed."""

from __future__ import annotations

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.forest import Forest


def read_component(forest: Forest, name: str, asker: str, *, share: bool = True) -> Tensor:
    """Component `name` [R] float64, nan unknown.

    share  it is a share of something: refused where it is not from 0 to 1
    ConfigError where no reward computes it; `asker` is the part that needs it.
    """
    if name not in forest.component_names:
        raise ConfigError(
            f"{asker} reads component {name!r}, which no reward computes: let one return it, and give it weight 0 "
            f"(there is {', '.join(forest.component_names) or 'none'})"
        )
    value = forest.components[:, forest.component_names.index(name)]
    known = value[value.isfinite()]
    if share and known.numel() and not 0 <= float(known.min()) <= float(known.max()) <= 1:
        raise ConfigError(
            f"{asker}: component {name!r} is from {float(known.min()):g} to {float(known.max()):g}; it has to lie "
            "between 0 and 1"
        )
    return torch.where(value.isfinite(), value, torch.nan)
