"""Formulas of advantages and losses with their golden vectors: the standard library alone, and nothing of gxpo."""
