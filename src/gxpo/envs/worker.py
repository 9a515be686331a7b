"""Environment worker program: loads one class, then processes the received items one after the other.

See `gxpo.processes`. The other side is `gxpo.envs.episodes`; it answers with the results of `Host.run`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gxpo.envs.checked import to_json
from gxpo.envs.host import Host
from gxpo.usercode import Unusable

if TYPE_CHECKING:
    from gxpo.processes import Line


def serve(line: Line) -> None:
    """Load the class of the first list; then answer each item of each further list, in order."""
    try:
        host = Host(next(line.receive()))
    except Unusable as error:
        line.answer(to_json(["unusable", str(error)]))
        return
    line.answer(to_json(["loaded", host.about]))
    while True:
        for item in line.receive():
            line.answer(host.run(*item))
