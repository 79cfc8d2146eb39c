"""A certificate that Chromium shows without asking: it is in the NSS database of a home folder.

Chromium brings NSS along; its own tool for this, pk12util, is a package apart.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from tests.support.odd_certificates import Issued

_PASSWORD = "of-one-transport"


class _Item(ctypes.Structure):
    """NSS' SECItem."""

    _fields_ = (("type", ctypes.c_uint), ("data", ctypes.c_char_p), ("len", ctypes.c_uint))


_Collision = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int), ctypes.c_void_p
)


def give_certificate(home: Path, profile: Path, issued: Issued, origin: str) -> None:
    """A browser with this home and this profile shows the certificate to this origin, https://host:port."""
    encryption = BestAvailableEncryption(_PASSWORD.encode())
    store = pkcs12.serialize_key_and_certificates(
        b"browser", issued.key, issued.certificate, None, encryption
    )
    _import(home / ".pki" / "nssdb", store)
    # What the policy AutoSelectCertificateForUrls sets; an empty filter fits every certificate.
    chosen: dict[str, object] = {f"{origin},*": {"setting": {"filters": [{}]}}}
    exceptions = {"auto_select_certificate": chosen}
    preferences = profile / "Default" / "Preferences"
    preferences.parent.mkdir(parents=True)
    preferences.write_text(
        json.dumps({"profile": {"content_settings": {"exceptions": exceptions}}})
    )


def _import(database: Path, store: bytes) -> None:
    """Key and certificate of a PKCS12 store into a new database without a password."""
    database.mkdir(parents=True)
    nss, smime = ctypes.CDLL("libnss3.so"), ctypes.CDLL("libsmime3.so")
    nss.PK11_GetInternalKeySlot.restype = ctypes.c_void_p
    smime.SEC_PKCS12DecoderStart.restype = ctypes.c_void_p

    def do(step: str, failure: int) -> None:
        assert not failure, f"NSS: {step}"

    do("create the database", nss.NSS_InitReadWrite(f"sql:{database}".encode()))
    slot = ctypes.c_void_p(nss.PK11_GetInternalKeySlot())
    do("set no password", nss.PK11_InitPin(slot, None, b""))
    text = f"{_PASSWORD}\0".encode("utf-16-be")
    password = _Item(0, text, len(text))
    nothing = (None,) * 6
    context = ctypes.c_void_p(smime.SEC_PKCS12DecoderStart(ctypes.byref(password), slot, *nothing))
    do("read the store", smime.SEC_PKCS12DecoderUpdate(context, store, len(store)))
    do("verify the store", smime.SEC_PKCS12DecoderVerify(context))
    no_collision = _Collision(lambda *_: None)
    do("take its names", smime.SEC_PKCS12DecoderValidateBags(context, no_collision))
    do("import the store", smime.SEC_PKCS12DecoderImportBags(context))
    smime.SEC_PKCS12DecoderFinish(context)
    nss.PK11_FreeSlot(slot)
    do("close the database", nss.NSS_Shutdown())
