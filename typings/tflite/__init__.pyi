# The package is generated from the TFLite schema and carries no types: its readers are Any.
from typing import Any

def __getattr__(name: str) -> Any: ...
