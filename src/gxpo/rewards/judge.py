"""The judges that rewards ask: see `gxpo.judges`."""

from gxpo.judges import Failure, FunctionJudge, Judge, JudgeFailure, LocalJudge, Messages, Server, ask_all

__all__ = ["Failure", "FunctionJudge", "Judge", "JudgeFailure", "LocalJudge", "Messages", "Server", "ask_all"]
