"""The compute shaders of a network: GLSL modules, and the pipelines that specialize them.

A kernel's template accesses element `i` of an operand as `INPUT(i)`; this module defines these
accessors. A network's program binds the whole arena once. Push constants give each dispatch the
offsets of its operands, followed by the call's numbers. For tests, each operand's exact range can
be bound as its own read-only or write-only descriptor, so that the validation layer detects
accesses outside of it.

Source: Vulkan 1.1 specification, chapters 9 (pipelines), 10 (specialization constants) and 14
(resource descriptors); GL_KHR_vulkan_glsl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Literal

from typing_extensions import override

from smelt.codegen.backends.vulkan.calls import MAX_CONSTANTS, ShaderCall
from smelt.codegen.backends.vulkan.glsl_functions import called_in, definitions
from smelt.codegen.lower.device import DeviceFunctions
from smelt.codegen.lower.function_names import FunctionNames
from smelt.codegen.lower.kernel import Input, LayerStruct, Operand, Output, Packed, Scratch
from smelt.codegen.text.parameters import Parameters
from smelt.codegen.text.render import HEADER, render_c

HALVES = frozenset({"float16_t", "f16vec4"})
"""Views of float16 data; shaders convert it to float32, except in the variant `half`."""

_LOADS = {"float16_t": ("float16_t", "float(%s)"), "f16vec4": ("uvec2", "vec4_of_halves(%s)")}
"""Type as which a view of float16 is loaded, and its conversion to float32.

Four are loaded as two words, which is faster.
"""

FEATURES = {"dot": "SMELT_VULKAN_DOT", "half": "SMELT_VULKAN_HALVES"}
"""Names in C of the device features that variants of modules need."""

Binding = Literal["shared", "exact"]
"""`shared`: one descriptor for the arena and one for the weights; `exact`: one for each operand."""

ELEMENT_BYTES = {
    "int": 4,
    "uint": 4,
    "float": 4,
    "ivec2": 8,
    "uvec2": 8,
    "vec2": 8,
    "ivec4": 16,
    "uvec4": 16,
    "vec4": 16,
    "float16_t": 2,
    "f16vec4": 8,
}
"""Sizes in bytes of the GLSL types as which operands can be accessed."""


@dataclass(frozen=True)
class ModuleParameters(Parameters):
    """Variables of every module's template, besides those of its call.

    Attributes:
        head: The first lines of the file.
        interface: Declarations of constants, buffers and accessors of operands.
        stored: GLSL type to which a result is converted before it is stored; empty if none.
        variant: See `Module.sources`.
    """

    head: str = ""
    interface: str = ""
    stored: str = ""
    variant: str = ""


@dataclass(frozen=True)
class Module:
    """One GLSL program.

    Attributes:
        name: A C identifier, and the stem of its file.
        sources: GLSL by variant; every device can run the variant `""`.
        constants: Names of its specialization constants, in the order of their IDs from 3 on.
        pushed: Names of its push constants in order: operands (their offsets), then numbers.
        users: Origins of the layers that it computes.
    """

    name: str
    sources: Mapping[str, str]
    constants: tuple[str, ...]
    pushed: tuple[str, ...]
    users: tuple[str, ...]

    @property
    def fast(self) -> str:
        """The variant for devices with a feature; empty if there is none."""
        return next((variant for variant in self.sources if variant), "")

    @property
    def feature(self) -> str:
        """Name in C of the feature that this variant needs; empty if there is none."""
        return FEATURES.get(self.fast, "")


@dataclass(frozen=True)
class Pipeline:
    """A specialized module.

    Attributes:
        name: A C identifier.
        module: Index of the module.
        local: Workgroup size in x, y and z.
        values: Values of the specialization constants.
    """

    name: str
    module: int
    local: tuple[int, int, int]
    values: tuple[int, ...]

    @property
    def numbers(self) -> tuple[int, ...]:
        """All specialization constants: the workgroup size, then the values."""
        return (*self.local, *self.values)


class Shaders(DeviceFunctions[ShaderCall]):
    """Collects modules and pipelines; equal ones are stored once."""

    shares_arena = True

    def __init__(self) -> None:
        self._modules: dict[tuple[str, tuple[str, ...]], int] = {}
        self._found: list[Module] = []
        self._pipelines: dict[tuple[int, tuple[int, int, int], tuple[int, ...]], Pipeline] = {}
        self._names = FunctionNames()

    @override
    def add(self, origin: str, call: ShaderCall) -> str:
        if len(call.constants) > MAX_CONSTANTS:
            raise ValueError(f"{call.stem} has more than {MAX_CONSTANTS} specialization constants")
        module = self._module(origin, call)
        values = tuple(call.constants.values())
        key = module, call.workgroup, values
        if key not in self._pipelines:
            name = f"{self._found[module].name}_{len(self._pipelines)}"
            self._pipelines[key] = Pipeline(name, module, call.workgroup, values)
        return self._pipelines[key].name

    @property
    def modules(self) -> tuple[Module, ...]:
        """The distinct modules in order of first use."""
        return tuple(self._found)

    @property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """The distinct pipelines in order of first use."""
        return tuple(self._pipelines.values())

    def _module(self, origin: str, call: ShaderCall) -> int:
        key = source(call), call.variants
        index = self._modules.get(key)
        if index is None:
            name = self._names.distinct(call.stem, call.details)
            index = self._modules[key] = len(self._found)
            sources = {variant: source(call, variant) for variant in call.variants}
            pushed = *(operand.name for operand in call.operands), *call.numbers
            self._found.append(Module(name, sources, tuple(call.constants), pushed, (origin,)))
        else:
            found = self._found[index]
            if origin not in found.users:
                self._found[index] = replace(found, users=(*found.users, origin))
        return index


def source(call: ShaderCall, variant: str = "", binding: Binding = "shared") -> str:
    """Return the GLSL of a call's module.

    Args:
        call: The call.
        variant: The variant of the module.
        binding: How operands are bound to memory.
    """
    own = ModuleParameters(
        head=f"{HEADER}\n#version 450",
        interface=_interface(call, binding, variant),
        stored=_conversion(call),
        variant=variant,
    )
    return render_c(call.template, own, call.parameters)


def _conversion(call: ShaderCall) -> str:
    """Return the float16 type to which results are converted; empty if they are not float16."""
    views = {call.views[o.name] for o in call.operands if isinstance(o, Output)}
    (halves,) = views & HALVES or {""}
    return halves


def _interface(call: ShaderCall, binding: Binding, variant: str) -> str:
    views = call.views.values()
    computes_halves = variant == "half"
    extensions = ["shader_16bit_storage"] if not HALVES.isdisjoint(views) else []
    extensions += ["shader_explicit_arithmetic_types_float16"] if computes_halves else []
    lines = [f"#extension GL_EXT_{name} : require" for name in extensions]
    lines.append("layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;")
    lines += [
        f"layout(constant_id = {number}) const int {name} = 1;"
        for number, name in enumerate(call.constants, 3)
    ]
    numbers = list(call.numbers)
    fields: list[str] = []
    if binding == "shared":
        fields += _declared("uint", [f"{operand.name}_start" for operand in call.operands])
    elif numbers:
        fields += [f"layout(offset = {4 * len(call.operands)}) int {numbers.pop(0)};"]
    fields += _declared("int", numbers)
    if fields:
        lines += ["layout(push_constant) uniform Pushed {", *(f"    {x}" for x in fields), "};"]
    bind = _shared if binding == "shared" else _exact
    bound = bind(call, computes_halves=computes_halves)
    function = definitions(called_in(*bound))
    return "\n".join([*lines, *bound, *([f"\n{function}"] if function else [])])


def _declared(kind: str, names: Sequence[str]) -> list[str]:
    """Return the declaration of a block's members, in lines of at most 96 columns."""
    return wrap(f"{kind} {', '.join(names)};", 92, subsequent_indent="    ") if names else []


def _seen(call: ShaderCall, operand: Operand, *, computes_halves: bool) -> tuple[str, str]:
    """Return an operand's GLSL type in memory, and an expression that reads an element `%s`."""
    view = call.views[operand.name]
    loads = isinstance(operand, Input | Packed) and not computes_halves
    return _LOADS.get(view, (view, "%s")) if loads else (view, "%s")


def _shared(call: ShaderCall, *, computes_halves: bool) -> list[str]:
    """Declare the arena and the weights, once for each type as which operands are accessed."""
    lines: list[str] = []
    written = {call.views[o.name] for o in call.operands if isinstance(o, Output | Scratch)}
    # A call that works in place may read words of the same bytes that it writes as float16.
    written |= {kind for kind, _ in _LOADS.values()} if call.in_place else set()
    declared: dict[str, None] = {}
    accessors: list[str] = []
    for operand in call.operands:
        view, read = _seen(call, operand, computes_halves=computes_halves)
        weights = isinstance(operand, Packed)
        block = f"{'weights' if weights else 'arena'}_{view}"
        if block not in declared:
            access = "" if not weights and view in written else "readonly "
            declared[block] = None
            lines += _buffer(int(weights), f"{access}buffer Block_{block}", f"{view} {block}")
        element = f"{block}[{operand.name}_start + uint(i)]"
        accessors.append(f"#define {operand.name.upper()}(i) {read % element}")
    return lines + accessors


def _exact(call: ShaderCall, *, computes_halves: bool) -> list[str]:
    """Declare each operand as a separate descriptor."""
    lines: list[str] = []
    for number, operand in enumerate(call.operands):
        (view, read), name = _seen(call, operand, computes_halves=computes_halves), operand.name
        match operand:
            case Input() | Packed() | LayerStruct():
                access = "readonly "
            case Output():
                access = "writeonly "
            case Scratch():
                access = ""
        lines += _buffer(number, f"{access}buffer Block_{name}", f"{view} {name}_elements")
        lines.append(f"#define {name.upper()}(i) {read % f'{name}_elements[i]'}")
    return lines


def _buffer(binding: int, block: str, elements: str) -> list[str]:
    """Declare a storage buffer with elements of one type."""
    return [f"layout(std430, set = 0, binding = {binding}) {block} {{", f"    {elements}[];", "};"]
