"""Training engines that hold the weights elsewhere: rows of tokens go out, log-probs come back, slopes go out."""

from gxpo.learners.remote.learner import RemoteLearner
from gxpo.learners.remote.rows import Rows

__all__ = ["RemoteLearner", "Rows"]
