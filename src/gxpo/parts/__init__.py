"""Protocols of parts, their registry, options and ranges, and the definition of a method."""
