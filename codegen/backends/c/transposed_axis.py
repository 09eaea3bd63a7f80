"""An axis of a transposed convolution that is computed phase by phase: see `transposed_phases`."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.text.expressions import offset


@dataclass(frozen=True)
class PhaseAxis:
    """The loops over an axis: a phase at a time, and its outputs `step` apart.

    Texts are C: `taps` counts a phase's taps, `start` is the first input that they meet.
    """

    phases: int
    taps: str
    start: str
    outputs: int
    step: int


@dataclass(frozen=True)
class PhasedAxis:
    """Height or width of the image; texts are C, in which `p{name}` is the phase.

    Attributes:
        name: `y` or `x`.
        kernel, stride: as in the operator.
        before: what is cut off in front of the output.
        size: of the input.
        outputs: size of the output.
        together: pixels of a phase that are computed at a time.
    """

    name: str
    kernel: int
    stride: int
    before: int
    size: int
    outputs: int
    together: int = 1

    def taps_of(self, phase: int) -> range:
        """The taps that outputs of a phase meet, in the order of the inputs they meet."""
        return range((phase + self.before) % self.stride, self.kernel, self.stride)[::-1]

    @property
    def taps(self) -> str:
        """How many taps a phase has."""
        if self.kernel % self.stride == 0:
            return str(self.kernel // self.stride)
        added = self.before % self.stride
        first = f"(p{self.name} + {added}) % {self.stride}" if added else f"p{self.name}"
        return f"({self.kernel + self.stride - 1} - {first}) / {self.stride}"

    @property
    def start(self) -> str:
        """The first input that a phase's first output meets; `taps_{name}` is how many it does."""
        whole, added = divmod(self.before, self.stride)
        if not added:
            return f"{whole + 1} - taps_{self.name}"
        return (
            f"{offset(f'(p{self.name} + {added}) / {self.stride}', whole + 1)} - taps_{self.name}"
        )

    @property
    def loops(self) -> PhaseAxis:
        """The loops over the axis."""
        step = self.stride * self.together
        return PhaseAxis(self.stride, self.taps, self.start, self.outputs, step)

    @property
    def reaches_out(self) -> bool:
        """Whether windows leave the input, that of a pixel included which fills up a block."""
        for phase in range(min(self.stride, self.outputs)):
            taps = len(self.taps_of(phase))
            start = (phase + self.before) // self.stride + 1 - taps
            count = -(-(self.outputs - phase) // self.stride)
            last = start + count + -count % self.together + taps - 2
            if taps and (start < 0 or last >= self.size):
                return True
        return False
