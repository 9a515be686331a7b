"""The command line in this process."""

import contextlib
import io
import sys
from collections.abc import Iterable

from gxpo.cli import app as cli


def run(words: Iterable[object]) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `gxpo WORDS`."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    before, sys.argv = sys.argv, ["gxpo", *map(str, words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    finally:
        sys.argv = before
    return code, out.getvalue(), err.getvalue()
