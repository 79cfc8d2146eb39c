"""Real TLS handshakes between two sides in memory, and what each of them says of it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quorumd.config.tls import ClientAuth, TlsConfig
from quorumd.security.credentials import Credentials
from quorumd.security.errors import CertificateProblem
from quorumd.security.identity import Identity
from tests.support.odd_certificates import Authority, Issued

TURNS = 6


@dataclass
class End:
    """One side of a handshake, and its outcome."""

    side: Credentials
    host: str | None = None
    incoming: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)
    outgoing: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)
    tls: ssl.SSLObject | None = None
    identity: Identity | None = None
    problem: CertificateProblem | None = None

    def step(self) -> None:
        """Go on with what has come; what fails after the handshake counts as well."""
        if self.problem is not None:
            return
        try:
            if self.tls is None:
                self.tls = self.side.tls_object(self.incoming, self.outgoing, self.host)
            if self.identity is None:
                self.tls.do_handshake()
                self.identity = self.side.identify(self.tls.getpeercert(True))
            self.tls.read(1)
        except ssl.SSLWantReadError:
            pass
        except CertificateProblem as problem:
            self.problem = problem
        except ssl.SSLError as error:
            self.problem = self.side.explain(error, self.host, self.tls)


def shake(server: Credentials, client: Credentials, host: str = "localhost") -> tuple[End, End]:
    """A whole handshake: the server's end and the client's."""
    here, there = End(server), End(client, host)
    for _ in range(TURNS):
        there.step()
        here.incoming.write(there.outgoing.read())
        if here.incoming.pending or here.tls is not None:
            here.step()
        there.incoming.write(here.outgoing.read())
    return here, there


def side(
    folder: Path, issued: Issued | None, *trusted: Authority, is_server: bool, **more: Any
) -> Credentials:
    """Credentials whose files are in this folder."""
    return Credentials(configured(folder, issued, *trusted, **more), is_server=is_server)


def configured(folder: Path, issued: Issued | None, *trusted: Authority, **more: Any) -> TlsConfig:
    """Configuration of a side whose files are in this folder; clients have to have certificates."""
    number = len(list(folder.iterdir()))
    keys: dict[str, Any] = {"ssl_client_auth": ClientAuth.REQUIRED}
    if issued is not None:
        keys["ssl_keystore_location"] = issued.write(folder / f"node{number}.pem")
    if trusted:
        keys["ssl_truststore_location"] = folder / f"ca{number}.pem"
        keys["ssl_truststore_location"].write_bytes(b"".join(each.pem for each in trusted))
    return TlsConfig(**{**keys, **more})
