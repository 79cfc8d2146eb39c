"""The subject of a certificate as text, exactly as Java's `X500Principal.getName()` writes it (RFC 2253).

Rules for Kafka's `ssl.principal.mapping.rules` are made for that text. Read from the bytes, since it depends
on their encoding: Java takes any string for UTF-8, and writes the bytes of attributes that it has no keyword
for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_OID: Final = 0x06
_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_TIMES: Final = {_UTC_TIME: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
# UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString; no UniversalString.
_STRINGS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
_ESCAPED: Final = frozenset(',=+<>#;"\\')
# Half of a UTF-16 pair: Java replaces its bytes by one character, Python each of them.
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACED: Final = "\ufffd".encode()
_SPACES: Final = " \r"


class BadName(ValueError):
    """Bytes that are no name, or a name that Java would not read."""


class _Value(NamedTuple):
    tag: int
    content: bytes
    whole: bytes
    """With tag and length."""


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate (DER). Raises BadName."""
    return name_text(_parts(certificate)[1].whole)


def end_of(certificate: bytes) -> float:
    """When a certificate (DER) ends: seconds since 1970. Raises BadName.

    Libraries that read whole certificates are stricter than Java and OpenSSL about the names in them.
    """
    times = list(_values(_parts(certificate)[0].content))
    if len(times) != 2 or times[1].tag not in _TIMES:
        raise BadName("the certificate has no time of its end")
    text = times[1].content.decode("ascii", "replace")
    try:
        end = datetime.strptime(text, _TIMES[times[1].tag]).replace(tzinfo=UTC)
    except ValueError:
        raise BadName(f"the certificate ends at no time: {text!r}") from None
    # RFC 5280, 4.1.2.5.1: two digits stand for 1950 to 2049.
    if times[1].tag == _UTC_TIME and end.year > 2049:
        end = end.replace(year=end.year - 100)
    return end.timestamp()


def _parts(certificate: bytes) -> tuple[_Value, _Value]:
    """Validity and subject."""
    parts = _values(_one(_one(certificate, _SEQUENCE).content, _SEQUENCE, is_first=True).content)
    # Version (if it is there), serial number, algorithm, issuer, validity, subject.
    read = [part for _, part in zip(range(6), parts, strict=False)]
    at = 5 if read and read[0].tag == _VERSION else 4
    if len(read) <= at:
        raise BadName("the certificate has no subject")
    return read[at - 1], read[at]


def name_text(name: bytes) -> str:
    """A name (DER) as text; "" for one without parts. Raises BadName."""
    parts = [_part(part) for part in _values(_one(name, _SEQUENCE).content)]
    return ",".join(reversed(parts))


def _part(part: _Value) -> str:
    if part.tag != _SET:
        raise BadName("a part of the name is no set")
    attributes = [_attribute(each) for each in _values(part.content)]
    if not attributes:
        raise BadName("a part of the name is empty")
    return "+".join(attributes)


def _attribute(attribute: _Value) -> str:
    pair = list(_values(attribute.content)) if attribute.tag == _SEQUENCE else []
    if len(pair) != 2 or pair[0].tag != _OID:
        raise BadName("an attribute of the name is no type and value")
    oid, value = _dotted(pair[0].content), pair[1]
    keyword = _KEYWORDS.get(oid)
    if keyword is None or value.tag not in _STRINGS:
        return f"{keyword or oid}=#{value.whole.hex()}"
    text = _SURROGATE.sub(_REPLACED, value.content).decode("utf-8", "replace")
    return f"{keyword}={_escaped(text)}"


def _escaped(text: str) -> str:
    written = "".join(_character(each) for each in text)
    begin = len(written) - len(written.lstrip(_SPACES))
    end = max(len(written.rstrip(_SPACES)), begin)
    outside = (written[:begin], written[end:])
    before, after = ("".join(f"\\{each}" for each in part) for part in outside)
    return before + written[begin:end] + after


def _character(character: str) -> str:
    if character == "\0":
        return "\\00"
    return f"\\{character}" if character in _ESCAPED else character


def _dotted(content: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not content or content[-1] & 0x80 or len(content) > 100:
        raise BadName("the type of an attribute is no object identifier")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _one(data: bytes, tag: int, *, is_first: bool = False) -> _Value:
    value = next(_values(data), None)
    if value is None or value.tag != tag or not (is_first or value.whole == data):
        raise BadName("this is no name of a certificate")
    return value


def _values(data: bytes) -> Iterator[_Value]:
    """The values (DER) that lie one behind another. Raises BadName."""
    at = 0
    while at < len(data):
        start = at
        if at + 2 > len(data):
            raise BadName("a value is cut off")
        tag, length, at = data[at], data[at + 1], at + 2
        if tag & 0x1F == 0x1F:
            raise BadName("a value has a tag that names do not have")
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(data[at : at + count], "big")
            if not 1 <= count <= 4 or length < 0x80 or data[at] == 0:
                raise BadName("the length of a value is not written as DER has it")
            at += count
        if at + length > len(data):
            raise BadName("a value is longer than what it is in")
        at += length
        yield _Value(tag, data[at - length : at], data[start:at])
