"""Faults in the protocol of the wire, on the device and on the host."""

from functools import partial

from tests.faults.fault import Fault

_of = partial(Fault, "wire")
_LINE = ("tests/devices/test_wire_line.py", "-k", "not mps2")
_COMMANDS = ("tests/devices/test_wire_line.py", "-k", "wrong_command or outside_of_a_region")

FAULTS = (
    _of(
        "the device does not compare the CRC of what it loads",
        "templates/emit/project/wire.c",
        "if (crc != expected) {",
        "if (crc != expected && chunk.bytes == 0u) {",
        _LINE,
    ),
    _of(
        "the device obeys a load whose command was damaged",
        "templates/emit/project/wire.c",
        "if (found != meant) {",
        "if (found != meant && chunk.bytes == 0u) {",
        _LINE,
    ),
    _of(
        "an offset and a size may wrap around 32 bits",
        "templates/emit/project/wire.c",
        "return chunk->offset <= whole && chunk->bytes <= whole - chunk->offset;",
        "return chunk->offset + chunk->bytes <= whole;",
        _COMMANDS,
    ),
    _of(
        "a number that exceeds 32 bits is taken modulo 2^32",
        "templates/emit/project/command.c",
        "if (*text == start || number > UINT32_MAX ||",
        "if (*text == start ||",
        _COMMANDS,
    ),
    _of(
        "a line's CRC includes the line before",
        "templates/emit/project/text.c",
        '    smelt_put("\\r\\n");\n    check = 0;',
        '    smelt_put("\\r\\n");',
        ("tests/devices/test_wire.py", "-k", "host and inferences_return"),
    ),
    _of(
        "a command while a step waits may name any step",
        "templates/emit/project/wire.c",
        "!read_step(session, arguments, &steps) || stepping->count - steps > 1u) {",
        "!read_step(session, arguments, &steps)) {",
        ("tests/devices/test_wire_line.py", "-k", "while_a_step_waits"),
    ),
    _of(
        "the CRC of a region is computed beyond its end",
        "templates/emit/project/wire.c",
        "} else if (!is_within(&chunk, region.bytes)) {",
        "} else if (chunk.offset > region.bytes) {",
        _COMMANDS,
    ),
    _of(
        "the CRC of bytes uses only one nibble of each",
        "templates/emit/project/text.c",
        "        crc ^= *byte++;\n        crc = (crc >> 4) ^ table[crc & 15u];\n",
        "        crc ^= *byte++;\n",
        ("tests/devices/test_wire.py", "-k", "host and inferences_return"),
    ),
    _of(
        "the host does not compare the CRC of a line",
        "boards/transport.py",
        "if crc != f\"{crc32(text.encode('ascii', errors='replace')):08x}]\":",
        "if not crc:",
        _LINE,
    ),
    _of(
        "the host accepts the answer to another command",
        "boards/transport.py",
        "if found[: len(numbers)] != list(map(str, numbers)) or len(found)",
        "if len(found)",
        (*_LINE[:2], "another_command"),
    ),
    _of(
        "the host does not compare the CRC of an output",
        "boards/chunks.py",
        'if f"{crc32(piece):08x}" != crc:',
        "if not crc:",
        (*_LINE[:2], "damaged_byte"),
    ),
    _of(
        "the host does not notice that the device restarted",
        "boards/wire.py",
        'if last["count"] != self._count + 1:',
        'if last["count"] == self._count:',
        (*_LINE[:2], "unexpected_count"),
    ),
)
