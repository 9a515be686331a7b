"""Calls with a limit of work: workers that begin with the first call, and end with `close`."""

import math

from gxpo.environments.rewards.pool import Bounded


def test_closed_workers_end_and_the_next_call_starts_others():
    bounded = Bounded(math.sqrt, "root")
    assert bounded._workers is None and bounded.run([]) == []
    assert bounded.run([(4.0,), (9.0,)]) == [("ok", 2.0), ("ok", 3.0)]
    assert bounded._workers is not None
    [first] = bounded._workers._workers
    assert first is not None and first.process.poll() is None
    bounded.close()
    assert bounded._workers is None and first.process.poll() is not None
    bounded.close()
    assert bounded.run([(16.0,)]) == [("ok", 4.0)]
    bounded.close()
