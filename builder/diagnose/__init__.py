"""Log -> ranked causes -> recipe edits."""

from builder.diagnose.diagnosing import diagnose, diagnose_files
from builder.diagnose.model import Cause, Diagnosis, Facts, Failure
from builder.diagnose.offering import offered_finding
from builder.diagnose.report import explain, render
from builder.verify.reported import Edit, Evidence, Misleading

__all__ = [
    "Cause",
    "Diagnosis",
    "Edit",
    "Evidence",
    "Facts",
    "Failure",
    "Misleading",
    "diagnose",
    "diagnose_files",
    "explain",
    "offered_finding",
    "render",
]
