"""gxpo's methods inside other trainers: `gxpo.adapters.trl`, `gxpo.adapters.verl`."""
