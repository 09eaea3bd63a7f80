"""Damage bytes without regard to the format."""

from __future__ import annotations

from random import Random

WORDS = (0, 1, 2, 4, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def scratched(data: bytes, rng: Random) -> bytes:
    """Return the file with one random damage to its bytes."""
    if not data:
        return bytes(rng.getrandbits(8) for _ in range(rng.randrange(1, 16)))
    changed = bytearray(data)
    # Most formats begin with a short header or end with a short table of contents.
    near = rng.choice((len(data), min(len(data), 64), min(len(data), 512)))
    at = rng.randrange(near) if rng.random() < 0.7 else len(data) - 1 - rng.randrange(near)
    other, count = rng.randrange(len(data)), rng.randrange(1, rng.choice((2, 5, 17, 200)))
    match rng.randrange(8):
        case 0:
            changed[at] = rng.choice((0, 1, 2, 4, 8, 32, 127, 128, 254, 255))
        case 1:
            changed[at] = (changed[at] + rng.choice((1, -1))) % 256
        case 2:
            changed[at] ^= 1 << rng.randrange(8)
        case 3:
            changed[at : at + count] = changed[other : other + count]
        case 4:
            size = rng.choice((2, 4, 8))
            word = rng.choice((*WORDS, len(data), len(data) - at)) & ((1 << 8 * size) - 1)
            at -= at % size
            changed[at : at + size] = word.to_bytes(size, rng.choice(("little", "big")))
        case 5:
            del changed[at : at + count]
        case 6:
            changed[at:at] = changed[other : other + count]
        case _:
            del changed[at:]
    return bytes(changed)


def hostile_name(rng: Random) -> str:
    """Return a name that does harm if it is not escaped."""
    return rng.choice(NAMES)


NAMES = (
    *("", " ", "a b", "a" * 5000, "é✓", "../../x", "/etc/passwd", "%s%n", "\\", '"', "'", "$(x)"),
    *(
        "*/",
        "//",
        "#define x",
        "int",
        "x\ny",
        "x\r",
        "x\0y",
        "??/",
        "`x`",
        "{{ 7 * 7 }}",
        "{% x %}",
    ),
    *("\x1b[31mred", "\x1b]0;title\x07", "\x9b2J", "\x08\x08", "\u202egpj", "<b>bold</b>"),
    *("<script>alert(1)</script>", "[bold red]x[/]", "[/]", '" onload="x', "--force", "&amp;"),
)
