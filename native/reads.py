"""Numbers at fixed places of bytes as single reads, for what mypyc compiles: `with_reads`.

`a, b = LAYOUT.unpack_from(data, at)` calls the library, which makes an object of each number, and a tuple of
them: some 900 instructions for the header of a batch. mypyc's own `librt.strings` has functions that it
compiles to a load from memory, and `int` of what they give is no object as long as it is small. Python
itself would take longer with them. So the copy of the sources that is compiled reads number by number. Lines
keep their numbers.
"""

from __future__ import annotations

import ast
import re
import struct
from collections.abc import Iterator

from native.written_out import written_out

_NAMES = "read_i16_be, read_i32_be, read_i64_be"
_FIELD = re.compile(r"(\d*)([bBhHiIqsx])")
_READS = {
    "b": "({data}[{at}] ^ 128) - 128",
    "B": "{data}[{at}]",
    "h": "int(read_i16_be({data}, {at}))",
    "H": "int(read_i16_be({data}, {at})) & 0xFFFF",
    "i": "int(read_i32_be({data}, {at}))",
    "I": "int(read_i32_be({data}, {at})) & 0xFFFFFFFF",
    "q": "int(read_i64_be({data}, {at}))",
}


def with_reads(source: str) -> str:
    """The same module, in which `unpack_from` is written out.

    The library still unpacks where the layout is no constant of the module with a literal format of
    big-endian numbers and bytes, where `data` is no parameter of type `bytes`, where `at` is more than a sum
    of names and numbers, and where the fields do not go to names of their own. Bytes that are too short raise
    IndexError instead of `struct.error`.
    """
    module = ast.parse(source)
    layouts = dict(filter(None, map(_layout, module.body)))
    return written_out(source, _changes(module, layouts), _NAMES)


def _changes(module: ast.Module, layouts: dict[str, str]) -> Iterator[tuple[ast.stmt, str]]:
    for function in ast.walk(module):
        if not isinstance(function, ast.FunctionDef):
            continue
        arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        of_bytes = {
            each.arg
            for each in arguments
            if each.annotation is not None and ast.unparse(each.annotation) == "bytes"
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                reads = _reads(node, layouts, of_bytes)
                if reads is not None:
                    yield node, reads


def _layout(node: ast.stmt) -> tuple[str, str] | None:
    """Name and format of `NAME: Final = Struct(">...")`."""
    if not isinstance(node, ast.AnnAssign) or node.value is None:
        return None
    made = re.fullmatch(r"Struct\('(>(\d*[bBhHiIqsx])+)'\)", ast.unparse(node.value))
    return (ast.unparse(node.target), made[1]) if made else None


def _reads(node: ast.Assign, layouts: dict[str, str], of_bytes: set[str]) -> str | None:
    """The statements, on one line, for `names = LAYOUT.unpack_from(data, at)`; None for any other."""
    call, target = node.value, node.targets[0]
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    text = layouts.get(ast.unparse(call.func.value))
    if text is None or call.func.attr != "unpack_from" or not isinstance(target, ast.Tuple):
        return None
    data, at = ast.unparse(call.args[0]), ast.unparse(call.args[1]) if call.args[1:] else "0"
    names = [each.id for each in target.elts if isinstance(each, ast.Name)]
    taken = {*re.findall(r"\w+", at), data}
    if len(names) < len(target.elts) or data not in of_bytes or taken & set(names):
        return None
    if not re.fullmatch(r"\w+( \+ \w+)*", at):
        return None
    fields = list(_fields(text))
    assert len(fields) == len(names), f"{len(names)} names for {text}"
    reads = [
        f"{name} = {read.format(data=data, at=f'{at} + {place}')}"
        for name, (place, read) in zip(names, fields, strict=True)
        if name != "_"
    ]
    # A slice or a field without a name says nothing of bytes that are not there.
    return "; ".join((f"{data}[{at} + {struct.calcsize(text) - 1}]", *reads))


def _fields(text: str) -> Iterator[tuple[int, str]]:
    """Place and read of each field, a template with `data` and `at`."""
    place = 0
    for count, code in _FIELD.findall(text[1:]):
        if code == "s":
            yield place, f"{{data}}[{{at}} : {{at}} + {count or 1}]"
        elif code != "x":
            for number in range(int(count or 1)):
                yield place + number * struct.calcsize(f">{code}"), _READS[code]
        place += struct.calcsize(f">{count}{code}")
