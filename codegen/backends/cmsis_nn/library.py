"""The description of CMSIS-NN for generated projects and exports."""

from __future__ import annotations

from smelt.codegen.backends.cmsis_nn import HEADER
from smelt.targets import ExternalLibrary, PackComponent

LIBRARY = ExternalLibrary(
    name="cmsis_nn",
    title="CMSIS-NN",
    maker="Arm",
    url="https://github.com/ARM-software/CMSIS-NN",
    tag="v7.0.0",  # the calls are valid for every version 7
    include="Include",
    header=HEADER,
    source="Source",
    pack=PackComponent("ARM", "CMSIS-NN", "CMSIS", "NN Lib"),
    templates="backends/cmsis_nn",
)
