"""Sign reports and verify signed ones. Needs the extra `sign`."""

from iet.errors import missing

try:
    from iet.report.sign.envelope import MAX_BYTES
    from iet.report.sign.keys import PrivateKey, PublicKey, load_public_key, load_signers
    from iet.report.sign.manifests import embed_manifest, verify_manifest
    from iet.report.sign.signed import (
        PREDICATE_TYPE,
        STATEMENT_TYPE,
        Verified,
        add_signatures,
        sign,
        verify,
    )
    from iet.report.sign.timestamps import (
        add_timestamps,
        check_authority,
        load_roots,
        request_timestamp,
        verify_timestamp,
    )
except ImportError as error:
    raise missing(f"signing reports: {error}", "sign") from None

__all__ = [
    "MAX_BYTES",
    "PREDICATE_TYPE",
    "STATEMENT_TYPE",
    "PrivateKey",
    "PublicKey",
    "Verified",
    "add_signatures",
    "add_timestamps",
    "check_authority",
    "embed_manifest",
    "load_public_key",
    "load_roots",
    "load_signers",
    "request_timestamp",
    "sign",
    "verify",
    "verify_manifest",
    "verify_timestamp",
]
