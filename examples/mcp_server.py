"""An MCP server with one tool, worked examples of its use, and their reward: all three are for mcp_tools.yaml."""

import random


def products(n: int = 4000, guesses: int = 1) -> list[dict]:
    """Distinct products of two-digit numbers, each with worked examples: one asks the tool and copies what it says, the
    other `guesses` are wrong."""
    rows, stream = [], random.Random(0)
    for pair in stream.sample(range(90 * 90), n):
        a, b = 10 + pair // 90, 10 + pair % 90
        asked = [
            {"role": "assistant", "content": f'<tool>multiply({{"a": {a}, "b": {b}}})</tool>'},
            {"role": "tool", "content": str(a * b)},
            {"role": "assistant", "content": str(a * b)},
        ]
        guessed = [str(stream.randrange(100, 10_000)) for _ in range(guesses)]
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


def right(completion: str, answer: str) -> dict[str, float]:
    """Reward of the product in digits; `math` would also pay the question, `73*24`, which has the same value."""
    return {"correct": float(completion == answer)}


if __name__ == "__main__":
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("calculator", log_level="ERROR")

    @server.tool()
    def multiply(a: int, b: int) -> str:
        """Product of two whole numbers."""
        return str(a * b)

    server.run()
