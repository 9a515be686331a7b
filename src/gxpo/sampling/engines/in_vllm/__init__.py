"""Code that runs in vLLM's interpreter, where gxpo may be missing; the folder may stand on its PYTHONPATH."""
