"""Series that others give."""

import numpy as np

from gxpo.doctor import derived
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import Series


def log_of(**values: list[float]) -> RunLog:
    return RunLog(series={n: Series(np.arange(1.0, len(v) + 1), np.array(v), f"train/{n}") for n, v in values.items()})


def test_an_entropy_below_zero_is_no_tokens_entropy() -> None:
    log = log_of(entropy=[-0.36, -0.37, -0.36], reward=[0.1, 0.2, 0.3])
    derived.complete(log)
    assert "entropy" not in log.series and list(log.raw) == ["train/entropy"]
    assert log.notes == ["train/entropy is below 0: not of tokens, and not read"]


def test_an_entropy_of_rounded_zeros_stays() -> None:
    log = log_of(entropy=[0.1, -1e-7, 0.0])
    derived.complete(log)
    assert "entropy" in log.series and log.notes == []


def test_shares_in_percent_are_divided() -> None:
    log = log_of(truncated=[0.0, 50.0, 100.0])
    derived.complete(log)
    assert log.values("truncated").tolist() == [0.0, 0.5, 1.0]
