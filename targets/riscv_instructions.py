"""Decoding of RISC-V instructions from their disassembly, as far as bounds of the stack need it."""

from __future__ import annotations

import re

from smelt.targets.instructions import TARGET, Instruction, Kind

_KINDS = {
    "j": Kind.BRANCH,
    "jal": Kind.CALL,
    "jalr": Kind.JUMP,
    "jr": Kind.JUMP,
    "ret": Kind.JUMP,
    "mret": Kind.JUMP,
    "lw": Kind.LOAD,
    "sw": Kind.STORE,
}
_CONDITIONAL = re.compile(r"b(eq|ne|lt|ge|gt|le)u?z?")
_NO_RESULT = re.compile(r"(s[bhwd]|fs[wd]|csr[wsc]i?|fence(\.i)?|nop|wfi|ecall|ebreak|unimp)")
_COMMENT = re.compile(r"\s+#.*")


def riscv_instruction(address: int, size: int, mnemonic: str, operands: str) -> Instruction:
    """Decode an instruction from its text as GNU objdump writes it.

    Arithmetic and loads of other sizes than a word have the kind `ALU`. Reads are left out.
    """
    text = _COMMENT.sub("", operands)
    kind = Kind.CONDITIONAL if _CONDITIONAL.fullmatch(mnemonic) else _KINDS.get(mnemonic, Kind.ALU)
    direct = kind in (Kind.BRANCH, Kind.CALL, Kind.CONDITIONAL)
    target = TARGET.search(text) if direct else None
    first, _, _ = text.partition(",")
    result = kind in (Kind.ALU, Kind.LOAD) and not _NO_RESULT.fullmatch(mnemonic)
    return Instruction(
        address=address,
        size=size,
        mnemonic=mnemonic,
        operands=text,
        kind=kind,
        writes=frozenset({first}) if result else frozenset(),
        target=int(target.group(1), 16) if target else None,
    )
