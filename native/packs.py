"""Numbers and bytes put together without objects in between, for what mypyc compiles: `with_packs`.

`LAYOUT.pack(a, b)` calls the library by name, with an object for each number: 1,100 instructions for the
response to a Produce request. The writer of mypyc's own `librt.strings` is compiled to stores into memory.
Python itself would take longer with it. So the copy of the sources that is compiled writes field by field.
Lines keep their numbers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from native.written_out import written_out

_NAMES = "BytesWriter, write_i16_be, write_i32_be, write_i64_be"
_WRITES = {
    "h": "write_i16_be(packed, {value})",
    "i": "write_i32_be(packed, {value})",
    "q": "write_i64_be(packed, {value})",
    "s": "packed.write({value})",
}


def with_packs(source: str) -> str:
    """The same module, in which `return LAYOUT.pack(...)` is written out.

    The library still packs where the layout is neither a constant of the module nor an attribute that its
    class assigns once, where it is made of other fields than big-endian `h`, `i`, `q` and `s` or not in the
    same module, and where a value is starred. Bytes have to be as long as their field: the library
    would fill or cut them. A number that is too large for its field raises OverflowError or ValueError
    instead of `struct.error`.
    """
    module = ast.parse(source)
    layouts: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            name, codes = ast.unparse(target), _codes(node.value)
            layouts[name] = codes if layouts.get(name, codes) == codes else ""
    return written_out(source, _changes(module, layouts), _NAMES)


def _changes(module: ast.Module, layouts: dict[str, str]) -> Iterator[tuple[ast.stmt, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
            writes = _writes(node.value, layouts)
            if writes is not None:
                yield node, writes


def _codes(value: ast.expr) -> str:
    """A letter for each field of `Struct(">...")`, whose counts may be expressions; none for any other."""
    if not isinstance(value, ast.Call) or ast.unparse(value.func) != "Struct":
        return ""
    (text,) = value.args
    if isinstance(text, ast.Constant):
        layout = str(text.value)
    elif isinstance(text, ast.JoinedStr):
        layout = "".join(
            str(each.value) if isinstance(each, ast.Constant) else "1" for each in text.values
        )
    else:
        return ""
    found = re.fullmatch(r">((?:\d*s|[hiq])+)", layout)
    return re.sub(r"\d", "", found[1]) if found else ""


def _writes(call: ast.Call, layouts: dict[str, str]) -> str | None:
    """The statements, on one line, for `return LAYOUT.pack(...)`; None for any other."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "pack":
        return None
    codes = layouts.get(ast.unparse(call.func.value))
    if not codes or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    assert len(codes) == len(call.args), f"{len(call.args)} values for {codes}"
    writes = [
        _WRITES[code].format(value=ast.unparse(value))
        for code, value in zip(codes, call.args, strict=True)
    ]
    return "; ".join(("packed = BytesWriter()", *writes, "return packed.getvalue()"))
