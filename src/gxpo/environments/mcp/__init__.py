"""Tools of MCP servers (Model Context Protocol) for any listed task: `env.mcp`, described in docs/mcp.md.

settings.py    entries of `env.mcp`
connection.py  one connection to a server, over stdio or streamable HTTP, by the official SDK
servers.py     servers that are shared or one for each episode, and started again when they end
results.py     arguments checked by a tool's JSON Schema, and results as texts of bounded length
episodes.py    the environment that rollouts play: `ToolEpisodes`
"""
