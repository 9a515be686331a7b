"""A game of several turns for the verifiers library: find a treasure by what its keeper says of each move.

The keeper opens with the direction of the treasure, "right" or "up", and answers each move in the same way; a move is
the first letter of a direction. The reward is the share of the way that was made: 1.0 at the treasure, below 0 farther
away.
"""

import verifiers.v1 as vf

MOVES = {"r": (1, 0), "l": (-1, 0), "u": (0, 1), "d": (0, -1)}


def hint(x: int, y: int) -> str:
    """Name the direction of a treasure at (x, y) seen from (0, 0): along the longer way first."""
    if abs(x) >= abs(y):
        return "right" if x > 0 else "left"
    return "up" if y > 0 else "down"


class Place(vf.TaskData):
    x: int
    y: int


class Treasure(vf.Task[Place]):
    pass


class TreasureConfig(vf.TasksetConfig):
    size: int = 3  # farthest distance to each side, and half of the moves


class Keeper(vf.SingleAgentEnv):
    async def run(self, task, agents):
        x, y = task.data.x, task.data.y
        async with agents.agent.interaction(task) as game:
            for _ in range(2 * self.config.taskset.size):
                reply = await game.turn(hint(x, y))
                dx, dy = MOVES.get(reply.last_reply[:1], (0, 0))
                x, y = x - dx, y - dy
                if reply.terminated or x == y == 0:
                    break
        game.trace.record_reward("way", 1 - (abs(x) + abs(y)) / (abs(task.data.x) + abs(task.data.y)))
        game.trace.record_metric("found", float(x == y == 0))


class TreasureTaskset(vf.Taskset[Treasure, TreasureConfig]):
    def load(self):
        side = range(-self.config.size, self.config.size + 1)
        for x, y in ((x, y) for x in side for y in side if x or y):
            yield Treasure(Place(name=f"{x}, {y}", x=x, y=y), self.config.task)


__all__ = ["Keeper", "TreasureTaskset"]
