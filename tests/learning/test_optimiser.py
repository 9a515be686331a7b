"""Learning-rate schedules."""

import pytest

from gxpo.base.errors import ConfigError
from gxpo.learning.optimiser import Schedule


def test_values():
    # warm-up of 2: 1/2, 2/2; then four steps down from 1 to 0
    assert [Schedule("linear", 2, 6)(s) for s in range(8)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert [round(Schedule("cosine", 0, 4)(s), 6) for s in range(5)] == [1.0, 0.853553, 0.5, 0.146447, 0.0]
    assert [Schedule("constant", 3)(s) for s in range(4)] == [1 / 3, 2 / 3, 1.0, 1.0]


def test_refusals():
    with pytest.raises(ConfigError, match="did you mean 'cosine'"):
        Schedule("cosin", total=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a total"):
        Schedule("linear")
    with pytest.raises(ConfigError, match="needs a total"):
        Schedule("linear", warmup=5, total=5)
