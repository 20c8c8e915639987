"""The check `static.links`: every library finds the libraries, versions and symbols that it links, within the image."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from builder.verify.static_report import first_of, shortened
from builder.verify.verdict import Check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.verify.static_report import LinkProblem, StaticReport

CUDA_LIBRARY = re.compile(
    r"^lib(cudart|cublas|cublasLt|cudnn\w*|nccl|nvrtc|cufft|curand|cusparse|cusparseLt|cusolver|nvJitLink)\.so\.(\d+)$"
)
# Names of PyTorch's own namespaces in C++ symbols (Itanium ABI): c10, at, torch, caffe2; and its C functions.
TORCH_SYMBOL = re.compile(r"^_ZN?K?.*(3c10|2at|5torch|6caffe2)[0-9A-Z]|^(c10_|aoti_torch_|THP)")
NUMBER = re.compile(r"[0-9]+")
SYSTEM_VERSION = re.compile(r"^(GLIBC|GLIBCXX|CXXABI|GCC)_")


def links_check(report: StaticReport, *, built: Sequence[str], stack: Sequence[str]) -> Check:
    """Judge what the libraries of an image do not find.

    What fails: a Python module, or a library that one needs, of torch, of the recipe's own packages or of compiled
    ones; and in any package the signs of a build for another torch, CUDA or C library, and CUDA libraries in two
    editions. Libraries that are only opened by name (plug-ins for MPI, InfiniBand) are evidence. What a package carries
    in editions for several versions of another (torch, FFmpeg) is one line, and none if one edition is whole.
    """
    own: set[str] = {canonicalize_name(name) for name in (*built, *stack, "torch")}
    versions = {one.name: one.version for one in report.distributions}
    links = report.links
    failed = [one for one in links.problems if _decides(one, own)]
    problems = [sentence for one in failed for sentence in _sentences(one, versions)]
    problems += [
        f"{copies.soname} is there in {len(copies.paths)} editions, and whichever is loaded first serves all: "
        + ", ".join(copies.paths)
        for copies in links.copies
        if CUDA_LIBRARY.match(copies.soname)
    ]
    others = [one for one in links.problems if one not in failed and not one.whole_editions]
    warnings = [f"warning: {sentence}" for one in _editions(others) for sentence in _warned(one, versions)]
    return Check(
        name="static.links",
        level="static",
        outcome="failed" if problems else "passed",
        summary=first_of(problems)
        or f"{links.looked_at - len(others)} of {links.looked_at} libraries find all that they link"
        + (f"; of the other {len(others)} no module needs what is missing" if others else ""),
        figures={"libraries": links.looked_at, "problems": len(problems), "warnings": len(warnings)},
        evidence=shortened([*problems, *warnings, *links.unreadable]),
    )


def _decides(one: LinkProblem, own: set[str]) -> bool:
    opened_by_torch = one.links_torch and one.distribution in own  # as torch.ops.load_library does
    if one.role == "other" and not opened_by_torch:
        return False
    if not (one.missing or one.versions or one.undefined_count):
        return False
    return (
        one.distribution in own
        or one.undefined_count > 0
        or any(map(CUDA_LIBRARY.match, one.missing))
        or any(map(SYSTEM_VERSION.match, one.versions))
    )


def _editions(others: Sequence[LinkProblem]) -> list[LinkProblem]:
    """Return one for each group of editions of a library: the newest."""
    newest = {(one.distribution, NUMBER.sub("#", one.path)): one for one in sorted(others, key=_numbers)}
    return sorted(newest.values(), key=lambda one: (one.path, one.distribution))


def _numbers(one: LinkProblem) -> list[int]:
    return [int(number) for number in NUMBER.findall(one.path)]


def _warned(one: LinkProblem, versions: dict[str, str]) -> list[str]:
    sentences = _sentences(one, versions)
    if not one.editions:
        return sentences
    more = f" and {len(sentences) - 1} more" if len(sentences) > 1 else ""
    return [f"{sentences[0]}{more}; its {one.editions} other editions find no more"]


def _sentences(one: LinkProblem, versions: dict[str, str]) -> list[str]:
    """Return what is wrong with a library, each kind in a sentence of its own."""
    found = [f"{one.path} needs {name}, which is not in the image{_other_cuda(name)}" for name in one.missing]
    found += [f"{one.path} needs {version}, which the image's is too old for" for version in one.versions]
    found += [f"{one.path} needs {name}, which Python code must open before it" for name in one.preloaded]
    if one.undefined_count:
        for_torch = one.links_torch and any(map(TORCH_SYMBOL.match, one.undefined))
        why = f": it was built for another torch than {versions.get('torch', 'the installed one')}" if for_torch else ""
        more = f" and {one.undefined_count - 1} more" if one.undefined_count > 1 else ""
        found.append(f"{one.path} needs the symbol {one.undefined[0]}{more}, which nothing defines{why}")
    return found


def _other_cuda(name: str) -> str:
    match = CUDA_LIBRARY.match(name)
    if match is None or match[1].startswith(("cudnn", "nccl")):
        return ""
    return f": it was built for CUDA {match[2]}" if match[1] in {"cudart", "cublas", "cublasLt", "nvrtc"} else ""
