"""Decoding of Cortex-M instructions from their disassembly, as far as timing needs it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache


class Kind(StrEnum):
    """Kinds of instructions that have different timings."""

    ALU = "arithmetic, logic, moves, shifts"
    SHIFT_LONG = "64-bit shift"
    MUL = "32-bit product"
    MLA = "32-bit product and sum"
    DSP_MUL = "16-bit products, high words of products"
    LONG_MUL = "64-bit product"
    LONG_MLA = "64-bit product and sum"
    DIV = "division"
    LOAD = "load"
    STORE = "store"
    LOAD_PAIR = "load of two words"
    STORE_PAIR = "store of two words"
    LOAD_MANY = "load of many words"
    STORE_MANY = "store of many words"
    RETURN_MANY = "load of many words, one of them the program counter"
    BRANCH = "branch"
    CONDITIONAL = "conditional branch"
    CALL = "call"
    JUMP = "branch to a register"
    TABLE = "branch through a table"
    LOOP_START = "start of a low-overhead loop"
    LOOP_END = "end of a low-overhead loop"
    IT = "if-then"
    HINT = "no operation, hint"
    BARRIER = "barrier"
    SYSTEM = "special register"
    FLOAT = "float arithmetic, conversion, move"
    FLOAT_MLA = "float product and sum"
    FLOAT_DIV = "float division"
    FLOAT_SQRT = "float square root"
    FLOAT_LOAD = "float load"
    FLOAT_STORE = "float store"
    FLOAT_LOAD_MANY = "load of many floats"
    FLOAT_STORE_MANY = "store of many floats"
    VECTOR = "vector arithmetic"
    VECTOR_MUL = "vector product"
    VECTOR_MEMORY = "vector load or store"
    VECTOR_GATHER = "vector load or store with an address for each element"
    VECTOR_LANE = "move between a vector's lane and a register"
    VECTOR_PREDICATE = "vector predicate"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Instruction:
    """A decoded instruction.

    Attributes:
        address: address of its first halfword.
        size: 2 or 4 bytes.
        mnemonic, operands: text from the disassembler, without comments.
        kind: kind for the timings; `UNKNOWN` if the mnemonic is unknown.
        registers: number of words that it transfers, or of elements that it gathers.
        reads, writes: registers that it reads and writes, without the condition flags.
        double: whether it computes in double precision.
        indexed: whether its address is the sum of two registers.
        writes_back: whether it changes its base register.
        target: target address of a direct branch or call.
    """

    address: int
    size: int
    mnemonic: str
    operands: str = ""
    kind: Kind = Kind.UNKNOWN
    registers: int = 1
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    double: bool = False
    indexed: bool = False
    writes_back: bool = False
    target: int | None = None

    @property
    def after(self) -> int:
        """Return the address after this instruction."""
        return self.address + self.size

    @property
    def branches(self) -> bool:
        """Return whether execution may continue elsewhere than at the next instruction."""
        return self.kind in _BRANCHES or "pc" in self.writes

    def __str__(self) -> str:
        """Return the mnemonic and operands."""
        return f"{self.mnemonic} {self.operands}".strip()


def instruction(address: int, size: int, mnemonic: str, operands: str) -> Instruction:
    """Decode an instruction from its text as GNU objdump writes it."""
    kind = _kind(mnemonic, operands)
    reads, writes = _registers(kind, mnemonic, operands)
    if kind is Kind.LOAD_MANY and "pc" in writes:
        kind = Kind.RETURN_MANY
    target = TARGET.search(operands) if kind in _DIRECT else None
    return Instruction(
        address=address,
        size=size,
        mnemonic=mnemonic,
        operands=operands,
        kind=kind,
        registers=_count(kind, mnemonic, operands),
        reads=reads,
        writes=writes,
        double=".f64" in mnemonic,
        indexed=_INDEXED.search(operands) is not None,
        writes_back=_writes_back(operands),
        target=int(target.group(1), 16) if target else None,
    )


_DIRECT = (Kind.BRANCH, Kind.CONDITIONAL, Kind.CALL, Kind.LOOP_START, Kind.LOOP_END)
_BRANCHES = (*_DIRECT, Kind.JUMP, Kind.TABLE, Kind.RETURN_MANY)
TARGET = re.compile(r"\b([0-9a-f]+) <")
"""Finds the address in the operands of a direct branch or call."""
_INDEXED = re.compile(r"\[\w+, [rsfi]\w*")

_CONDITIONS = ("eq", "ne", "cs", "cc", "mi", "pl", "vs", "vc", "hi", "ls", "ge", "lt", "gt", "le")
_SCALAR: dict[Kind, str] = {
    Kind.ALU: (
        "mov movw movt mvn add addw adc adr sub subw sbc rsb neg and orr orn eor bic cmp cmn tst "
        "teq lsl lsr asr ror rrx rev rev16 revsh rbit clz bfi bfc sbfx ubfx ssat usat ssat16 "
        "usat16 sxtb sxth uxtb uxth sxtb16 uxtb16 sxtab sxtah uxtab uxtah sxtab16 uxtab16 sel "
        "pkhbt pkhtb qadd qsub qdadd qdsub sadd8 sadd16 ssub8 ssub16 uadd8 uadd16 usub8 usub16 "
        "qadd8 qadd16 qsub8 qsub16 uqadd8 uqadd16 uqsub8 uqsub16 shadd8 shadd16 shsub8 shsub16 "
        "uhadd8 uhadd16 uhsub8 uhsub16 sasx ssax uasx usax qasx qsax shasx shsax uhasx uhsax "
        "uqasx uqsax usad8 usada8 csel cset csetm csinc csinv csneg cinc cinv cneg sqshl uqshl "
        "srshr urshr sqrshr uqrshl"
    ),
    Kind.SHIFT_LONG: "lsll lsrl asrl sqshll uqshll srshrl urshrl sqrshrl uqrshll",
    Kind.MUL: "mul",
    Kind.MLA: "mla mls",
    Kind.DSP_MUL: (
        "smulbb smulbt smultb smultt smulwb smulwt smlabb smlabt smlatb smlatt smlawb smlawt smuad "
        "smuadx smusd smusdx smlad smladx smlsd smlsdx smmul smmulr smmla smmlar smmls smmlsr"
    ),
    Kind.LONG_MUL: "smull umull",
    Kind.LONG_MLA: (
        "smlal umlal umaal smlalbb smlalbt smlaltb smlaltt smlald smlaldx smlsld smlsldx"
    ),
    Kind.DIV: "sdiv udiv",
    Kind.LOAD: "ldr ldrb ldrh ldrsb ldrsh ldrex ldrexb ldrexh lda ldab ldah",
    Kind.STORE: "str strb strh strex strexb strexh stl stlb stlh",
    Kind.LOAD_PAIR: "ldrd",
    Kind.STORE_PAIR: "strd",
    Kind.LOAD_MANY: "ldm ldmia ldmdb ldmfd pop",
    Kind.STORE_MANY: "stm stmia stmdb stmea push",
    Kind.BRANCH: "b",
    Kind.CONDITIONAL: "cbz cbnz",
    Kind.CALL: "bl",
    Kind.JUMP: "bx blx bxns blxns",
    Kind.TABLE: "tbb tbh",
    Kind.LOOP_START: "dls wls dlstp wlstp",
    Kind.LOOP_END: "le letp",
    Kind.HINT: "nop yield sev wfe wfi pld pldw pli lctp clrm",
    Kind.BARRIER: "isb dsb dmb ssbb pssbb clrex",
    Kind.SYSTEM: "mrs msr cpsid cpsie cps svc bkpt udf",
}
_FLOAT: dict[Kind, str] = {
    Kind.FLOAT: (
        "vmov vabs vneg vadd vsub vmul vnmul vcmp vcmpe vcvt vcvtr vcvta vcvtn vcvtp vcvtm vcvtb "
        "vcvtt vrinta vrintn vrintp vrintm vrintx vrintz vrintr vsel vseleq vselge vselgt vselvs "
        "vmaxnm vminnm vmrs vmsr vins vmovx vscclrm"
    ),
    Kind.FLOAT_MLA: "vmla vmls vnmla vnmls vfma vfms vfnma vfnms",
    Kind.FLOAT_DIV: "vdiv",
    Kind.FLOAT_SQRT: "vsqrt",
    Kind.FLOAT_LOAD: "vldr",
    Kind.FLOAT_STORE: "vstr",
    Kind.FLOAT_LOAD_MANY: "vldm vldmia vldmdb vpop vlldm",
    Kind.FLOAT_STORE_MANY: "vstm vstmia vstmdb vpush vlstm",
}
_BY_NAME = {name: kind for kind, names in (_SCALAR | _FLOAT).items() for name in names.split()}
_VECTOR_PREDICATE = ("vpst", "vpt", "vpnot", "vctp")
# VMLA… and VRMLA… are sums of products; the other names begin with their operation.
_VECTOR_PRODUCT = re.compile(r"v(q?r?d?ml|q?r?d?mul|fma|fms|cmul|cmla)")
_VECTOR_MEMORY = re.compile(r"v(ldr|str|ld[24]|st[24])")
_VECTOR_PREFIXES = (
    "vadd vsub vadc vsbc vcadd vhcadd vhadd vhsub vrhadd vqadd vqsub vabs vqabs vneg vqneg vabd "
    "vabav vmax vmin vand vorr vorn veor vbic vmvn vmov vqmov vdup vidup vddup viwdup vdwdup vcmp "
    "vpsel vsh vsli vsri vrsh vqsh vqrsh vrev vbrsr vcls vclz vcvt vrint"
)
_VECTOR = tuple(_VECTOR_PREFIXES.split())


@cache
def _scalar(name: str) -> Kind:
    """Return the kind of a mnemonic without its width; conditions and flags suffixes may follow."""
    conditional = name[:-2] if name.endswith(_CONDITIONS) else name
    if name not in _BY_NAME and conditional == "b":
        return Kind.CONDITIONAL
    for candidate in (name, conditional, name.removesuffix("s"), conditional.removesuffix("s")):
        if candidate in _BY_NAME:
            return _BY_NAME[candidate]
    return Kind.IT if re.fullmatch("it[te]{0,3}", name) else Kind.UNKNOWN


def _kind(mnemonic: str, operands: str) -> Kind:
    name = mnemonic.partition(".")[0]
    if not name.startswith("v"):
        return _scalar(name)
    if name.startswith(_VECTOR_PREDICATE):
        return Kind.VECTOR_PREDICATE
    if not re.search(r"\bq\d", operands):
        # The disassembler writes vector lanes as lanes of D registers.
        lane = name == "vmov" and "[" in operands
        return Kind.VECTOR_LANE if lane else _scalar(name)
    if _VECTOR_MEMORY.match(name):
        return Kind.VECTOR_GATHER if re.search(r"\[.*\bq\d", operands) else Kind.VECTOR_MEMORY
    if _VECTOR_PRODUCT.match(name):
        return Kind.VECTOR_MUL
    if name == "vmov" and "[" in operands:
        return Kind.VECTOR_LANE
    return Kind.VECTOR if name.startswith(_VECTOR) else Kind.UNKNOWN


def _count(kind: Kind, mnemonic: str, operands: str) -> int:
    """Return the number of words transferred, or of elements gathered or scattered."""
    if kind in (Kind.LOAD_PAIR, Kind.STORE_PAIR):
        return 2
    if kind is Kind.VECTOR_GATHER:
        return 128 // int(re.sub(r"\D", "", mnemonic.partition(".")[2]) or 32)
    found = re.search(r"\{(.*)\}", operands)
    if found is None:
        return 1
    names = listed_registers(found.group(1))
    doubles = sum(name.startswith("d") for name in names)
    return len(names) + doubles


def listed_registers(text: str) -> list[str]:
    """Return the registers in a list such as `r0, r4-r7, lr`."""
    names: list[str] = []
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if dash and first[1:].isdecimal() and last[1:].isdecimal():
            names += [f"{first[0]}{i}" for i in range(int(first[1:]), int(last[1:]) + 1)]
        else:
            names.append(part)
    return names


_REGISTER = re.compile(r"\b(?:r\d+|[sdq]\d+|s[blp]|fp|ip|lr|pc)\b")
ALIASES = {"sb": "r9", "sl": "r10", "fp": "r11", "ip": "r12"}
_STORES = (Kind.STORE, Kind.STORE_PAIR, Kind.STORE_MANY, Kind.FLOAT_STORE, Kind.FLOAT_STORE_MANY)
_NO_RESULT = frozenset(
    {Kind.BRANCH, Kind.CONDITIONAL, Kind.JUMP, Kind.TABLE, Kind.IT, Kind.HINT, Kind.BARRIER}
)
_ACCUMULATES = re.compile(r"(bfi|bfc|movt|v\w*ml[as]|vf\w*m[as])")
_TWO_SOURCES = re.compile(r"(add|adc|sub|sbc|and|orr|eor|bic|lsl|lsr|asr|ror|mul)")
_WRITES_NOTHING = re.compile(r"(cmp|cmn|tst|teq|vcmp|vpt|vst|msr)")
_BASE = re.compile(r"\[(\w+)")
_TWO_RESULTS = (Kind.LONG_MUL, Kind.LONG_MLA, Kind.LOAD_PAIR, Kind.SHIFT_LONG)


def _registers(kind: Kind, mnemonic: str, operands: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the registers that are read and those that are written."""
    if kind in (Kind.LOAD_MANY, Kind.STORE_MANY, Kind.FLOAT_LOAD_MANY, Kind.FLOAT_STORE_MANY):
        base, _, listed = operands.rpartition("{")
        bases = _names(base) or ["sp"]
        many = [ALIASES.get(name, name) for name in listed_registers(listed.rstrip("}"))]
        if kind in (Kind.STORE_MANY, Kind.FLOAT_STORE_MANY):
            return frozenset(bases + many), frozenset(bases)
        return frozenset(bases), frozenset(bases + many)
    names = _names(operands)
    base = _BASE.search(operands)
    changed = _names(base.group(1)) if base and _writes_back(operands) else []
    if kind in _STORES or kind in _NO_RESULT or _WRITES_NOTHING.match(mnemonic):
        return frozenset(names), frozenset(changed)
    if kind is Kind.CALL:
        return frozenset(names), frozenset({"lr"})
    results = 2 if kind in _TWO_RESULTS else 1
    writes, reads = names[:results], names[results:]
    short = operands.count(",") == 1 and _TWO_SOURCES.match(mnemonic)  # `add r0, r1`
    adds = kind in (Kind.LONG_MLA, Kind.SHIFT_LONG) or _ACCUMULATES.match(mnemonic)
    if short or adds or len(names) == 1:
        reads = names
    return frozenset(reads), frozenset(writes + changed)


def _writes_back(operands: str) -> bool:
    return "]!" in operands or "], " in operands or "!, {" in operands


def _names(text: str) -> list[str]:
    found: list[str] = _REGISTER.findall(re.sub(r"<.*?>", "", text))
    return [ALIASES.get(name, name) for name in found]
