"""`python -m bench`: run a benchmark by name, or else build-time, cortexm and float."""

from __future__ import annotations

import typer

from bench import (
    build_time,
    conformance,
    cortexm,
    gpu_float16,
    peers,
    planning,
    prices,
    published,
    quantization,
    quantized,
    ram,
    report,
    tour,
    vulkan,
)
from bench import float as floats

app = typer.Typer(help=__doc__, add_completion=False, invoke_without_command=True)
app.command("cortexm")(cortexm.main)
app.command("conformance")(conformance.main)
app.command("float")(floats.main)
app.command("published")(published.main)
app.command("quantized")(quantized.main)
app.command("quantization")(quantization.main)
app.command("ram")(ram.main)
app.command("planning")(planning.main)
app.command("prices")(prices.main)
app.command("build-time")(build_time.main)
app.command("vulkan")(vulkan.main)
app.command("gpu-float16")(gpu_float16.main)
app.command("peers")(peers.main)
app.command("report")(report.main)
app.command("tour")(tour.main)


@app.callback()
def everything(context: typer.Context) -> None:
    """Run build-time, cortexm and float if no benchmark is named."""
    if context.invoked_subcommand is None:
        build_time.main()
        cortexm.main()
        floats.main()


if __name__ == "__main__":
    app()
