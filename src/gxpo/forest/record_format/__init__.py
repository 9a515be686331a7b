"""The record format `gxpo.rollouts/1`: its schema, its reader and writer, and records from padded tensors."""
