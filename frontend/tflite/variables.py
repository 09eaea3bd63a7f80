"""Variables of a TFLite file: VAR_HANDLE, READ_VARIABLE, ASSIGN_VARIABLE and CALL_ONCE.

A variable that is read becomes a state of the graph: the first read is its value before an
inference, the last assignment its value after it. A subgraph that CALL_ONCE calls assigns the
values before the first inference. Variables without such a value are real zero at first, as in
TensorFlow Lite Micro.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
import tflite

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.tflite.file import StoredOperator
from smelt.frontend.tflite.operands import ImportedNetwork, options_of
from smelt.frontend.tflite.operation import TfliteOperation
from smelt.ir import Array, Node, Origin, State, TensorType, Value
from smelt.ir.budget import spend
from smelt.ops.tensor.copy import Copy

HANDLE, READ, ASSIGN, CALL = "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE"
KINDS = (HANDLE, READ, ASSIGN, CALL)


class Variables:
    """The variables of one subgraph, while its operators are imported in order."""

    def __init__(
        self,
        operators: Sequence[StoredOperator],
        network: ImportedNetwork,
        assigned_by: Callable[[int], Mapping[str, Array]],
    ) -> None:
        """Set up.

        Args:
            operators: the subgraph's operators.
            network: the graph that is made of them.
            assigned_by: returns the constants that another subgraph, given by its number, assigns.
        """
        self._network = network
        self._assigned_by = assigned_by
        self._names = _names(operators)
        self._assigned = {self._name(o) for o in operators if o.kind == ASSIGN}
        self._initial: dict[str, Array] = {}
        self._before: dict[str, Value] = {}
        self._now: dict[str, Value] = {}
        self._origins: dict[str, Origin] = {}

    def convert(self, operation: TfliteOperation, stored: StoredOperator) -> None:
        """Import an operator of `KINDS`.

        Raises:
            ModelError: the operator uses an unknown variable or subgraph.
            UnsupportedError: a variable has several types, or does not start with constants.
        """
        if stored.kind == READ:
            self._read(operation, self._name(stored), stored.outputs[0])
        elif stored.kind == ASSIGN:
            name = self._name(stored)
            self._now[name], self._origins[name] = operation.input(1), operation.origin
        elif stored.kind == CALL:
            index = operation.options(tflite.CallOnceOptions).integer("InitSubgraphIndex")
            self._initial |= self._assigned_by(index)

    def _read(self, operation: TfliteOperation, name: str, tensor: int) -> None:
        type_ = self._network.type(tensor)
        known = self._now.get(name)
        if known is not None:
            if known.type != type_:
                raise UnsupportedError(
                    f"{operation} reads variable '{name}' as {type_}, but it is {known.type}: "
                    "convert the network so that each variable has one type"
                )
            self._network.alias(tensor, known)
        elif name in self._assigned:
            self._before[name] = self._now[name] = self._network.value(tensor)
        else:
            self._network.set_constant(tensor, self._start(name, type_))

    def _start(self, name: str, type_: TensorType) -> Array:
        """Return a variable's value before the first inference."""
        spend(f"variable '{name}'", type_.size)
        found = self._initial.get(name)
        if found is None:
            zero = type_.zero_point if type_.is_quantized else 0
            return np.full(type_.shape, zero, type_.dtype.numpy)
        if found.dtype != type_.dtype.numpy or found.size != type_.size:
            raise ModelError(
                f"variable '{name}' is {type_}, but starts with {found.dtype} elements of shape "
                f"{list(found.shape)}"
            )
        return found.reshape(type_.shape)

    @property
    def constants(self) -> dict[str, Array]:
        """The values that were assigned to variables.

        Raises:
            UnsupportedError: one is not constant.
        """
        for name, value in self._now.items():
            if not value.is_constant:
                raise UnsupportedError(
                    f"variable '{name}' starts with '{value.name}', which is not constant: convert "
                    "the network so that variables start with constants"
                )
        return {name: value.array for name, value in self._now.items()}

    def states(self, results: AbstractSet[Value]) -> Iterator[State]:
        """Yield the variables as states, with a copy of each new value that has no own buffer.

        `results` are the results of the graph's nodes.

        Raises:
            ModelError: a variable's new value has another type.
        """
        taken = set[Value]()
        for name, before in self._before.items():
            after = self._now[name]
            if after.type != before.type:
                raise ModelError(
                    f"variable '{name}' is {before.type}, but {after.type} is assigned to it"
                )
            if after in taken or after not in results:
                copy = Value(self._network.unique(f"{before.name}:after"), before.type)
                self._network.add(Node(Copy(), (after,), (copy,), self._origins[name]))
                after = copy
            taken.add(after)
            yield State(before, after, self._start(name, before.type))

    def _name(self, operator: StoredOperator) -> str:
        """Return the name of the variable that an operator reads or assigns."""
        tensor = operator.inputs[0] if operator.inputs else -1
        if tensor not in self._names:
            raise ModelError(
                f"{operator.kind} #{operator.index} uses a variable that no VAR_HANDLE makes: the "
                "file is corrupted"
            )
        return self._names[tensor]


def _names(operators: Sequence[StoredOperator]) -> dict[int, str]:
    """Return the names of the variables, by the tensors that VAR_HANDLE makes."""
    found: dict[int, str] = {}
    for operator in operators:
        if operator.kind == HANDLE:
            options = options_of(
                operator, tflite.VarHandleOptions, f"{HANDLE} #{operator.index}", optional=True
            )
            container, name = options.text("Container"), options.text("SharedName")
            found |= dict.fromkeys(operator.outputs, f"{container}/{name}" if container else name)
    return found
