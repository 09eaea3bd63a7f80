"""Static functions that layers share, although each layer keeps the function that calls them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from smelt.codegen.lower.kernel import BodyCost, JointBody, KernelCall, SharedBody


@dataclass(frozen=True)
class SharedFunctions(SharedBody):
    """A call of static functions that other layers can call too, with other arguments."""

    @staticmethod
    def of(
        own: KernelCall, shared: KernelCall, cost: BodyCost, specialized: BodyCost
    ) -> SharedFunctions:
        """Return the functions of a layer; those that both calls have do not count.

        Args:
            own: The call with the layer's own functions.
            shared: The call with shared functions.
            cost: The cost of the layer with these, and the bytes of these alone.
            specialized: The same for its own functions.
        """
        functions = tuple(i.key for i in own.inner if i not in shared.inner)
        family = tuple(i.key for i in shared.inner if i not in own.inner)
        return SharedFunctions(shared, cost, specialized, family, functions)

    @override
    def joined(self, bodies: Sequence[SharedBody]) -> JointBody:
        return JointBody(tuple(body.call for body in bodies), self.cost.bytes)
