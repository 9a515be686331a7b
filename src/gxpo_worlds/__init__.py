"""Toy environments: grid worlds, screens, a shop, questions with tools; named as in `task: sokoban`.

Each is a class with `reset(seed)` and `step(action)` that speaks text or shows pictures, as a user's own
environment is.
"""

WORLDS = {
    "frozenlake": "gxpo_worlds.frozenlake:FrozenLake",
    "sokoban": "gxpo_worlds.sokoban:Sokoban",
    "keydoor": "gxpo_worlds.keydoor:KeyDoor",
    "shop": "gxpo_worlds.shop:Shop",
    "toolqa": "gxpo_worlds.toolqa:ToolQA",
    "zoom": "gxpo_worlds.zoom:Zoom",
    "buttons": "gxpo_worlds.buttons:Buttons",
    # of several agents
    "tictactoe": "gxpo_worlds.tictactoe:TicTacToe",
    "nim": "gxpo_worlds.nim:Nim",
    "hallway": "gxpo_worlds.hallway:Hallway",
    "paths": "gxpo_worlds.paths:Paths",
    "taxes": "gxpo_worlds.taxes:Taxes",
    "secrets": "gxpo_worlds.secrets:Secrets",
    "directions": "gxpo_worlds.directions:Directions",
}

__all__ = ["WORLDS"]
