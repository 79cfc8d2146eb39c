"""Whose certificate speaks for which node."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumd.config.errors import BadValue
from quorumd.config.node_principals import NodePrincipals, node_principals

# Digits and what looks like them, so that texts overlap.
parts = st.text(st.sampled_from("01279-,=\\{. "), max_size=5)
templates = st.builds(lambda before, behind: f"User:{before}{{id}}{behind}".strip(), parts, parts)
ids = st.one_of(st.integers(0, 300), st.integers(0, 2**31 - 1))


def test_a_principal_speaks_for_the_id_that_it_names_and_for_no_other() -> None:
    rule = node_principals("User:quorumd-{id}")
    assert rule.may_speak_for("User:quorumd-1", 1)
    assert not rule.may_speak_for("User:quorumd-1", 11)
    assert not rule.may_speak_for("User:quorumd-11", 1)
    assert rule.id_of("User:quorumd-2147483647") == 2147483647


@pytest.mark.parametrize(
    "principal",
    [
        "User:quorumd-01",
        "User:quorumd-+1",
        "User:quorumd--1",
        "User:quorumd-1 ",
        "User:quorumd-1\n",
        "User:quorumd-\u0661",  # ARABIC-INDIC DIGIT ONE
        "User:quorumd-1_0",
        "User:quorumd-2147483648",
        "User:quorumd-99999999999",
        "User:quorumd-",
        "User:quorumd-{id}",
        "user:quorumd-1",
        "User:QUORUMD-1",
        "User:xUser:quorumd-1",
        "User:ANONYMOUS",
        "",
    ],
)
def test_a_text_that_only_resembles_a_nodes_is_no_nodes(principal: str) -> None:
    assert node_principals("User:quorumd-{id}").id_of(principal) is None


@pytest.mark.parametrize(
    "name",
    [
        r"CN=quorumd-1\,O=Example,O=Other",
        r"CN=quorumd-1\,O=Example",
        r"CN=x\,CN=quorumd-1,O=Example",
        "CN=quorumd-1,O=Example,O=Example",
        "OU=x,CN=quorumd-1,O=Example",
        "CN=quorumd-1+UID=2,O=Example",
        r"CN=quorumd-1\ ,O=Example",
        "CN=quorumd-1\0,O=Example",
    ],
)
def test_a_name_with_odd_characters_is_no_nodes(name: str) -> None:
    rule = node_principals("User:CN=quorumd-{id},O=Example")
    assert rule.id_of("User:CN=quorumd-1,O=Example") == 1
    assert rule.id_of(f"User:{name}") is None


def test_what_stands_around_the_id_means_itself() -> None:
    rule = node_principals("User:a.*[0-9]+({id})")
    assert rule.id_of("User:a.*[0-9]+(7)") == 7
    assert rule.id_of("User:abc5(7)") is None


def test_several_templates_serve_while_names_change() -> None:
    rule = node_principals("User:quorumd-{id}; User:CN={id}.db.example.com")
    assert rule.may_speak_for("User:quorumd-3", 3)
    assert rule.may_speak_for("User:CN=3.db.example.com", 3)
    assert rule.templates == ("User:quorumd-{id}", "User:CN={id}.db.example.com")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "an entry is empty"),
        ("User:a{id};", "an entry is empty"),
        ("User:quorumd", "super.users"),
        ("User:n{id};User:admin", "'User:admin' names no node"),
        ("quorumd-{id}", "does not begin with User:"),
        ("User:{id}-{id}", "more than once"),
        ("User:n{id};User:n1{id}", "'User:n11' would be the principal of two nodes"),
        ("User:n{id};User:n{id}5", "would be the principal of two nodes"),
        ("User:n{id}-5;User:n1-{id}", "'User:n1-5' would be the principal of two nodes"),
        ("User:n10{id}1;User:n100{id}", "'User:n1001' would be the principal of two nodes"),
    ],
)
def test_what_can_be_no_rule_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadValue) as refused:
        node_principals(text)
    assert said in str(refused.value)


@given(templates, ids)
def test_each_node_has_a_principal(template: str, replica_id: int) -> None:
    if template.count("{id}") == 1:
        rule = node_principals(template)
        assert rule.id_of(template.replace("{id}", str(replica_id))) == replica_id


@pytest.mark.long
@given(st.lists(templates, min_size=2, max_size=3, unique=True), st.lists(ids, min_size=2))
@settings(max_examples=400)
def test_no_principal_is_that_of_two_nodes(texts: list[str], replica_ids: list[int]) -> None:
    try:
        rule = node_principals(";".join(texts))
    except BadValue as refused:
        if "would be the principal of two nodes" in str(refused):
            principal = str(refused).split("'")[1].replace("\\\\", "\\")
            alone = (NodePrincipals((text,)).id_of(principal) for text in texts)
            assert len({each for each in alone if each is not None}) > 1
        return
    for template in rule.templates:
        for replica_id in replica_ids:
            principal = template.replace("{id}", str(replica_id))
            assert rule.id_of(principal) == replica_id
            assert [each for each in replica_ids if rule.may_speak_for(principal, each)] == [
                each for each in replica_ids if each == replica_id
            ]
