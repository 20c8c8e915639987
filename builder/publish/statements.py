"""In-toto statements: which image something is said of, what kind of thing is said, and what."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from builder.document import canonical_json
from builder.publish.envelope import UnprovenError

STATEMENT = "https://in-toto.io/Statement/v1"
SIGNATURE = "https://sigstore.dev/cosign/sign/v1"  # says nothing but "this image": what cosign 3 calls a signature
SBOM = "https://cyclonedx.org/bom"
PROVENANCE = "https://slsa.dev/provenance/v1"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
KINDS = {SIGNATURE: "signature", SBOM: "SBOM", PROVENANCE: "provenance", TEST_RESULT: "verdict"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """Something that is said of one image: `digest` is that of its manifest, `name` what people call it."""

    name: str
    digest: str
    kind: str
    predicate: dict[str, Any]

    def to_bytes(self) -> bytes:
        """Return the payload that is signed."""
        return canonical_json(
            {
                "_type": STATEMENT,
                "subject": [{"name": self.name, "digest": {"sha256": self.digest.removeprefix("sha256:")}}],
                "predicateType": self.kind,
                "predicate": self.predicate,
            }
        )


def read_statement(payload: bytes) -> Statement:
    """Read a payload, after its signature was proven; raises UnprovenError unless it speaks of exactly one image."""
    try:
        plain = json.loads(payload)
        subjects, kind, predicate = plain["subject"], plain["predicateType"], plain["predicate"]
        is_statement = plain["_type"] == STATEMENT
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UnprovenError("holds no in-toto statement") from None
    if not is_statement or not isinstance(kind, str) or not isinstance(predicate, dict):
        raise UnprovenError("holds no in-toto statement of version 1")
    if not isinstance(subjects, list) or len(subjects) != 1:
        raise UnprovenError("does not speak of exactly one image")
    try:
        name, digest = str(subjects[0].get("name", "")), dict(subjects[0]["digest"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UnprovenError("does not name its image by a digest") from None
    if digest.keys() != {"sha256"}:
        raise UnprovenError("does not name its image by a sha256 alone")
    return Statement(name=name, digest=f"sha256:{digest['sha256']}", kind=kind, predicate=predicate)
