"""Principals: the subject as Java writes it, and the mapping rules as Kafka follows them."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumd.security.bounded_pattern import INSTRUCTIONS_MAX, BadPattern, BoundedPattern
from quorumd.security.distinguished_name import BadName, end_of, name_text, subject_of
from quorumd.security.errors import CertificateProblem
from quorumd.security.mapping_rules import BadRule, MappingRules
from tests.security.java_names import ask
from tests.support.odd_certificates import Authority

CA = Authority()


def der(tag: int, content: bytes) -> bytes:
    size = len(content)
    packed = size.to_bytes((size.bit_length() + 7) // 8 or 1, "big")
    length = packed if size < 128 else bytes([0x80 | len(packed)]) + packed
    return bytes([tag]) + length + content


def attribute(oid: str, value: bytes) -> bytes:
    return der(0x30, der(0x06, bytes.fromhex(oid)) + value)


def name(*parts: list[bytes]) -> bytes:
    return der(0x30, b"".join(der(0x31, b"".join(part)) for part in parts))


CN, ORG, E_MAIL, UID = "550403", "55040a", "2a864886f70d010901", "0992268993f22c640101"


LONG = name([attribute(CN, der(0x0C, b"a" * 120))])
"""Its length takes two bytes: 0x81, and that."""


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (name(), ""),
        (LONG, f"CN={'a' * 120}"),
        (
            name([attribute(ORG, der(0x13, b"Acme"))], [attribute(CN, der(0x0C, b"a"))]),
            "CN=a,O=Acme",
        ),
        (name([attribute(E_MAIL, der(0x16, b"a@b.de"))]), "1.2.840.113549.1.9.1=#16066140622e6465"),
        (
            name([attribute(CN, der(0x0C, b"a")), attribute(UID, der(0x0C, b"1"))]),
            "CN=a+UID=1",
        ),
        (name([attribute(CN, der(0x0C, b" #a, "))]), "CN=\\ \\#a\\,\\ "),
        (name([attribute(CN, der(0x0C, b"\0"))]), "CN=\\00"),
        (name([attribute(CN, der(0x1E, b"\0A"))]), "CN=\\00A"),
        (name([attribute(CN, der(0x0C, "é".encode()))]), "CN=é"),
        (name([attribute(CN, der(0x0C, b""))]), "CN="),
        (name([attribute(CN, der(0x02, b"\1"))]), "CN=#020101"),
        (name([attribute(CN, der(0x0C, b"  "))]), "CN=\\ \\ "),
        (name([attribute("883703", der(0x0C, b"a"))]), "2.999.3=#0c0161"),
    ],
)
def test_a_subject_as_text(data: bytes, text: str) -> None:
    assert name_text(data) == text


def test_the_subject_of_a_certificate() -> None:
    attributes = [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Müller, Söhne"),
        x509.NameAttribute(NameOID.COMMON_NAME, "db1", _type=_ASN1Type.BMPString),
    ]
    issued = CA.issue(x509.Name(attributes))
    found = subject_of(issued.certificate.public_bytes(Encoding.DER))
    assert found == "CN=\\00d\\00b\\001,O=Müller\\, Söhne"


@pytest.mark.parametrize("year", [1950, 1951, 1999, 2000, 2049, 2050, 2069, 9999])
def test_the_end_of_a_certificate(year: int) -> None:
    end = datetime(year, 12, 31, 23, 59, 58, tzinfo=UTC)
    begin = datetime(1950, 1, 1, tzinfo=UTC)
    data = CA.issue("db1", begin=begin, end=end).certificate.public_bytes(Encoding.DER)
    assert end_of(data) == end.timestamp()
    for odd in (b"991231235958", b"991331235958Z", b"99123123595 Z"):
        changed = data.replace(f"{year % 100:02}1231235958Z".encode(), odd)
        if changed != data and len(odd) == 13:
            with pytest.raises(BadName, match="ends at no time"):
                end_of(changed)


def test_a_string_of_characters_that_its_type_has_not_is_a_name_as_for_java_and_openssl() -> None:
    """Old CAs write user@host as a PrintableString, which the library that reads certificates refuses."""
    data = CA.issue("a@b").certificate.public_bytes(Encoding.DER)
    odd = data.replace(b"\x0c\x03a@b", b"\x13\x03a@b")
    assert odd != data
    assert subject_of(odd) == "CN=a@b"
    assert end_of(odd) == end_of(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x30",
        b"\x30\x05\0",
        name([]),
        name([der(0x30, b"")]),
        der(0x30, der(0x30, b"")),
        name([attribute("", der(0x0C, b"a"))]),
        name([attribute("80", der(0x0C, b"a"))]),
        name() + b"\0",
        b"\x30\x80\0\0",
        b"\x30\x81\x00",
        b"\x30\x82\x00" + LONG[2:],
        name([attribute(CN, der(0x1F, b"a"))]),
    ],
)
def test_what_is_no_name_is_refused(data: bytes) -> None:
    with pytest.raises(BadName):
        name_text(data)


@given(st.binary(max_size=60))
def test_bytes_are_a_name_or_are_refused(data: bytes) -> None:
    for read in (name_text, subject_of, end_of):
        for each in (data, der(0x30, data), name([attribute(CN, data)])):
            with contextlib.suppress(BadName):
                assert isinstance(read(each), (str, float))


OIDS = [
    *(CN, ORG, E_MAIL, UID, "550406", "550407", "550408", "550409", "55040b", "550405", "55042a"),
    *("0992268993f22c640119", "55040c", "2a0304", "883703"),
]
TAGS = [*[0x0C] * 4, *[0x13] * 3, 0x14, 0x16, 0x1B, 0x1C, 0x1E, 0x04, 0x30, 0x02, 0x03, 0x01, 0x18]
ODD = (
    *(b"\xed\xa0\x80", b"\xed\xa0\x80\xed\xb0\x80", b"\xf0\x9f\x98\x80", b"\xe0\x80\x80"),
    *(b"\xf8\x88", b"\xc0\x80", b"\xf4\x90\x80\x80", b"a\xe2\x82", b"\xf0\x9f\x98"),
)


@st.composite
def values(draw: Callable[..., bytes]) -> bytes:
    texts = st.text('ab ,=+<>#;"\\\r\n\t\0é€𝄞*/@.', max_size=6).map(str.encode)
    content = draw(st.one_of(texts, texts, st.binary(max_size=5), st.sampled_from(ODD)))
    return der(draw(st.sampled_from(TAGS)), content)


PARTS = st.lists(st.builds(attribute, st.sampled_from(OIDS), values()), min_size=1, max_size=3)
NAMES = st.lists(PARTS, max_size=3).map(lambda parts: name(*parts))


@pytest.mark.java
def test_the_text_is_that_of_java() -> None:
    names: list[bytes] = []
    collect(NAMES, names, 800)
    certificates = [
        CA.issue(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text, _type=kind)]))
        for text in ("a", " a, b ", "#", "ä")
        for kind in (_ASN1Type.UTF8String, _ASN1Type.BMPString)
    ]
    ders = [each.certificate.public_bytes(Encoding.DER) for each in certificates]
    answers = ask([*(("name", each) for each in names), *(("certificate", each) for each in ders)])
    ours = [*map(name_text, names), *map(subject_of, ders)]
    different = [
        (data.hex(), mine, java)
        for data, mine, java in zip([*names, *ders], ours, answers, strict=True)
        if mine != java
    ]
    assert different == []


def collect(strategy: st.SearchStrategy[bytes], into: list[bytes], count: int) -> None:
    """Examples of a strategy, the same in every run."""

    @settings(max_examples=count, database=None, derandomize=True, deadline=None)
    @given(strategy)
    def keep(example: bytes) -> None:
        into.append(example)

    keep()


# -- rules

KAFKAS_EXAMPLE = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "subject", "user"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        (
            KAFKAS_EXAMPLE,
            "CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown",
            "serviceuser",
        ),
        (
            KAFKAS_EXAMPLE,
            "CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown",
            "adminuser@admin",
        ),
        (KAFKAS_EXAMPLE, "OU=x,cn=aB.c,O=d", "ab.c"),
        (KAFKAS_EXAMPLE, "O=x", "O=x"),
        (" RULE:CN=(\\w+).*/$1/U , DEFAULT ", "CN=db1,O=x", "DB1"),
        ("RULE:CN=(a|b)*(c)?/<$1$2>\\/\\$1/", "CN=ab", "<b>/$1"),
        ("RULE:CN=(.*?)/$1/", "CN=a", "a"),
        ("RULE:(.*)/[$1]/", "CN=a", "[CN=a][]"),
        ("RULE:CN=([^,]{1,3}),.*/$12/", "CN=abc,O=x", "abc2"),
        ("RULE:" + "(.)" * 11 + "/$11$1$12/", "abcdefghijk", "kaa2"),
        ("RULE:(a)|b/<$1>/", "b", "<>"),
        ("RULE:(a|aba)/<$1>/", "aba", "<a>b<a>"),
    ],
)
def test_rules_as_in_kafka(rules: str, subject: str, user: str) -> None:
    assert MappingRules(rules).user_of(subject) == user


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("", "there is no rule: write DEFAULT"),
        (",,", "there is no rule"),
        ("default", "'default' is no rule: permitted are DEFAULT and RULE:pattern/replacement/"),
        ("RULE:a/b", "is no rule"),
        ("RULE:a/b/X", "is no rule"),
        ("RULE:a/b/LU", "is no rule"),
        ("DEFAULTX", "is no rule"),
        ("RULE:(a/b/", "has a '(' without its ')'"),
        ("RULE:a)/b/", "has a ')' without its '('"),
        ("RULE:[a/b/", "ends too early"),
        ("RULE:(?=a)/b/", "of which only '(?:' is supported"),
        ("RULE:(?i)a/b/", "of which only '(?:' is supported"),
        ("RULE:(a)\\1/b/", "'\\1', which is not supported"),
        ("RULE:\\bx/b/", "'\\b', which is not supported"),
        ("RULE:a*+/b/", "possessive or a doubled quantifier"),
        ("RULE:(a*)*/b/", "repeats what may be empty"),
        ("RULE:[a&&b]/b/", "has a class in a class, or '&&'"),
        ("RULE:[[ab]]/b/", "has a class in a class"),
        ("RULE:a{/b/", "has a '{' that is no repetition"),
        ("RULE:a{9999}/b/", "repeats more than 1000 times"),
        ("RULE:(a{1000}){1000}/b/", "the expression is too large"),
        ("RULE:*a/b/", "with nothing to repeat"),
        ("RULE:(a)/$2/", "there are $0 to $1; write '\\$' for the character"),
        ("RULE:(a)/$x/", "there are $0 to $1"),
        ("RULE:(a)/$/", "there are $0 to $1"),
        ("RULE:" + "(" * 3_000 + "/b/", "too many groups in groups"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words(rules: str, said: str) -> None:
    with pytest.raises(BadRule) as caught:
        MappingRules(rules)
    assert said in str(caught.value)


def test_an_expression_has_so_many_parts_and_no_more() -> None:
    BoundedPattern("a" * INSTRUCTIONS_MAX)
    with pytest.raises(BadPattern, match="too large"):
        BoundedPattern("a" * (INSTRUCTIONS_MAX + 1))


@pytest.mark.parametrize("name", ["CN=a,O=b", "O=b,CN=a", "CN=a ", " CN=a"])
def test_a_rule_is_for_names_that_fit_as_a_whole(name: str) -> None:
    """Else whoever has a part of an administrator's name would be one."""
    rules = "RULE:CN=([a-z]+)/admin/"
    assert MappingRules(rules).user_of("CN=a") == "admin"
    with pytest.raises(CertificateProblem, match="fits none"):
        MappingRules(rules).user_of(name)
    assert MappingRules(f"{rules},DEFAULT").user_of(name) == name


@pytest.mark.parametrize(
    ("pattern", "spans"),
    [
        ("(a*)(a*)", (0, 2, 0, 2, 2, 2)),
        ("(a*?)(a*)", (0, 2, 0, 0, 0, 2)),
        ("(a+?)(a*)", (0, 2, 0, 1, 1, 2)),
        ("(a??)(a*)", (0, 2, 0, 0, 0, 2)),
        ("(a{1,2}?)(a*)", (0, 2, 0, 1, 1, 2)),
    ],
)
def test_a_lazy_quantifier_takes_as_little_as_it_can(pattern: str, spans: tuple[int, ...]) -> None:
    assert BoundedPattern(pattern).match_all("aa") == spans


def test_the_first_rule_that_fits_counts_though_it_leaves_nothing_of_the_name() -> None:
    assert MappingRules("RULE:CN=guest.*//,DEFAULT").user_of("CN=guest") == ""
    assert MappingRules("RULE:CN=guest.*//,DEFAULT").user_of("CN=host") == "CN=host"


def test_a_name_that_fits_no_rule_is_nobody() -> None:
    for rules, subject in (
        ("RULE:CN=a/a/", "CN=b"),
        ("RULE:.*/a/", "CN=a\nb"),
        ("RULE:CN=[^,]*/a/", "CN=a\nb"),
        ("RULE:.*/a/", "x" * 5_000),
    ):
        with pytest.raises(CertificateProblem, match="the name of its certificate"):
            MappingRules(rules).user_of(subject)
    # Without rules nothing is asked of it.
    assert MappingRules("DEFAULT").user_of("CN=a\nb") == "CN=a\nb"


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|aa)+$", "(.*?,)+(.*?,)+(.*?,)+X", "(\\w+\\.?)+@"]
)
def test_no_pattern_goes_on_for_ever(pattern: str) -> None:
    begin = time.thread_time()
    for subject in ("a" * 4_000 + "!", "a," * 1_500):
        with pytest.raises(CertificateProblem):
            MappingRules(f"RULE:{pattern}/x/").user_of(subject)
    assert time.thread_time() - begin < 20


@given(st.text("ab(){}[]|*+?.^$\\,-&:=dwsL1$/", max_size=20))
def test_any_text_is_a_pattern_or_is_refused(text: str) -> None:
    try:
        pattern = BoundedPattern(text)
    except BadPattern:
        return
    for subject in ("", "ab", "a.b,c=d"):
        whole = pattern.match_all(subject)
        assert whole is None or whole[:2] == (0, len(subject))
        assert all(0 <= each[0] <= each[1] <= len(subject) for each in pattern.find_each(subject))


@given(st.text(max_size=40))
def test_any_text_is_rules_or_is_refused(text: str) -> None:
    try:
        MappingRules(text)
        MappingRules(f"RULE:{text}/$1/,DEFAULT")
    except BadRule:
        pass


ATOMS = (
    *("a", "b", "C", "N", "=", ",", "O", ".", "\\d", "\\w", "[ab]", "[^,]", "[a-c]", "\\.", "\\W"),
    *(
        "(a)",
        "(b|a)",
        "(?:ab|a)",
        "(.*)",
        "(.*?)",
        "([^,]*)",
        "(a|b)*",
        "(a+)",
        "(?:,b)?",
        "^",
        "$",
    ),
    *("|", "[\\w.]", "(a)?", "(?:a|(b))+", "((a)|b)+", ".*", ".*?"),
)
QUANTIFIERS = ("", "", "", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,2}?", "{1,}")
REPLACEMENTS = ("$1", "$0", "x", "$2", "-", "$1$1", "\\$", "@", "$12", "\\/", "")
SUBJECTS = ("a", "b", "ab", "CN=", ",", "O=", "a", "c", "é", "ß", "İ", " ", "1", ".")


@pytest.mark.java
def test_the_user_is_that_of_kafka() -> None:
    draw = random.Random(1)

    def text(parts: tuple[str, ...], most: int) -> str:
        return "".join(draw.choice(parts) for _ in range(draw.randrange(most)))

    def rule() -> str:
        pattern = "".join(
            draw.choice(ATOMS) + draw.choice(QUANTIFIERS) for _ in range(draw.randrange(1, 6))
        )
        return f"RULE:{pattern}/{text(REPLACEMENTS, 3)}/{draw.choice(('', '', 'L', 'U'))}"

    asked: list[tuple[str, str, str | None]] = []
    while len(asked) < 3_000:
        rules = draw.choice((",", " , ", ",,")).join(rule() for _ in range(draw.choice((1, 1, 2))))
        subject = text(SUBJECTS, 7)
        try:
            mapping = MappingRules(rules)
        except BadRule:
            continue
        try:
            asked.append((rules, subject, mapping.user_of(subject)))
        except CertificateProblem:
            asked.append((rules, subject, None))
    answers = ask([("rule", rules.encode(), subject.encode()) for rules, subject, _ in asked])
    assert [(*one, java) for one, java in zip(asked, answers, strict=True) if one[2] != java] == []
    assert sum(user is not None for _, _, user in asked) > 300
