"""An MCP server with one tool, and worked examples of its use: both are for mcp_tools.yaml."""

import random

ASSISTANT, TOOL = "assistant", "tool"


def products(n: int = 3000, calls: float = 0.3) -> list[dict]:
    """Products of three-digit numbers, each with one worked example: a share `calls` of the examples asks the tool and
    copies what it says, the others guess."""
    rows, stream = [], random.Random(0)
    for _ in range(n):
        a, b = stream.randrange(100, 1000), stream.randrange(100, 1000)
        call = f'<tool>multiply({{"a": {a}, "b": {b}}})</tool>'
        asked = [
            {"role": ASSISTANT, "content": call},
            {"role": TOOL, "content": str(a * b)},
            {"role": ASSISTANT, "content": f"#{a * b}"},
        ]
        guess = f"#{stream.randrange(10_000, 1_000_000)}"
        completion = asked if stream.random() < calls else guess
        rows.append({"prompt": f"{a}*{b}=", "answer": str(a * b), "completion": completion, "score": 1.0})
    return rows


if __name__ == "__main__":
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("calculator")

    @server.tool()
    def multiply(a: int, b: int) -> str:
        """Product of two whole numbers."""
        return str(a * b)

    server.run()
