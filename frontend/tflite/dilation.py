"""Rewrites dilated convolutions that a converter has split into three operators.

Converters do this if the batch size is unknown. `SPACE_TO_BATCH_ND` distributes the pixels to
`block` images, a plain convolution runs on each, and `BATCH_TO_SPACE_ND` collects the results.
Along an axis, image `r` has pixels `r + i * block` of the padded input. So the window reads the
pixels that a window of dilation `block` would read. Results that come from padding are cropped. If
there is one spatial axis, a reshape before the convolution adds a second one, and a reshape after
it removes it again.

In the rewritten file, shapes of tensors between these operators are unknown; the importer infers
them.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.frontend.tflite.file import Spread, StoredGraph, StoredOperator, StoredTensor
from smelt.frontend.tflite.tensors import constant_array, tensor_type
from smelt.ir import DType

SPREAD, COLLECT = "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"
KINDS = (SPREAD, COLLECT)
REMEDY = (
    "Smelt supports it only around a convolution of stride 1 without padding: convert the network "
    "with a fixed batch size, so that dilated convolutions stay single operators"
)
_CONVOLUTIONS = ("CONV_2D", "DEPTHWISE_CONV_2D")
_LONGEST = 5
_RESHAPES = ("RESHAPE", "EXPAND_DIMS", "SQUEEZE")


def restored(graph: StoredGraph) -> StoredGraph:
    """Return a subgraph with each dilated convolution as one operator; the rest is unchanged.

    Raises:
        ModelError: block sizes or paddings contradict the types of their tensors.
    """
    if not any(operator.kind == SPREAD for operator in graph.operators):
        return graph
    return _Restoration(graph).run()


class _Restoration:
    """Rewrites one subgraph."""

    def __init__(self, graph: StoredGraph) -> None:
        self._graph = graph
        self._tensors = list(graph.tensors)
        self._operators = {operator.index: operator for operator in graph.operators}
        self._readers: dict[int, list[StoredOperator]] = {}
        for operator in graph.operators:
            for tensor in operator.inputs:
                self._readers.setdefault(tensor, []).append(operator)

    def run(self) -> StoredGraph:
        for operator in self._graph.operators:
            if operator.kind == SPREAD:
                self._restore(self._chain(operator))
        operators = tuple(self._operators.values())
        return replace(self._graph, tensors=tuple(self._tensors), operators=operators)

    def _chain(self, first: StoredOperator) -> list[StoredOperator]:
        """Return the operators from `first` on, as long as each result has a single reader."""
        chain = [first]
        while chain[-1].kind != COLLECT and len(chain) < _LONGEST and len(chain[-1].outputs) == 1:
            (tensor,) = chain[-1].outputs
            readers = self._readers.get(tensor, [])
            if len(readers) != 1 or readers[0].inputs[0] != tensor or tensor in self._graph.outputs:
                break
            chain.append(readers[0])
        return chain

    def _restore(self, chain: list[StoredOperator]) -> None:
        """Rewrite a chain if it is a dilated convolution."""
        if not _is_convolution(chain):
            return
        first, last = chain[0], chain[-1]
        made = [operator.outputs[0] for operator in chain]
        middle = len(chain) // 2
        spread = self._spread(first, last, 2 if middle == 1 else 1)
        if spread is None or not self._alike([first.inputs[0], *made[:middle]]):
            return
        if not self._alike(made[middle:]):
            return
        if middle == 1:
            convolution = chain[1]
            inputs = (first.inputs[0], *convolution.inputs[1:])
            self._replace(convolution, inputs, made[-1], spread)
        elif not self._restore_row(chain, spread):
            return
        del self._operators[first.index], self._operators[last.index]

    def _restore_row(self, chain: list[StoredOperator], spread: Spread) -> bool:
        """Rewrite a chain with one spatial axis, and return whether that was possible."""
        first, before, convolution, after, last = chain
        x, images, results = first.inputs[0], before.outputs[0], convolution.outputs[0]
        widened = self._widened(x, first.outputs[0], images)
        if widened is None:
            return False
        self._tensors[images], is_column = widened
        if is_column:
            (_, dilation), (_, padding) = spread.dilation, spread.padding
            spread = Spread((dilation, 1), (padding, (0, 0)))
        piece = self._tensors[results]
        rank = len(piece.shape)
        self._tensors[results] = replace(piece, shape=(1,) * rank, signature=(-1,) * rank)
        # Shapes given as operands are those of the split images; an axis stays the same.
        operands = before.inputs[1:] if before.kind == "EXPAND_DIMS" else ()
        self._replace(before, (x, *operands), images)
        self._replace(convolution, convolution.inputs, results, spread)
        self._replace(after, (results,), last.outputs[0])
        return True

    def _replace(
        self,
        operator: StoredOperator,
        inputs: tuple[int, ...],
        output: int,
        spread: Spread | None = None,
    ) -> None:
        changed = replace(operator, inputs=inputs, outputs=(output,), spread=spread)
        self._operators[operator.index] = changed

    def _spread(self, first: StoredOperator, last: StoredOperator, axes: int) -> Spread | None:
        """Return dilation and padding of the chain; None if it is not a dilated convolution."""
        blocks, counts = self._integers(first, 1), self._integers(first, 2)
        crops = self._integers(last, 2)
        if blocks is None or counts is None or crops is None:
            return None
        if len(blocks) != axes or not len(counts) == len(crops) == 2 * axes:
            return None
        if blocks != self._integers(last, 1) or min(blocks) < 1 or min(counts + crops) < 0:
            return None
        kept = [count - crop for count, crop in zip(counts, crops, strict=True)]
        if min(kept) < 0:
            return None
        if axes == 1:
            return Spread((1, blocks[0]), ((0, 0), (kept[0], kept[1])))
        return Spread((blocks[0], blocks[1]), ((kept[0], kept[1]), (kept[2], kept[3])))

    def _widened(self, x: int, pieces: int, images: int) -> tuple[StoredTensor, bool] | None:
        """Return the tensor of x reshaped to four dimensions, and whether its pixels are a column.

        The axis to add is the one that `images` has and `pieces` has not. None if that is unclear.
        """
        whole, rows, tensor = (self._tensors[i] for i in (x, pieces, images))
        if len(rows.shape) != 3 or len(tensor.shape) != 4 or len(whole.signature) != 3:
            return None
        length, sizes = rows.shape[1], tensor.shape[1:3]
        if length < 2 or sizes not in ((1, length), (length, 1)):
            return None
        is_column = sizes[1] == 1
        at = 2 if is_column else 1
        shape = (*whole.shape[:at], 1, *whole.shape[at:])
        signature = (*whole.signature[:at], 1, *whole.signature[at:])
        return replace(tensor, shape=shape, signature=signature), is_column

    def _integers(self, operator: StoredOperator, index: int) -> tuple[int, ...] | None:
        """Return the elements of a constant integer operand; None if it is not one."""
        if index >= len(operator.inputs) or operator.inputs[index] < 0:
            return None
        tensor = self._tensors[operator.inputs[index]]
        type_ = tensor_type(tensor)
        if tensor.data is None or type_.dtype not in (DType.INT32, DType.INT64):
            return None
        return tuple(int(n) for n in constant_array(tensor, type_).ravel())

    def _alike(self, tensors: list[int]) -> bool:
        """Return whether all tensors have the same element type and quantization."""
        stored = [self._tensors[tensor] for tensor in tensors]
        return len({(t.type_code, t.scales, t.zero_points) for t in stored}) == 1


def _is_convolution(chain: list[StoredOperator]) -> bool:
    """Return whether the kinds of a chain's operators are those of a dilated convolution."""
    convolution = chain[len(chain) // 2]
    reshapes = [operator.kind for operator in chain[1:-1] if operator is not convolution]
    return (
        len(chain) in (3, _LONGEST)
        and chain[-1].kind == COLLECT
        and convolution.kind in _CONVOLUTIONS
        and all(kind in _RESHAPES for kind in reshapes)
        and all(len(operator.outputs) == 1 for operator in chain)
        and chain[0].inputs[:1] > (-1,)
    )
