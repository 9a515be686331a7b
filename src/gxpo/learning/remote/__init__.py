"""Remote training engines, which hold the weights: they take rows of tokens, return log-probs and take slopes."""

from gxpo.learning.remote.learner import RemoteLearner
from gxpo.learning.remote.rows import Rows

__all__ = ["RemoteLearner", "Rows"]
