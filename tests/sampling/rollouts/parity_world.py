"""A world of several agents in which any policy earns something: an agent is paid for an action of even length."""

import random

from gxpo import TimeStep


class Parity:
    """A planner and two workers act at once, twice; who writes a first character of even code is paid 1."""

    instructions = "Write."
    max_turns = 4
    fallback = "stay"
    agents = ("planner", "worker_0", "worker_1")

    def content(self, seed):
        return str(random.Random(seed).randint(0, 99))

    def reset(self, seed):
        self.turn = 0
        return {agent: TimeStep(self.content(seed), f"{seed}") for agent in self.agents}

    def acting(self):
        return [] if self.turn == 2 else list(self.agents)

    def claims(self, actions):
        return {agent: len(text) for agent, text in actions.items()}

    def step(self, actions):
        self.turn += 1
        over = self.turn == 2
        paid = {agent: float(bool(text) and ord(text[0]) % 2 == 0) for agent, text in actions.items()}
        return {
            agent: TimeStep("on", f"{self.turn}", reward=x, done=over, success=x > 0 if over else None)
            for agent, x in paid.items()
        }

    def legal(self, agent):
        return ["a", "b"]


def any_text(text, answer):
    return f"{answer}+0="
