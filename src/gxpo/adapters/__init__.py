"""Adapters for other trainers: `gxpo.adapters.trl`, `gxpo.adapters.verl`."""
