"""Faults in passes over the graph."""

from functools import partial

from tests.faults.fault import Fault

_of = partial(Fault, "pass")
_FOLDING = ("tests/passes/test_folding.py",)

FAULTS = (
    _of(
        "padding with stored zeros is treated as padding with real zeros",
        "codegen/passes/fusion/padding.py",
        "if stored != (0 if x.quant is None else x.zero_point) or",
        "if stored != 0 or",
        _FOLDING,
    ),
    _of(
        "padding is folded although a window may contain only padding",
        "codegen/passes/fusion/padding.py",
        "max(pads) <= (size - 1) * dilation",
        "max(pads) <= size * dilation",
        _FOLDING,
    ),
    _of(
        "a maximum is padded with zeros instead of the lowest number",
        "codegen/passes/fusion/padding.py",
        'lowest = float("-inf") if x.dtype.is_float else x.dtype.limits[0]',
        "lowest = 0 if x.dtype.is_float else x.dtype.limits[0]",
        _FOLDING,
    ),
    _of(
        "a layer is computed twice, with and without the clamp behind it",
        "codegen/passes/fusion/activations.py",
        "before = matcher.single_use_producer(x)",
        "before = matcher.producer(x)",
        _FOLDING,
    ),
    _of(
        "a maximum with a constant is treated as an upper clamp",
        "codegen/passes/fusion/activations.py",
        'if kind == "maximum" else (float("-inf"), limit)',
        'if kind == "minimum" else (float("-inf"), limit)',
        _FOLDING,
    ),
    _of(
        "the largest number of a tensor is not checked",
        "codegen/passes/quantized/function_chains.py",
        "int(known.high.max()) - lowest + 1)",
        "int(known.high.max()) - lowest)",
        ("tests/passes/test_functions.py",),
    ),
    _of(
        "a slice that reverses is treated as an identity",
        "smelt/ops/tensor/slice.py",
        "return node.input(0).type == node.output.type and set(self.steps) <= {1}",
        "return node.input(0).type == node.output.type",
        ("tests/passes/test_passes.py",),
    ),
    _of(
        "an operator is dropped although it computes an output of the network",
        "codegen/passes/cleanup/dead_nodes.py",
        "if not node.op.is_identity(node) or node.outputs[0] in results:",
        "if not node.op.is_identity(node):",
        ("tests/passes/test_passes.py",),
    ),
    _of(
        "one divided by x is replaced by x",
        "codegen/passes/cleanup/common_subexpressions.py",
        'commutes = kind in ("add", "mul")',
        'commutes = kind in ("add", "mul", "div")',
        ("tests/passes/test_patterns.py",),
    ),
    _of(
        "a neutral operand that broadcasts is dropped",
        "codegen/passes/cleanup/common_subexpressions.py",
        "if x is None or k is None or x.type != node.output.type or k.data is None:",
        "if x is None or k is None or k.data is None:",
        ("tests/passes/test_patterns.py",),
    ),
    _of(
        "a stack of matrices is treated as one matrix",
        "codegen/passes/fusion/fully_connected.py",
        "alone = stacked.ndim <= rank and all(size == 1 for size in stacked.shape[:-2])",
        "alone = all(size == 1 for size in stacked.shape[:-2])",
        _FOLDING,
    ),
)
