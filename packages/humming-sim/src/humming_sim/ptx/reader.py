"""PTX text to a :class:`Module` (PTX ISA 9.0, 4 syntax and 11 directives)."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from humming_sim.errors import PtxError, UnsupportedInstruction
from humming_sim.ptx.declarations import (
    align_up,
    parse_declaration,
    parse_parameters,
    parse_registers,
)
from humming_sim.ptx.model import Instruction, Kernel, Module, Register, Symbol
from humming_sim.ptx.operands import parse_operand, split_operands

__all__ = ["read_module"]

_Result = TypeVar("_Result")

#: In a comment before an instruction: the types that the assembler sees stand in for others, which
#: a later patch of the binary puts there ("stand-in: e2m1.e2m1 is e0m3.e2m1").
_STAND_IN = re.compile(r"stand-in:\s*([\w.]+)\s+is\s+([\w.]+)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_STATEMENT = re.compile(r'(?:[^;{}"]|"[^"]*")*;')
_CODE_STATEMENT = re.compile(r'(?:[^;"]|"[^"]*")*;')
_LABEL = re.compile(r"([$%\w]+)\s*:(?!:)")
_LINE_DIRECTIVE = re.compile(r"\.(?:loc|file)\b[^\n]*")
_HEAD = re.compile(r"\s*((?:\.(?:visible|extern|weak|entry|func)\b\s*)+)")
_DIRECTIVE = re.compile(r"\.(\w+)\s*([^.{]*)")
_INSTRUCTION = re.compile(r"(?:@(!?)\s*([%$\w]+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.S)
_NUMBERED = re.compile(r"(.*?)(\d+)$")


class _Text:
    """The text with comments blanked, the line of a position, and stand-ins by position."""

    def __init__(self, text: str) -> None:
        self._stand_ins = [
            (comment.start(), mark[1], mark[2])
            for comment in _COMMENT.finditer(text)
            if (mark := _STAND_IN.search(comment[0]))
        ]
        self.text = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
        self._ends = [match.start() for match in re.finditer("\n", self.text)]

    def line(self, position: int) -> int:
        return bisect.bisect_left(self._ends, position) + 1

    def stand_ins(self, start: int, end: int) -> list[tuple[str, str]]:
        """(what is written, what is meant) of the comments between two positions."""
        return [(old, new) for at, old, new in self._stand_ins if start <= at < end]

    def skip(self, position: int) -> int:
        """The next position that is not white space."""
        match = re.compile(r"\s*").match(self.text, position)
        return match.end() if match else position

    def closing(self, position: int) -> int:
        """Position after the brace that closes the one at `position`."""
        depth = 0
        for match in re.compile(r'[{}]|"[^"]*"').finditer(self.text, position):
            depth += {"{": 1, "}": -1}.get(match[0], 0)
            if depth == 0:
                return match.end()
        raise PtxError("a brace is never closed", self.line(position))


class _Scopes:
    """Registers by name: a block sees its own and those around it."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._scopes: list[dict[str, Register]] = [{}]
        self._ranges: list[dict[str, tuple[str, int]]] = [{}]
        self._path = [0]  # numbers of the open blocks, outermost first
        self._opened = 0
        self._jumps: list[tuple[int, tuple[int, ...]]] = []

    def open(self) -> None:
        self._scopes.append({})
        self._ranges.append({})
        self._opened += 1
        self._path.append(self._opened)

    def close(self) -> bool:
        """Leave a block; whether any is left."""
        self._scopes.pop()
        self._ranges.pop()
        self._path.pop()
        return bool(self._scopes)

    def label(self, name: str) -> str:
        """The unique name of a label of the innermost block."""
        return f"{name}@{self._path[-1]}" if self._path[-1] else name

    def jump(self) -> None:
        """Note that the instruction read next names labels, which may come later."""
        self._jumps.append((len(self._kernel.instructions), tuple(self._path)))

    def resolve(self) -> None:
        """Give the labels that instructions name their unique names."""
        kernel = self._kernel
        for index, path in self._jumps:
            instruction = kernel.instructions[index]
            operands = list(instruction.operands)
            name = operands[-1].name if isinstance(operands[-1], Symbol) else ""
            names = [f"{name}@{block}" if block else name for block in reversed(path)]
            known = kernel.labels.keys() | kernel.tables.keys()
            found = next((label for label in names if label in known), None)
            if found is None:
                raise PtxError(f"there is no label {name}", instruction.line, instruction.text)
            operands[-1] = Symbol(found)
            kernel.instructions[index] = replace(instruction, operands=tuple(operands))

    def declare(self, name: str, type_: str, count: int | None) -> None:
        if count is None:
            self._scopes[-1][name] = self._new(name, type_)
        else:
            self._ranges[-1][name] = (type_, count)

    def find(self, name: str) -> Register | None:
        """The register of this name; one of a range comes into being on first use."""
        numbered = _NUMBERED.match(name)
        for scope, ranges in zip(reversed(self._scopes), reversed(self._ranges), strict=True):
            if name in scope:
                return scope[name]
            if numbered and numbered[1] in ranges:
                type_, count = ranges[numbered[1]]
                if int(numbered[2]) < count:
                    scope[name] = self._new(name, type_)
                    return scope[name]
        return None

    def _new(self, name: str, type_: str) -> Register:
        self._kernel.registers.append(type_)
        self._kernel.register_names.append(name)
        return Register(len(self._kernel.registers) - 1, type_, name)


def read_module(text: str) -> Module:
    """Read PTX.

    Raises:
        PtxError: for text that is not PTX.
        UnsupportedInstruction: for PTX that is out of scope here (vector registers, textures).
    """
    source = _Text(text)
    version = re.search(r"\.version\s+(\d+)\.(\d+)", source.text)
    target = re.search(r"\.target\s+(\w+)", source.text)
    if version is None or target is None:
        raise PtxError("PTX starts with .version and .target; they are missing here")
    module = Module((int(version[1]), int(version[2])), target[1])
    shared: list[str] = []
    for position, kind, statement in _top_level(source, max(version.end(), target.end())):
        if kind == "entry":
            kernel = _read_kernel(source, position, statement, shared)
            module.kernels[kernel.name] = kernel
        elif ".shared" in statement.split("=")[0]:
            shared.append(statement)
        else:
            declared = parse_declaration(statement)
            module.variables[declared.name] = declared.at(0)
    return module


def _top_level(source: _Text, position: int) -> Iterator[tuple[int, str, str]]:
    """(position after, "entry" or "variable", text) of what stands outside of all braces."""
    text = source.text
    while True:
        position = source.skip(position)
        if position >= len(text):
            return
        if match := re.compile(r"\.(address_size|file|loc)[^\n]*").match(text, position):
            position = match.end()
        elif text.startswith(".section", position):
            position = source.closing(text.index("{", position))
        elif (match := _HEAD.match(text, position)) and re.search(r"entry|func", match[1]):
            brace, end = text.find("{", position), text.find(";", position)
            if 0 <= end < brace or brace < 0:  # a declaration without body
                position = end + 1
                continue
            if "entry" in match[1]:
                yield brace, "entry", text[match.end() : brace]
            position = source.closing(brace)
        else:
            position, statement = _statement(source, position)
            if not statement.startswith((".alias", ".pragma")):
                yield position, "variable", statement


def _statement(source: _Text, position: int) -> tuple[int, str]:
    """One declaration with its braces, and the position after its semicolon."""
    match = _CODE_STATEMENT.match(source.text, position)
    if match is None:
        raise PtxError("a statement has no semicolon", source.line(position))
    return match.end(), match[0][:-1].strip()


def _read_kernel(source: _Text, brace: int, head: str, shared: list[str]) -> Kernel:
    match = re.match(r"\s*([$\w]+)\s*(\((.*?)\))?(.*)$", head, re.S)
    if match is None:
        raise PtxError(".entry has no name", source.line(brace))
    kernel = Kernel(match[1])
    _located(source, brace, _read_head, kernel, match[3] or "", match[4])
    for statement in shared:
        _declare(kernel, statement)
    scopes = _Scopes(kernel)
    text, position = source.text, brace + 1
    since = position  # where the last statement ended
    while True:
        position = source.skip(position)
        if text[position] == "{":
            scopes.open()
            position += 1
        elif text[position] == "}":
            position += 1
            if not scopes.close():
                scopes.resolve()
                return kernel
        elif match := _LINE_DIRECTIVE.match(text, position):
            position = match.end()
        elif match := _LABEL.match(text, position):
            label = scopes.label(match[1])
            kernel.labels[label] = len(kernel.instructions)
            position = source.skip(match.end())
            if text.startswith(".branchtargets", position):
                after, statement = _statement(source, position)
                kernel.tables[label] = tuple(split_operands(statement[14:]))
                position = after
        else:
            start = position
            position, statement = _statement(source, position)
            for written, meant in source.stand_ins(since, start):
                statement = _located(source, start, _with_meant, statement, written, meant)
            _located(source, start, _read_statement, kernel, scopes, statement, source.line(start))
            since = position


def _with_meant(statement: str, written: str, meant: str) -> str:
    """A statement with the types that its own stand in for."""
    if statement.count(f".{written}.") != 1:
        raise PtxError(f"a stand-in for .{written} comes before an instruction without it")
    return statement.replace(f".{written}.", f".{meant}.")


def _located(
    source: _Text, position: int, function: Callable[..., _Result], *arguments: object
) -> _Result:
    """Call, and give an error that has no line yet the line of `position`."""
    try:
        return function(*arguments)
    except PtxError as error:
        if error.line:
            raise
        raise type(error)(error.reason, source.line(position), error.text) from None


def _read_head(kernel: Kernel, parameters: str, directives: str) -> None:
    kernel.parameters, kernel.parameter_bytes = parse_parameters(parameters)
    for name, values in _DIRECTIVE.findall(directives):
        numbers = tuple(int(value) for value in re.findall(r"\d+", values))
        kernel.directives[name] = numbers


def _read_statement(kernel: Kernel, scopes: _Scopes, statement: str, line: int) -> None:
    if statement.startswith(".reg"):
        for name, type_, count in parse_registers(statement):
            scopes.declare(name, type_, count)
    elif re.match(r"\.(shared|local|param|extern|global|const|visible)\b", statement):
        _declare(kernel, statement)
    elif statement.startswith(".pragma"):
        return
    elif statement.startswith("."):
        raise UnsupportedInstruction("this directive is not supported", line, statement)
    elif statement:
        kernel.instructions.append(_read_instruction(scopes, statement, line))


def _read_instruction(scopes: _Scopes, statement: str, line: int) -> Instruction:
    text = " ".join(statement.split())
    match = _INSTRUCTION.match(text)
    if match is None:
        raise PtxError("this is no instruction", line, text)
    guard = None
    if match[2]:
        found = scopes.find(match[2])
        if found is None or found.type != "pred":
            raise PtxError(f"the guard {match[2]} is no predicate register", line, text)
        guard = Register(found.index, found.type, found.name, negated=bool(match[1]))
    words = tuple(match[3].split("."))
    if words[0] == "call":
        return Instruction(match[3], (Symbol(_callee(match[4])),), guard, line, text, words)
    operands = tuple(parse_operand(part, scopes.find) for part in split_operands(match[4]))
    if words[0] in ("bra", "brx"):
        scopes.jump()
    return Instruction(match[3], operands, guard, line, text, words)


def _callee(text: str) -> str:
    """The function of ``call (result), function, (arguments)``."""
    names = [part for part in split_operands(text) if not part.startswith("(")]
    return names[0] if names else ""


def _declare(kernel: Kernel, statement: str) -> None:
    """Place a shared or local variable; a dynamic array has no place before the launch.

    Parameters of calls are local variables too.
    """
    declared = parse_declaration(statement)
    if declared.space == "shared":
        if declared.extern or declared.size == 0:
            kernel.dynamic[declared.name] = max(
                declared.align, kernel.dynamic.get(declared.name, 1)
            )
            return
        variables, bytes_ = kernel.shared, kernel.shared_bytes
    elif declared.space in ("local", "param"):
        variables, bytes_ = kernel.local, kernel.local_bytes
    else:
        raise UnsupportedInstruction(f"a {declared.space} variable inside of a kernel")
    if declared.name in variables and declared.size <= variables[declared.name].size:
        return
    offset = align_up(bytes_, declared.align)
    variables[declared.name] = declared.at(offset)
    if declared.space == "shared":
        kernel.shared_bytes = offset + declared.size
    else:
        kernel.local_bytes = offset + declared.size
