"""Log -> ranked causes -> recipe edits."""

from builder.diagnose.diagnosing import diagnose, diagnose_files
from builder.diagnose.model import Cause, Diagnosis, Edit, Evidence, Facts, Failure, Misleading
from builder.diagnose.offering import offered_finding
from builder.diagnose.report import explain, render

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
