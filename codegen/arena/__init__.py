"""Static memory planning: the address of every buffer of a schedule.

`plan(problem)` is a pure, deterministic function. `validate(problem, plan)` checks its result and
shares no code with it. `require_fit(problem, plan)` compares the result with the sizes of the
memories.
May import nothing else of Smelt; `codegen`, `api` and `bench` may import it.
"""

from smelt.codegen.arena.fit import require_fit
from smelt.codegen.arena.planner import plan
from smelt.codegen.arena.problem import Buffer, InPlace, Memory, Problem, Span
from smelt.codegen.arena.result import Effort, MemoryUse, Placement, Plan
from smelt.codegen.arena.validate import validate

__all__ = [
    "Buffer",
    "Effort",
    "InPlace",
    "Memory",
    "MemoryUse",
    "Placement",
    "Plan",
    "Problem",
    "Span",
    "plan",
    "require_fit",
    "validate",
]
