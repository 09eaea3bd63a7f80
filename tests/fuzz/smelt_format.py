"""Damaged `.smelt` archives: the text of the graph, its constants, and the zip around them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random

from smelt.errors import ConfigError
from smelt.frontend import load
from smelt.ir import Graph
from smelt.ir.archive import save
from smelt.ops import all_cases
from smelt.ops.case import build
from tests.fuzz import archives, models, onnx_seeds
from tests.fuzz.case import READ_FAILURES, Format, Step
from tests.fuzz.raw import hostile_name, scratched
from tests.support.tflite_networks import DIGITS

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\w.+-]*|%?\w[\w.]*|\S', re.ASCII)
_LARGEST = 200_000
"""Most bytes of a text that is split into words."""
_WORDS = (
    *(
        "0",
        "1",
        "-1",
        "2",
        "7",
        "64",
        "2147483647",
        "-2147483648",
        "9223372036854775808",
        "9" * 400,
    ),
    *("1e400", "nan", "-inf", "0x1p3", "true", "none", "f32", "i8", "i32", "bool", "u8", "i64"),
    *("[", "]", "{", "}", "(", ")", ",", "=", "<", ">", ":", "graph", "input", "output", "state"),
    *("const", "next", "length", '""', "[" * 3000, "((" * 200, "{" * 50),
)


@cache
def seeds() -> Mapping[str, bytes]:
    """Return the example, small ONNX networks, and a case of every operator."""
    graphs: dict[str, Graph] = {
        f"onnx {name}": load(proto.SerializeToString()).graph
        for name, proto in onnx_seeds.SMALL.items()
    }
    graphs["digits"] = load(DIGITS / "digits_int8.tflite").graph
    for case in all_cases():
        graphs.setdefault(case.op.name, build(case, case.dtypes[-1]))
    return {name: _archive(graph) for name, graph in graphs.items()}


def _archive(graph: Graph) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.smelt"
        save(graph, path)
        return path.read_bytes()


def damage(data: bytes, steps: Sequence[Step]) -> bytes:
    """Apply the steps to the archive."""
    for step in steps:
        data = archives.damaged(data, Random(step), _inner)
    return data


def _inner(name: str, data: bytes, rng: Random) -> bytes:
    if name.endswith(".npz"):
        return archives.damaged(data, rng, lambda _, array, r: archives.damaged_array(array, r))
    if len(data) > _LARGEST or rng.random() < 0.1:
        return scratched(data, rng)
    return _text(data.decode(errors="replace"), rng).encode(errors="surrogatepass")


def _text(text: str, rng: Random) -> str:
    """Replace, double or remove a word or a line of the text."""
    if rng.random() < 0.25:
        return _lines(text, rng)
    found = list(_TOKEN.finditer(text))
    if not found:
        return text
    token, other = rng.choice(found), rng.choice(found)
    word = rng.choice((*_WORDS, *[other[0]] * len(_WORDS)))
    if token[0].startswith('"') and rng.random() < 0.7:
        name = hostile_name(rng)
        word = rng.choice((f'"{name}"', f'"{name.encode("unicode_escape").decode()}"'))
    elif token[0].lstrip("-").isdigit() and rng.random() < 0.6:
        word = rng.choice(_WORDS[:13])
    kept = "" if rng.random() < 0.8 else f" {token[0]}"
    return text[: token.start()] + rng.choice((word, word, word, "")) + kept + text[token.end() :]


def _lines(text: str, rng: Random) -> str:
    lines = text.splitlines(keepends=True)
    if not lines:  # an earlier damage emptied the text
        return hostile_name(rng)
    place, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            del lines[place]
        case 1:
            lines.insert(other, lines[place])
        case 2:
            lines[place], lines[other] = lines[other], lines[place]
        case _:
            lines[place:] = lines[place:] * 2
    return "".join(lines)


FORMAT = Format(
    *("smelt", ".smelt", seeds, damage, models.check),
    variants=len(models.TARGETS),
    refusals=(*READ_FAILURES, ConfigError),  # not a C identifier: see `--name`
    weight=6,
)
