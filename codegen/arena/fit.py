"""Check that a plan fits its memories."""

from smelt.codegen.arena.problem import Problem
from smelt.codegen.arena.result import Plan
from smelt.errors import DoesNotFit

_LARGEST = 5


def require_fit(problem: Problem, plan: Plan, remedy: str = "") -> None:
    """Raise if a memory needs more bytes in `plan` than it has.

    Args:
        problem: The buffers and memories.
        plan: Their offsets.
        remedy: A sentence on what helps this network, for the message; empty if there is nothing.

    Raises:
        DoesNotFit: The message has the numbers, the step with the most live bytes, and its largest
            buffers.
    """
    for memory in problem.memories:
        use = plan.use(memory.name)
        if memory.size is None or use.bytes <= memory.size:
            continue
        step = use.peak_step
        live = [(p.name, p.live_bytes(step)) for p in plan.live(memory.name, step)]
        largest = tuple(sorted(live, key=lambda entry: (-entry[1], entry[0]))[:_LARGEST])
        names = ", ".join(f"{name} {size:,}" for name, size in largest)
        if use.lower_bound > memory.size:
            verdict = f"no layout of these buffers takes less than {use.lower_bound:,} bytes"
        elif use.optimal:
            verdict = "no layout of these buffers takes less"
        else:
            verdict = f"the lower bound is {use.lower_bound:,} bytes, but no such layout was found"
        raise DoesNotFit(
            f"memory '{memory.name}' has {memory.size:,} bytes, {use.bytes:,} are needed "
            f"({use.bytes - memory.size:,} too many); {verdict}. The peak is at "
            f"{plan.step_name(step)}: {names} bytes. "
            f"{remedy}{' ' if remedy else ''}Use a board with more memory, a larger --max-ram if "
            "you gave one, or a smaller network.",
            needed=use.bytes,
            available=memory.size,
            largest=largest,
        )
