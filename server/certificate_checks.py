"""Checks of the files of keys and certificates before a start, and before new ones while a node runs.

Loads what reads certificates only where TLS is configured.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from quorumd.config.node_principals import USER
from quorumd.config.tls_port import TlsPort

_DECIDE_WHO_SPEAKS: Final = ("quorum.node.principals", "super.users", "ssl.principal.mapping.rules")

if TYPE_CHECKING:
    from quorumd.config.model import Config
    from quorumd.security.material import Material
    from quorumd.server.model.node_rights import NodeRights


def certificate_problems(port: TlsPort, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Key of the configuration and text of all that forbids a start; `values` are by key."""
    from quorumd.server.model.node_rights import NodeRights

    rights = NodeRights(
        values.get("quorum.node.principals"), values.get("super.users", frozenset())
    )
    return port_problems(port, rights, values.get("node.id"))


def port_problems(
    port: TlsPort, rights: NodeRights, node_id: int | None, material: Material | None = None
) -> list[tuple[str, str]]:
    """Key of the configuration and text of all for which these keys and certificates are not used.

    Reads the files, unless `material` has been read from them. Without a `node_id` whose certificate it is
    does not matter.
    """
    from quorumd.security.checks import problems_of
    from quorumd.security.material import readable_material

    problems = problems_of(
        port.tls,
        listener=port.name,
        hosts=port.hosts,
        is_server=True,
        is_peers=port.is_first,
        has_node_stores=port.has_node_stores,
        material=material,
        unread=port.unread,
    )
    if port.has_peers and node_id is not None and port.unread.isdisjoint(_DECIDE_WHO_SPEAKS):
        # Files that cannot be read are among the problems already.
        found = material or readable_material(port.tls, port.unread).material
        problems += _lock_out(port, rights, node_id, found)
    return problems


def port_warnings(port: TlsPort, material: Material | None = None) -> list[tuple[str, str]]:
    """Key of the configuration and text of what is dangerous and refused nowhere. Reads files if need be."""
    from quorumd.security.checks import warnings_of

    found = warnings_of(port.tls, material)
    if port.is_first and not port.tls.ssl_endpoint_identification_algorithm:
        text = (
            "is empty: links to other nodes take a certificate that does not name the host that was dialled. "
            "Remove this key, or set it to https"
        )
        found.append(("ssl.endpoint.identification.algorithm", text))
    return found


def certificate_report(config: Config) -> Iterator[str]:
    """Lines that say what is in use on each port, and until when; then lines that say what is dangerous."""
    if not config.tls_ports:
        yield "nothing is TLS: listener.security.protocol.map and http.security.protocol name no SSL"
        return
    from quorumd.security.expiry import expiries
    from quorumd.security.handshake_failures import duration
    from quorumd.security.material import read_material

    warnings: dict[str, None] = {}
    now_s = time.time()
    for port in config.tls_ports:
        material = read_material(port.tls)
        yield f"{port.name}: nothing would be refused"
        for role, subject, at_s, _ in expiries(material):
            if isfinite(at_s):
                day = datetime.fromtimestamp(at_s, UTC)
                left = duration(at_s - now_s)
                yield f"  {role:3}  {subject or 'no name'}  ends {day:%Y-%m-%d %H:%M} UTC, in {left}"
        for key, text in port_warnings(port, material):
            warnings[f"warning: {key}: {text}"] = None
    yield from warnings
    for text in secret_warnings(config):
        yield f"warning: {text}"


def _lock_out(
    port: TlsPort, rights: NodeRights, node_id: int, material: Material
) -> list[tuple[str, str]]:
    """The other nodes have the same rules: would they listen to this one?"""
    from cryptography.hazmat.primitives.serialization import Encoding

    from quorumd.security.distinguished_name import BadName, subject_of
    from quorumd.security.errors import CertificateProblem
    from quorumd.security.identity import ANONYMOUS
    from quorumd.security.mapping_rules import BadRule, rules_of
    from quorumd.security.material import KEYSTORE

    if not material.chain:
        return []
    refused = "the other nodes would refuse this one"
    try:
        subject = subject_of(material.chain[0].public_bytes(Encoding.DER))
        own = USER + rules_of(port.tls.ssl_principal_mapping_rules).user_of(subject)
    except BadRule:
        return []  # as `problems_of` says
    except BadName as error:
        return [(KEYSTORE, f"{refused}: the name of its certificate cannot be read: {error}")]
    except CertificateProblem as error:
        return [("ssl.principal.mapping.rules", f"{refused}: {error}")]
    if rights.may_speak_for(own, node_id):
        return []
    if own == ANONYMOUS:
        text = f"{refused}: they make its certificate {own}, who shows no certificate: give it another name"
        return [("ssl.principal.mapping.rules", text)]
    key, permitted = rights.rule_for(node_id)
    return [
        (
            key,
            f"this node's certificate is that of {own}, who may not speak for node {node_id}: the other "
            f"nodes would refuse it. Have one issued to {permitted}, map its name to that by "
            f"ssl.principal.mapping.rules, or change {key} on every node",
        )
    ]


def secret_warnings(config: Config) -> Iterator[str]:
    """The files with passwords or keys, beside stores, that every user of this host can read."""
    for path in sorted(config.secret_files):
        with suppress(OSError):
            if path.stat().st_mode & stat.S_IROTH:
                yield f"everybody on this host may read the password or key in {path}: chmod 600 {path}"
