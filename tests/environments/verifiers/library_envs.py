"""Environments of verifiers for the tests, as files of an author's; each is a module of its own."""

from __future__ import annotations

SUMS = """
import verifiers.v1 as vf

class Sum(vf.TaskData):
    answer: str

class SumTask(vf.Task[Sum]):
    @vf.stop
    async def once(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1

    @vf.reward(weight=2.0)
    async def correct(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def brief(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply or "") < 4)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply or ""))

class Sums(vf.TasksetConfig):
    most: int = 10
    fails: bool = False

class SumSet(vf.Taskset[SumTask, Sums]):
    def load(self):
        if self.config.fails:
            raise RuntimeError("the hub can't be reached")
        for a in range(self.config.most):
            yield SumTask(Sum(prompt=f"What is {a}+1?", system_prompt="Answer.", answer=str(a + 1)), self.config.task)

__all__ = ["SumSet"]
"""

# The keeper opens, and goes on twice; a reply "break" breaks the environment, "hang" stops it.
TALK = """
import asyncio
import verifiers.v1 as vf

class Talk(vf.TaskData):
    word: str

class TalkTask(vf.Task[Talk]):
    @vf.reward
    async def said(self, trace: vf.Trace) -> float:
        if "unscorable" in (trace.last_reply or ""):
            raise ValueError("no score")
        return sum(self.data.word in (m.content or "") for m in trace.assistant_messages) / 3

class TalkEnv(vf.SingleAgentEnv):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as talk:
            for k in range(3):
                segment = await talk.turn(f"say {task.data.word} ({k})")
                if segment.terminated:
                    break
                if "break" in segment.last_reply:
                    raise RuntimeError("the world broke")
                if "hang" in segment.last_reply:
                    await asyncio.sleep(600)

class TalkSet(vf.Taskset[TalkTask]):
    def load(self):
        for word in ("red", "blue", "green", "grey"):
            yield TalkTask(Talk(word=word, system_prompt="Obey."), self.config.task)

__all__ = ["TalkEnv", "TalkSet"]
"""

# Two seats; `judge` is not trained.
SEATS = """
import verifiers.v1 as vf

class SeatsConfig(vf.EnvConfig):
    first: vf.AgentConfig = vf.AgentConfig()
    second: vf.AgentConfig = vf.AgentConfig()
    frozen: bool = False

class SeatTask(vf.Task):
    @vf.reward
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply or ""))

class SeatsEnv(vf.Env[SeatsConfig]):
    async def setup(self, agents):
        agents.second.trainable = not self.config.frozen

    async def run(self, task, agents):
        await agents.first.run(task)
        await agents.second.run(task)

class SeatSet(vf.Taskset[SeatTask]):
    def load(self):
        for k in range(4):
            yield SeatTask(vf.TaskData(prompt=f"task {k}"), self.config.task)

__all__ = ["SeatsEnv", "SeatSet"]
"""

# A tool server for each rollout.
TOOLS = '''
import verifiers.v1 as vf

class Counted(vf.State):
    count: int = 0

class Counter(vf.Toolset[vf.ToolsetConfig, Counted]):
    TOOL_PREFIX = "counter"

    @vf.tool
    def bump(self, by: int) -> str:
        """Add to the count."""
        self.state.count += by
        return f"count is {self.state.count}"

class CountConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()

class CountTask(vf.Task[vf.TaskData, Counted, CountConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Counter(config.tools)]

    @vf.reward
    async def counted(self, trace: vf.Trace) -> float:
        return float(trace.state.count)

class Counts(vf.TasksetConfig):
    task: CountConfig = CountConfig()

class CountSet(vf.Taskset[CountTask, Counts]):
    def load(self):
        for k in range(2):
            yield CountTask(vf.TaskData(prompt=f"Count to {k + 2}."), self.config.task)

__all__ = ["CountSet"]

if __name__ == "__main__":
    Counter.run()
'''

# What needs something that is not here.
NEEDS = """
import verifiers.v1 as vf

class NeedsConfig(vf.TaskConfig):
    judge: vf.JudgeConfig = vf.JudgeConfig(base_url="http://127.0.0.1:9/v1")
    tools: vf.ToolsetConfig = vf.ToolsetConfig()

class NeedsTask(vf.Task[vf.TaskData, vf.State, NeedsConfig]):
    pass

class Needs(vf.TasksetConfig):
    image: str | None = None
    prompt: str | None = "x"
    task: NeedsConfig = NeedsConfig()

class NeedsSet(vf.Taskset[NeedsTask, Needs]):
    def load(self):
        yield NeedsTask(vf.TaskData(prompt=self.config.prompt, image=self.config.image), self.config.task)

__all__ = ["NeedsSet"]
"""

MODULES = {"vf_sums": SUMS, "vf_talk": TALK, "vf_seats": SEATS, "vf_tools": TOOLS, "vf_needs": NEEDS}
