"""Bitwise reproducible matrix products: environment variables to set before torch is loaded.

MKL picks a kernel by where in memory its operands lie. On some processors (AMD's with AVX-512) the kernels sum in
another order, so that one product, computed twice, differs in its last bits. With MKL_CBWR set to anything it does not.
MKL reads the variable once, at its first product: `import gxpo` therefore leaves it alone, programs of gxpo set it.
"""

from __future__ import annotations

import os

VARIABLES = {"MKL_CBWR": "AUTO"}


def ask_for_equal_bits() -> None:
    """Set the variables for deterministic products, for this process and its children. Variables set by the user are
    kept. Call before torch is imported."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
