"""What is checked of an ONNX file before its operators are converted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import onnx
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from smelt.errors import ModelError, UnsupportedError

LARGEST_NETWORK = 1 << 16
"""Operators that a network may have, with functions inlined and loops written out."""

LONGEST_NAME = 1 << 14
"""Characters of a name; names made by joining those of a network's parts are shorter."""

_IGNORED = frozenset({"doc_string"})
"""Texts that nothing reads."""


def messages(message: Any) -> Iterator[Any]:
    """A message and all those inside of it, whatever field holds them."""
    # A stack of its own: recursion by message would be slow.
    waiting = [message]
    while waiting:
        owner = waiting.pop()
        yield owner
        for name, repeated in _fields(owner.DESCRIPTOR)[1]:
            if repeated:
                waiting.extend(getattr(owner, name))
            elif owner.HasField(name):
                waiting.append(getattr(owner, name))


def require_text(message: Any) -> None:
    """Check that every name in a message is UTF-8, which protocol buffers leave to their reader.

    Raises:
        ModelError: one is not, or is longer than `LONGEST_NAME`.
    """
    for owner in messages(message):
        for name, repeated in _fields(owner.DESCRIPTOR)[0]:
            found = getattr(owner, name)
            for text in found if repeated else (found,):
                if isinstance(text, bytes):
                    raise ModelError(
                        f"the file holds the {name} {text!r}, which is not UTF-8: it is damaged"
                    )
                if len(text) > LONGEST_NAME:
                    raise ModelError(
                        f"the file holds the {name} '{text[:40]}…' of {len(text):,} characters; "
                        f"{LONGEST_NAME:,} are the most that a name may have"
                    )


@cache
def _fields(kind: Descriptor) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """The fields of a message that are texts, those that are messages; whether each repeats."""

    def of(wanted: int) -> list[tuple[str, bool]]:
        return [
            (f.name, f.is_repeated)
            for f in kind.fields
            if f.type == wanted and f.name not in _IGNORED
        ]

    return of(FieldDescriptor.TYPE_STRING), of(FieldDescriptor.TYPE_MESSAGE)


def require_size(operators: int) -> None:
    """Raise UnsupportedError for more operators than `LARGEST_NETWORK`."""
    if operators > LARGEST_NETWORK:
        raise UnsupportedError(
            f"the network has more than {LARGEST_NETWORK:,} operators once its functions and "
            "loops are written out: it is none for an embedded device"
        )


def require_known_attributes(
    node: onnx.NodeProto,
    domain: str,
    version: int,
    where: str,
    declared: Sequence[str] | None = None,
) -> None:
    """Check that an operator has the attributes that a node gives it.

    Args:
        node: of the file.
        domain: of its operator set, ONNX's own as "".
        version: of its operator set.
        where: the node in messages.
        declared: the operator's attributes where the standard does not know it.

    Raises:
        ModelError: it has not. A misspelt attribute would silently keep its default.
    """
    known = _attributes(node.op_type, domain, version) if declared is None else declared
    if known is None:
        return
    for attribute in node.attribute:
        # The standard leaves names that begin like this to tools.
        if attribute.name not in known and not attribute.name.startswith("__"):
            raise ModelError(
                f"{where}: operator {node.op_type} of operator set {version}"
                f"{f' of {domain}' if domain else ''} has no attribute '{attribute.name}'; it has "
                f"{', '.join(known) or 'none'}"
            )


@cache
def _attributes(kind: str, domain: str, version: int) -> Sequence[str] | None:
    """The attributes of a standard operator; None where the standard has none of that name."""
    try:
        schema: Any = onnx.defs.get_schema(kind, version, domain)
    except onnx.defs.SchemaError:
        return None
    return sorted(schema.attributes)
