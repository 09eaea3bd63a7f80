"""`smelt partition`: show which backend runs each layer, and why."""

from __future__ import annotations

from rich.console import Console

from smelt.api.compile import compile_model
from smelt.cli.options import BuildGroup, JsonOption, Model
from smelt.cli.output import dumper, notes, print_json, progress_console
from smelt.cli.show import report as show


def partition(
    model: Model,
    *,
    network: BuildGroup,
    json_: JsonOption = False,
) -> None:
    """Show the backend of each layer, the alternatives, and why each was rejected.

    `smelt partition model.tflite --target cortex-m4`

    `smelt partition model.tflite --target cortex-m4 --backends cmsis_nn,dsp --place conv1=c`
    """
    options = network.build_options()
    console = progress_console(json_)
    artifact = compile_model(model, options, dumper(network.dump_after))
    notes(console, artifact.imported.notes)
    if json_:
        print_json(artifact.report["layers"])
    else:
        show.partition(Console(), artifact.report, candidates=True)
