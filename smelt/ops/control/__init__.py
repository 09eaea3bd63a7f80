"""Control flow, and operators that are told a size known at run time."""
