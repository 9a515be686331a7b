"""`python -m gxpo.conformance --impl module:function --method grpo`: the same as `pytest --pyargs gxpo.conformance`."""

from __future__ import annotations

import sys

from gxpo.base.errors import MissingExtra, need
from gxpo.base.terminal import say


def main(arguments: list[str]) -> int:
    """Run the conformance tests; returns pytest's exit code, 2 where pytest is not installed."""
    try:
        pytest = need("pytest", "dev")
    except MissingExtra as error:
        say(str(error), err=True)
        return 2
    return int(pytest.main(["-p", "gxpo.conformance.plugin", "--pyargs", "gxpo.conformance", *arguments]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
