"""Environment variables of numerical libraries, to set before torch is loaded: equal bits, and threads that share.

MKL_CBWR        MKL picks a kernel by where in memory its operands lie. On some processors (AMD's with AVX-512) the
                kernels sum in another order, so that one product, computed twice, differs in its last bits. With
                MKL_CBWR set to anything it does not. MKL reads the variable once, at its first product.
GOMP_SPINCOUNT  Threads of GNU OpenMP (torch's on Linux) that wait for one another try 300,000 times before they sleep,
                and a step waits thousands of times. Where another program needs one of the processors, the thread that
                is waited for stands still while the others keep theirs busy. After 1,000 times they sleep, and it has
                a processor. OpenMP reads the variable when it is loaded; it lowers the number itself only if it has
                more threads than there are processors.

`import gxpo` leaves the environment alone; programs of gxpo, `gxpo.train` and `gxpo.resume` set them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # a user who has set one has decided how threads wait


def library_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables to add to an environment; what the user has set stays."""
    variables = {"MKL_CBWR": "AUTO"} if "MKL_CBWR" not in environment else {}
    return variables | ({"GOMP_SPINCOUNT": "1000"} if not any(name in environment for name in SPIN_VARIABLES) else {})


def set_library_variables() -> None:
    """Set the variables for this process and its children. Call before torch is imported."""
    os.environ.update(library_variables(os.environ))
