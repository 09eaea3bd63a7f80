"""The loop of a kernel over images."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.kernels.c.images import Frame


@dataclass(frozen=True)
class ImageLoop:
    """Images one behind the other; sizes in elements, 0 for a single image."""

    batch: int
    input_size: int
    output_size: int

    @staticmethod
    def of(frame: Frame) -> ImageLoop:
        """Those of a frame."""
        several = frame.batch > 1
        return ImageLoop(
            frame.batch,
            frame.input_size if several else 0,
            frame.output_size if several else 0,
        )
