"""A kept kernel as one file: the binary, and behind it a line of facts with a checksum of all.

What reads machine code stops before the line, and in PTX it is a comment, so that tools take the
file as it is. Being one file, it is there as a whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from humming.jit.program import Binary, Program, Usage

__all__ = ["DamagedEntry", "decode", "encode"]

_MARK = b"\n// humming-kernel 1 "
_DIGEST_BYTES = 64


class DamagedEntry(Exception):
    """What is wrong with a file that should hold a kernel."""


def encode(key: str, program: Program, binary: Binary) -> bytes:
    """The bytes of the file that keeps `binary`, made of `program`, as `key`."""
    facts = {
        "key": key,
        "name": program.name,
        "arch": program.arch,
        "kind": binary.kind,
        "nbytes": len(binary.data),
        "compiler": binary.compiler,
        "usage": [asdict(usage) for usage in binary.usage],
        "log": binary.log,
    }
    line = json.dumps(facts, sort_keys=True).encode()
    return b"".join((binary.data, _MARK, _checksum(binary.data, line), b" ", line, b"\n"))


def decode(key: str, content: bytes) -> Binary:
    """The binary in a file that should keep `key`.

    Raises:
        DamagedEntry: anything is not as :func:`encode` wrote it.
    """
    start = content.rfind(_MARK)
    if start < 0 or not content.endswith(b"\n"):
        raise DamagedEntry("it is cut off" if content else "it is empty")
    data, rest = content[:start], content[start + len(_MARK) :]
    checksum, line = rest[:_DIGEST_BYTES], rest[_DIGEST_BYTES + 1 : -1]
    if rest[_DIGEST_BYTES : _DIGEST_BYTES + 1] != b" " or checksum != _checksum(data, line):
        raise DamagedEntry("its checksum is wrong")
    facts = json.loads(line)
    if facts["key"] != key:
        raise DamagedEntry("it holds another kernel")
    usage = tuple(Usage(**row) for row in facts["usage"])
    return Binary(facts["kind"], data, facts["log"], usage, facts["compiler"])


def _checksum(data: bytes, line: bytes) -> bytes:
    digest = hashlib.sha256(data)
    digest.update(b"\n")
    digest.update(line)
    return digest.hexdigest().encode()
