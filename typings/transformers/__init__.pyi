# The package's own __init__ imports every model for type checkers, which takes longer than all of gxpo.
from typing import Any

def __getattr__(name: str) -> Any: ...
