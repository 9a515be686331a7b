"""An MCP server with one tool, and worked examples of its use: both are for mcp_tools.yaml."""

import random


def products(n: int = 4000, guesses: int = 1) -> list[dict]:
    """Products of two-digit numbers, each with worked examples: one asks the tool and copies what it says, the other
    `guesses` are wrong."""
    rows, stream = [], random.Random(0)
    for _ in range(n):
        a, b = stream.randrange(10, 100), stream.randrange(10, 100)
        asked = [
            {"role": "assistant", "content": f'<tool>multiply({{"a": {a}, "b": {b}}})</tool>'},
            {"role": "tool", "content": str(a * b)},
            {"role": "assistant", "content": f"#{a * b}"},
        ]
        guessed = [f"#{stream.randrange(100, 10_000)}" for _ in range(guesses)]
        completions = [asked, *guessed]
        rows.append(
            {
                "prompt": f"{a}*{b}=",
                "answer": str(a * b),
                "completions": completions,
                "scores": [1.0] * len(completions),
            }
        )
    return rows


if __name__ == "__main__":
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("calculator", log_level="ERROR")

    @server.tool()
    def multiply(a: int, b: int) -> str:
        """Product of two whole numbers."""
        return str(a * b)

    server.run()
