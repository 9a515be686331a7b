"""Golden vectors of outcome advantages, and tests that run them against any implementation.

    pytest --pyargs gxpo.conformance --impl my_trainer:advantages --method grpo

The function is `advantages(method, rewards, groups, **given)`, a number for each trajectory:

    method   the name of a golden file, such as "grpo"
    rewards  list of float; None = unscored
    groups   list of int, opaque ids: not dense, not sorted, members not side by side
    given    the method's constants by name (`ddof`, `eps`, ...) and its fields, one value for each trajectory
             (`lengths`, `mean_logprob`, ...)

It raises NotImplementedError for a method, a constant's value or a field that it does not have: reported as not
supported, never as passed. Without --impl gxpo's own methods are tried. `check` does the same without pytest.

Losses have vectors of their own (`--loss my_trainer:loss --objective grpo`): see `gxpo.conformance.losses`.
"""

from gxpo.conformance.checking import Result, check
from gxpo.conformance.golden import Golden, Vector, golden, names

__all__ = ["Golden", "Result", "Vector", "check", "golden", "names"]
