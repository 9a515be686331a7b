"""Training engines that hold the weights elsewhere: rows of tokens go out, log-probs come back, slopes go out."""

from gxpo.learning.remote.learner import RemoteLearner
from gxpo.learning.remote.rows import Rows

__all__ = ["RemoteLearner", "Rows"]
