"""An axis of a transposed convolution that is computed phase by phase (`transposed_phases.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.text.expressions import offset


@dataclass(frozen=True)
class PhaseLoops:
    """The loops along an axis: over phases, and over the outputs of a phase; texts are C.

    Attributes:
        phases: number of phases.
        taps: number of a phase's taps.
        start: position of the first input that a phase's first output reads.
        outputs: size of the output.
        step: distance of the outputs, or pairs of outputs, of a phase.
        together: pixels of a phase that are computed together.
    """

    phases: int
    taps: str
    start: str
    outputs: int
    step: int
    together: int


@dataclass(frozen=True)
class PhasedAxis:
    """The height or width of the image; texts are C, with `p{name}` as the phase.

    Attributes:
        name: `y` or `x`.
        kernel, stride: number of taps and stride of the operator.
        before: padding: outputs that are cut off before the first one.
        size: size of the input.
        outputs: size of the output.
        together: pixels of a phase that are computed together.
    """

    name: str
    kernel: int
    stride: int
    before: int
    size: int
    outputs: int
    together: int = 1

    def taps_of(self, phase: int) -> range:
        """Return the taps of a phase, in the order of the inputs that they are multiplied by."""
        return range((phase + self.before) % self.stride, self.kernel, self.stride)[::-1]

    @property
    def taps(self) -> str:
        """The number of taps of a phase."""
        if self.kernel % self.stride == 0:
            return str(self.kernel // self.stride)
        added = self.before % self.stride
        first = f"(p{self.name} + {added}) % {self.stride}" if added else f"p{self.name}"
        return f"({self.kernel + self.stride - 1} - {first}) / {self.stride}"

    @property
    def start(self) -> str:
        """The position of the first input that a phase's first output reads.

        In the C text, `taps_{name}` is the phase's number of taps.
        """
        whole, added = divmod(self.before, self.stride)
        if not added:
            return f"{whole + 1} - taps_{self.name}"
        return (
            f"{offset(f'(p{self.name} + {added}) / {self.stride}', whole + 1)} - taps_{self.name}"
        )

    @property
    def loops(self) -> PhaseLoops:
        """The loops along the axis."""
        step = self.stride * self.together
        return PhaseLoops(self.stride, self.taps, self.start, self.outputs, step, self.together)

    @property
    def reaches_out(self) -> bool:
        """Whether a window reaches beyond the input, also that of a pixel that fills a block."""
        for phase in range(min(self.stride, self.outputs)):
            taps = len(self.taps_of(phase))
            start = (phase + self.before) // self.stride + 1 - taps
            count = -(-(self.outputs - phase) // self.stride)
            last = start + count + -count % self.together + taps - 2
            if taps and (start < 0 or last >= self.size):
                return True
        return False
