"""Every spatial kernel computes any rectangle of its output, in and out of rings of any length.

Kernels are found by `Kernel.spatial`, operators by their cases. Which input pixels an output
pixel needs is found by experiment: a NaN in the reference's input shows where it arrives. So a
ring is as short as the order of computation allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from smelt.codegen.kernels.base import Layout, Placement, Request, backend
from smelt.ir import Array, DType, Node, evaluate
from smelt.ops import all_cases
from smelt.ops.case import Case, build, random_array
from smelt.targets import get
from tests.kernels_host import (
    OUTPUT,
    READERS,
    Entry,
    Program,
    build_programs,
    check_read_by,
    compile_c,
    source_of,
)

TARGETS = ("host", "cortex-m0")
"""One whose processor multiplies into 64 bits, one whose does not: some kernels differ."""

DTYPES = (DType.FLOAT32, DType.INT8)


@dataclass(frozen=True)
class Image:
    """One node with an image in, an image out, and what it must compute."""

    name: str
    node: Node
    target: str
    x: Array
    y: Array
    first: Array
    last: Array

    @property
    def row_ring(self) -> tuple[Layout, Layout]:
        """Input and output in rings of rows: the input's as short as it can be."""
        rows = _shortest(self.first.min(axis=1) // self.width, self.last.max(axis=1) // self.width)
        source, target = self.whole
        return (
            Layout(source.row, source.pixel, rows * source.row),
            Layout(target.row, target.pixel, min(2, self.y.shape[1]) * target.row),
        )

    @property
    def pixel_ring(self) -> tuple[Layout, Layout]:
        """Input and output in rings of pixels that wrap within rows where they can."""
        pixels = _shortest(self.first.ravel(), self.last.ravel())
        source, target = self.whole
        if pixels % self.width == 0:
            pixels += 1
        out = 2 if self.y.shape[2] % 2 else 3
        return (
            Layout(source.row, source.pixel, pixels * source.pixel),
            Layout(target.row, target.pixel, out * target.pixel),
        )

    @property
    def whole(self) -> tuple[Layout, Layout]:
        """Both images whole."""
        return Layout.whole(self.node.input(0).type), Layout.whole(self.node.output.type)

    @property
    def width(self) -> int:
        return self.x.shape[2]

    def entry(self, layouts: tuple[Layout, Layout]) -> Entry:
        """The call of the kernel for these layouts, with buffers just large enough."""
        request = Request(get(self.target), placement=Placement((layouts[0],), layouts[1]))
        kernel = backend("c").find(self.node, request.target)
        assert not isinstance(kernel, str), kernel
        sizes = {0: layouts[0].ring or self.x.size, OUTPUT: layouts[1].ring or self.y.size}
        return Entry(self.node, kernel.lower(self.node, request), sizes)

    def check(self, found: Array, expected: Array, where: str) -> None:
        """Fail unless equal, floats up to rounding."""
        if self.node.output.type.dtype.is_float:
            tolerance = 1e-5 * float(np.ptp(self.y))
            np.testing.assert_allclose(found, expected.ravel(), 0, tolerance, err_msg=where)
        else:
            np.testing.assert_array_equal(found, expected.ravel(), where)


def _shortest(first: Array, last: Array) -> int:
    """Length of the ring that still holds `first` when everything up to `last` has come."""
    come = np.maximum.accumulate(last)
    return max(int((come - first).max()) + 1, 1)


def images() -> Iterator[Image]:
    """Cases of operators with a spatial kernel, one image each, for each target."""
    spatial = {kernel.op for kernel in backend("c").kernels if kernel.spatial}
    for case in all_cases():
        if type(case.op) not in spatial:
            continue
        for dtype in DTYPES:
            if dtype in case.dtypes:
                yield from _images(case, dtype)


def _images(case: Case, dtype: DType) -> Iterator[Image]:
    graph = build(case, dtype)
    (node,) = graph.nodes
    x, y = node.input(0).type, node.output.type
    fed = len(graph.inputs) == 1 and len(x.shape) == len(y.shape) == 4
    if not fed or x.shape[0] != 1 or y.shape[0] != 1:
        return
    pixels = random_array(x, np.random.default_rng(1))
    first, last = _dependence(case)
    forms: set[tuple[str, object]] = set()
    for target in map(get, TARGETS):
        found = backend("c").find(node, target)
        if isinstance(found, str) or not found.spatial:
            continue
        call = found.lower(node, Request(target))
        form = call.template, call.parameters.get("vectors")
        if form not in forms:
            forms.add(form)
            name = f"{case}-{dtype.value}-{target.name}"
            result = evaluate(graph, [pixels]).outputs[0]
            yield Image(name, node, target.name, pixels, result, first, last)


def _dependence(case: Case) -> tuple[Array, Array]:
    """For every output pixel `[h, w]`, the first and last input pixel that it needs.

    Pixels count row by row. An output pixel that needs none has its own place in that order.
    """
    graph = build(case, DType.FLOAT32)
    x, y = graph.inputs[0].type.shape, graph.outputs[0].type.shape
    count = x[1] * x[2]
    needs = np.zeros((count, y[1], y[2]), bool)
    for pixel in range(count):
        data = np.zeros(x, np.float32)
        data.reshape(count, -1)[pixel] = np.nan
        with np.errstate(invalid="ignore"):
            needs[pixel] = np.isnan(evaluate(graph, [data]).outputs[0][0]).any(axis=-1)
    first = needs.argmax(axis=0)
    last = count - 1 - needs[::-1].argmax(axis=0)
    idle = ~needs.any(axis=0)
    place = np.maximum.accumulate(np.where(idle, 0, last).ravel()).reshape(last.shape)
    return np.where(idle, place, first), np.where(idle, place, last)


IMAGES = tuple(images())
ALL = 10**6
TILES = ((ALL, ALL), (1, ALL), (2, ALL), (ALL, 1), (1, 1), (2, 3), (3, 2))
LAYOUTS = ("whole", "row_ring", "pixel_ring")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Program]:
    """Every image under every layout, compiled at once."""
    keys = [(image, layout) for image in IMAGES for layout in LAYOUTS]
    entries = [image.entry(getattr(image, layout)) for image, layout in keys]
    built = build_programs(entries, tmp_path_factory.mktemp("rectangles"))
    return {
        (image.name, layout): program for (image, layout), program in zip(keys, built, strict=True)
    }


Programs = dict[tuple[str, str], Program]
each_image = pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)


@each_image
def test_rectangles(image: Image, programs: Programs) -> None:
    program = programs[image.name, "whole"]
    _, height, width, _ = image.y.shape
    program.write(0, 0, image.x)
    for tile in TILES:
        program.write(OUTPUT, 0, np.zeros_like(image.y))
        quantum = program.entry.call.quantum
        down, across = (-(-t // q) * q for t, q in zip(tile, quantum, strict=True))
        for y in range(0, height, down):
            for x in range(0, width, across):
                program.call((y, min(y + down, height)), (x, min(x + across, width)))
        program.read(OUTPUT, 0, image.y.size)
    for tile, found in zip(TILES, program.run(), strict=True):
        image.check(found, image.y, f"tiles {tile}")


@each_image
def test_nothing_beside_the_rectangle(image: Image, programs: Programs) -> None:
    program = programs[image.name, "whole"]
    _, height, width, channels = image.y.shape
    if program.entry.call.quantum != (1, 1):
        pytest.skip("cannot compute a single pixel")
    y, x = height // 2, width // 2
    program.write(0, 0, image.x)
    program.read(OUTPUT, 0, image.y.size)
    program.call((y, y + 1), (x, x + 1))
    program.call((y, y), (0, width))
    program.call((0, height), (x, x))
    program.read(OUTPUT, 0, image.y.size)
    before, after = (a.reshape(height, width, channels).copy() for a in program.run())
    image.check(after[y, x], image.y[0, y, x], "the pixel")
    before[y, x] = after[y, x]
    np.testing.assert_array_equal(before.view(np.uint8), after.view(np.uint8))


@each_image
def test_rings_of_rows(image: Image, programs: Programs) -> None:
    program = programs[image.name, "row_ring"]
    source, target = image.row_ring
    assert source.ring is not None
    assert target.ring is not None
    _, height, width, _ = image.y.shape
    quantum = program.entry.call.quantum
    if quantum[0] > 1:
        pytest.skip("cannot compute a single row")
    come = 0
    for y in range(height):
        while come <= image.last[y].max() // image.width:
            program.write(0, come * source.row % source.ring, image.x[0, come])
            come += 1
        program.call((y, y + 1), (0, width))
        program.read(OUTPUT, y * target.row % target.ring, target.row)
    for y, row in enumerate(program.run()):
        image.check(row, image.y[0, y], f"row {y}")


@each_image
def test_rings_of_pixels(image: Image, programs: Programs) -> None:
    program = programs[image.name, "pixel_ring"]
    source, target = image.pixel_ring
    assert source.ring is not None
    assert target.ring is not None
    _, height, width, _ = image.y.shape
    if program.entry.call.quantum != (1, 1):
        pytest.skip("cannot compute a single pixel")
    pixels = image.x.reshape(-1, image.x.shape[3])
    come = 0
    for y, x in np.ndindex(height, width):
        while come <= image.last[y, x]:
            program.write(0, come * source.pixel % source.ring, pixels[come])
            come += 1
        program.call((y, y + 1), (x, x + 1))
        place = (y * target.row + x * target.pixel) % target.ring
        program.read(OUTPUT, place, target.pixel)
    for (y, x), pixel in zip(np.ndindex(height, width), program.run(), strict=True):
        image.check(pixel, image.y[0, y, x], f"pixel {y}, {x}")


def entries() -> list[Entry]:
    return [image.entry(getattr(image, layout)) for image in IMAGES for layout in LAYOUTS]


@pytest.mark.parametrize("compiler", READERS)
def test_compiles_without_warnings(compiler: str, tmp_path: Path) -> None:
    check_read_by(compiler, entries(), tmp_path)


def test_gcc_has_nothing_to_say(tmp_path: Path) -> None:
    (tmp_path / "kernels.c").write_text(source_of(entries()))
    compile_c(tmp_path / "kernels.c", ("gcc", "-std=c99", "-O0", "-c", "-o", "/dev/null"))


@pytest.mark.slow
def test_gcc_has_nothing_to_say_when_it_optimizes(tmp_path: Path) -> None:
    (tmp_path / "kernels.c").write_text(source_of(entries()))
    compile_c(tmp_path / "kernels.c", ("gcc", "-std=c99", "-O1", "-c", "-o", "/dev/null"))


def test_every_spatial_kernel_is_tested() -> None:
    tested = {type(image.node.op) for image in IMAGES}
    assert {kernel.op for kernel in backend("c").kernels if kernel.spatial} == tested
