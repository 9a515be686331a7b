"""The program of an environment process: loads one class, then does what it is sent, one item after the other.

See `gxpo.processes`. The other side is `gxpo.envs.episodes`; what it answers is what `Host.run` says.
"""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection

from gxpo.envs.checked import to_json
from gxpo.envs.host import Host
from gxpo.usercode import Unusable


def serve(connection: Connection) -> None:
    """Load the class of the first message; then reply to each item of each further message, in order."""
    try:
        host = Host(pickle.loads(connection.recv_bytes()))
    except Unusable as error:
        connection.send_bytes(to_json(["unusable", str(error)]).encode())
        return
    connection.send_bytes(to_json(["loaded", host.about]).encode())
    while True:
        for item in pickle.loads(connection.recv_bytes()):
            connection.send_bytes(host.run(*item).encode())
