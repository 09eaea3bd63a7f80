"""Checks of an ONNX file before its operators are converted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import onnx
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from smelt.errors import ModelError, UnsupportedError

LARGEST_NETWORK = 1 << 16
"""Largest number of operators, with functions inlined and loops unrolled."""

LONGEST_NAME = 1 << 14
"""Largest length of a name in characters; names that join those of several modules are shorter."""

_IGNORED = frozenset({"doc_string"})
"""Text fields that are not read."""


def messages(message: Any) -> Iterator[Any]:
    """Yield a message and all messages nested in it, in any field."""
    # Use an explicit stack, because recursion would be slow.
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
    """Check that every name in a message is UTF-8, which protocol buffers do not check.

    Raises:
        ModelError: a name is not UTF-8, or is longer than `LONGEST_NAME`.
    """
    for owner in messages(message):
        for name, repeated in _fields(owner.DESCRIPTOR)[0]:
            found = getattr(owner, name)
            for text in found if repeated else (found,):
                if isinstance(text, bytes):
                    raise ModelError(
                        f"the file has {name} {text!r}, which is not UTF-8: it is damaged"
                    )
                if len(text) > LONGEST_NAME:
                    raise ModelError(
                        f"the file has {name} '{text[:40]}…' of {len(text):,} characters; "
                        f"a name may have at most {LONGEST_NAME:,}"
                    )


@cache
def _fields(kind: Descriptor) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Return the text fields and the message fields of a message, and whether each repeats."""

    def of(wanted: int) -> list[tuple[str, bool]]:
        return [
            (f.name, f.is_repeated)
            for f in kind.fields
            if f.type == wanted and f.name not in _IGNORED
        ]

    return of(FieldDescriptor.TYPE_STRING), of(FieldDescriptor.TYPE_MESSAGE)


def require_size(operators: int) -> None:
    """Raise `UnsupportedError` for more operators than `LARGEST_NETWORK`."""
    if operators > LARGEST_NETWORK:
        raise UnsupportedError(
            f"the network has more than {LARGEST_NETWORK:,} operators, after its functions are "
            "inlined and its loops unrolled: it is too large for an embedded device"
        )


def require_known_attributes(
    node: onnx.NodeProto,
    domain: str,
    version: int,
    where: str,
    declared: Sequence[str] | None = None,
) -> None:
    """Check that a node has only attributes that its operator defines.

    Args:
        node: a node of the file.
        domain: domain of its operator, "" for ONNX's own.
        version: version of its operator set.
        where: name of the node in messages.
        declared: the operator's attributes, if the standard does not define the operator.

    Raises:
        ModelError: an attribute is unknown. A misspelled one would otherwise be ignored.
    """
    known = _attributes(node.op_type, domain, version) if declared is None else declared
    if known is None:
        return
    for attribute in node.attribute:
        # The standard reserves names with this prefix for tools.
        if attribute.name not in known and not attribute.name.startswith("__"):
            raise ModelError(
                f"{where}: operator {node.op_type} of operator set {version}"
                f"{f' of {domain}' if domain else ''} has no attribute '{attribute.name}'; it has "
                f"{', '.join(known) or 'none'}"
            )


@cache
def _attributes(kind: str, domain: str, version: int) -> Sequence[str] | None:
    """Return the attributes of a standard operator; None if the standard has no such operator."""
    try:
        schema: Any = onnx.defs.get_schema(kind, version, domain)
    except onnx.defs.SchemaError:
        return None
    return sorted(schema.attributes)
