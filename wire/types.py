"""The `construct` types that messages are made of, each with a plain and a compiled form.

The plain form walks the tree of constructs; the compiled form is the Python source that construct's
compiler asks for through `_emitparse` and `_emitbuild`. Both call quorumd.wire.primitives for everything
that has a length, so both have the same bounds. The streams that they read are `Source`s.
construct's own VarInt, PrefixedArray and PascalString are not used: they have no bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any, NamedTuple
from uuid import UUID

from construct import Construct, FormatField, stream_read
from construct.core import CodeGen

from quorumd.wire import primitives
from quorumd.wire.errors import UnsupportedVersion
from quorumd.wire.primitives import Source
from quorumd.wire.schema import Struct
from quorumd.wire.varints import encode_unsigned_varint

_IMPORT = """
from struct import Struct as Fixed
from io import BytesIO
from quorumd.wire.primitives import *
"""


class WireType(Construct):  # type: ignore[misc] # construct has no type hints
    """A type with bounds. `bytes_min` is the least that a value takes."""

    bytes_min: int


class FixedType(FormatField):  # type: ignore[misc] # construct has no type hints
    """An integer or a bool: `code` is its letter in `struct`, big-endian."""

    def __init__(self, code: str) -> None:
        super().__init__(">", code)
        self.code = code
        self.bytes_min: int = self.length


class UuidType(WireType):
    """16 bytes, most significant half first."""

    code = "16s"
    bytes_min = 16

    def _parse(self, stream: Source, context: object, path: str) -> UUID:
        return primitives.uuid_of(stream_read(stream, 16, path))

    def _build(self, obj: UUID, stream: BytesIO, context: object, path: str) -> UUID:
        stream.write(obj.bytes)
        return obj

    def _emitparse(self, code: CodeGen) -> str:
        return "uuid_of(io.read(16))"

    def _emitbuild(self, code: CodeGen) -> str:
        return "io.write(obj.bytes)"


class PrefixedType(WireType):
    """A string or bytes behind its length; the names are those of functions in quorumd.wire.primitives."""

    def __init__(self, name: str, *, is_compact: bool, is_nullable: bool, bytes_min: int) -> None:
        super().__init__()
        form = "compact_" if is_compact else ""
        self.reader = f"read_{form}{name}"
        self.writer = f"write_{form}{name}"
        self.is_nullable = is_nullable
        self.bytes_min = bytes_min
        self._read = getattr(primitives, self.reader)
        self._write = getattr(primitives, self.writer)

    def _parse(self, stream: Source, context: object, path: str) -> object:
        value = self._read(stream)
        return value if self.is_nullable else primitives.not_null(value)

    def _build(self, obj: Any, stream: BytesIO, context: object, path: str) -> object:
        self._write(obj if self.is_nullable else primitives.require(obj), stream)
        return obj

    def _emitparse(self, code: CodeGen) -> str:
        return f"{self.reader}(io)" if self.is_nullable else f"not_null({self.reader}(io))"

    def _emitbuild(self, code: CodeGen) -> str:
        return f"{self.writer}({'obj' if self.is_nullable else 'require(obj)'}, io)"


def string_type(*, is_compact: bool, is_nullable: bool) -> PrefixedType:
    """A string of at most 32767 bytes of UTF-8."""
    made = PrefixedType(
        "string",
        is_compact=is_compact,
        is_nullable=is_nullable,
        bytes_min=1 if is_compact else 2,
    )
    if is_nullable:
        made.writer = made.writer.replace("string", "nullable_string")
        made._write = getattr(primitives, made.writer)
    return made


def bytes_type(*, is_compact: bool, is_nullable: bool) -> PrefixedType:
    """Bytes or records."""
    return PrefixedType(
        "bytes",
        is_compact=is_compact,
        is_nullable=is_nullable,
        bytes_min=1 if is_compact else 4,
    )


class ArrayType(WireType):
    """A counted sequence, read as a tuple; the count is checked before an element is read."""

    def __init__(
        self, element: WireType | FixedType, *, is_compact: bool, is_nullable: bool
    ) -> None:
        super().__init__()
        self.element = element
        self.is_compact = is_compact
        self.is_nullable = is_nullable
        self.bytes_min = 1 if is_compact else 4

    def _parse(self, stream: Source, context: object, path: str) -> tuple[Any, ...] | None:
        read = primitives.read_compact_length if self.is_compact else primitives.read_int32_length
        count = read(stream)
        if count < 0:
            return None if self.is_nullable else primitives.not_null(None)
        primitives.check_count(stream, count, self.element.bytes_min)
        return tuple([self.element._parse(stream, context, path) for _ in range(count)])

    def _build(self, obj: Any, stream: BytesIO, context: object, path: str) -> object:
        write = primitives.write_compact_length if self.is_compact else primitives.write_length
        if obj is None and self.is_nullable:
            write(-1, stream)
            return obj
        write(len(primitives.require(obj)), stream)
        for element in obj:
            self.element._build(element, stream, context, path)
        return obj

    def _emitparse(self, code: CodeGen) -> str:
        name = f"parse_array_{code.allocateId()}"
        element = self.element._compileparse(code)
        code.append(f"""
            def {name}(io, this):
                count = {"read_compact_length" if self.is_compact else "read_int32_length"}(io)
                if count < 0:
                    return {"None" if self.is_nullable else "not_null(None)"}
                if not count:
                    return ()
                check_count(io, count, {self.element.bytes_min})
                return tuple([{element} for _ in range(count)])
        """)
        return f"{name}(io, this)"

    def _emitbuild(self, code: CodeGen) -> str:
        name = f"build_array_{code.allocateId()}"
        write = "write_compact_length" if self.is_compact else "write_length"
        element = self.element._compilebuild(code)
        code.append(f"""
            def {name}(array, io, this):
                if array is None and {self.is_nullable}:
                    {write}(-1, io)
                    return
                {write}(len(require(array)), io)
                for obj in array:
                    {element}
        """)
        return f"{name}(obj, io, this)"


class Part(NamedTuple):
    """A field that a version has, in line or as a tag."""

    name: str
    type: WireType | FixedType
    default: object = None
    tag: int = -1


class Absent(NamedTuple):
    """A field that a version lacks and that must be at its default for it to be written."""

    name: str
    default: object


class StructType(WireType):
    """A struct class at one version: fields in order, then the tag section if it is flexible.

    Fields of fixed size that follow each other are one `struct` format in the compiled form.
    """

    def __init__(
        self,
        cls: type[Struct],
        parts: Sequence[Part],
        absent: Sequence[Absent],
        tags: Sequence[Part] | None,
    ) -> None:
        super().__init__()
        self.cls = cls
        self.parts = parts
        self.absent = absent
        self.tags = tags
        self.bytes_min = sum(part.type.bytes_min for part in parts) + (tags is not None)

    def _parse(self, stream: Source, context: object, path: str) -> Struct:
        values = {part.name: part.type._parse(stream, context, path) for part in self.parts}
        if self.tags is not None:
            known = {part.tag: part for part in self.tags}
            for _ in range(primitives.read_tag_count(stream)):
                tag, end = primitives.read_tag(stream)
                if tag in known:
                    part = known[tag]
                    values[part.name] = part.type._parse(stream, context, path)
                    primitives.end_tag(stream, end)
                else:
                    stream.seek(end)
        return self.cls(**values)

    def _build(self, obj: Struct, stream: BytesIO, context: object, path: str) -> Struct:
        for field in self.absent:
            if getattr(obj, field.name) != field.default:
                raise refusal(field.name)
        for part in self.parts:
            part.type._build(getattr(obj, part.name), stream, context, path)
        if self.tags is not None:
            present = [tag for tag in self.tags if getattr(obj, tag.name) != tag.default]
            stream.write(encode_unsigned_varint(len(present)))
            for tag in present:
                data = BytesIO()
                tag.type._build(getattr(obj, tag.name), data, context, path)
                write_tag(tag.tag, data, stream)
        return obj

    def _emitparse(self, code: CodeGen) -> str:
        code.append(_IMPORT)
        name = f"parse_{self.cls.__name__}_{code.allocateId()}"
        body: list[str] = []
        for run in _runs(self.parts):
            if isinstance(run, Part):
                body.append(f"{run.name} = {run.type._compileparse(code)}")
                continue
            fixed, size = _fixed(code, run)
            names = ", ".join(part.name for part in run)
            body.append(f"{names}, = {fixed}.unpack(io.read({size}))")
            body += [
                f"{part.name} = uuid_of({part.name})"
                for part in run
                if isinstance(part.type, UuidType)
            ]
        if self.tags is not None:
            body += self._tag_reader(code)
        present = (*self.parts, *(self.tags or ()))
        arguments = ", ".join(f"{part.name}={part.name}" for part in present)
        body.append(f"return {_link(code, self.cls)}({arguments})")
        code.append("\n    ".join([f"def {name}(io, this):", *body]))
        return f"{name}(io, this)"

    def _tag_reader(self, code: CodeGen) -> list[str]:
        if not self.tags:
            return ["skip_tags(io)"]
        lines = [f"{part.name} = {_link(code, part.default)}" for part in self.tags]
        lines += ["for _ in range(read_tag_count(io)):", "    tag, end = read_tag(io)"]
        for word, part in zip(("if", *["elif"] * len(self.tags)), self.tags, strict=False):
            lines += [
                f"    {word} tag == {part.tag}:",
                f"        {part.name} = {part.type._compileparse(code)}",
                "        end_tag(io, end)",
            ]
        return [*lines, "    else:", "        io.seek(end)"]

    def _emitbuild(self, code: CodeGen) -> str:
        code.append(_IMPORT)
        code.append("from quorumd.wire.types import refusal, write_tag")
        name = f"build_{self.cls.__name__}_{code.allocateId()}"
        body = []
        for field in self.absent:
            body += [
                f"if record.{field.name} != {_link(code, field.default)}:",
                f"    raise refusal({field.name!r})",
            ]
        for run in _runs(self.parts):
            if isinstance(run, Part):
                body += [f"obj = record.{run.name}", run.type._compilebuild(code)]
                continue
            fixed, _ = _fixed(code, run)
            values = ", ".join(
                f"record.{part.name}{'.bytes' if isinstance(part.type, UuidType) else ''}"
                for part in run
            )
            body.append(f"io.write({fixed}.pack({values}))")
        if self.tags is not None:
            body += self._tag_writer(code)
        code.append("\n    ".join([f"def {name}(record, io, this):", *body, "return record"]))
        return f"{name}(obj, io, this)"

    def _tag_writer(self, code: CodeGen) -> list[str]:
        if not self.tags:
            return ["io.write(b'\\0')"]
        lines = ["count = 0", "outer, io = io, BytesIO()"]
        for part in self.tags:
            lines += [
                f"obj = record.{part.name}",
                f"if obj != {_link(code, part.default)}:",
                "    count += 1",
                "    rest, io = io, BytesIO()",
                f"    {part.type._compilebuild(code)}",
                f"    write_tag({part.tag}, io, rest)",
                "    io = rest",
            ]
        return [*lines, "write_compact_length(count - 1, outer)", "outer.write(io.getvalue())"]


def refusal(name: str) -> UnsupportedVersion:
    """The error for a value that the version being written has no field for."""
    return UnsupportedVersion(f"this version has no field {name}, which is not at its default")


def write_tag(tag: int, data: BytesIO, io: BytesIO) -> None:
    """A tag with its size and data."""
    raw = data.getvalue()
    io.write(encode_unsigned_varint(tag) + encode_unsigned_varint(len(raw)) + raw)


def _runs(parts: Sequence[Part]) -> list[Part | list[Part]]:
    """The parts in order, those of fixed size that follow each other as one list."""
    runs: list[Part | list[Part]] = []
    for part in parts:
        if not isinstance(part.type, FixedType | UuidType):
            runs.append(part)
        elif runs and isinstance(runs[-1], list):
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def _fixed(code: CodeGen, run: list[Part]) -> tuple[str, int]:
    """The name of a `struct` for the run in the compiled source, and its size in bytes."""
    letters = "".join(part.type.code for part in run)
    name = f"fixed_{letters}".replace("?", "t")
    code.append(f"{name} = Fixed('>{letters}')")
    return name, sum(part.type.bytes_min for part in run)


def _link(code: CodeGen, value: object) -> str:
    """An expression for `value` in the compiled source."""
    if value is None or isinstance(value, bool | int | str | bytes) or value == ():
        return repr(value)
    code.linkedinstances[id(value)] = value
    return f"linkedinstances[{id(value)}]"
