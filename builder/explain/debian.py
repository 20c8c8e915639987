"""Who wants a Debian package of a lock: chains of `Depends`, read from the .debs themselves."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from builder.errors import ResolveError
from builder.explain.graph import Edge, chains_to
from builder.explain.model import Explanation, Link, Want
from builder.lock.debian import fetch_debs
from builder.process import run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from builder.lock.changes import Part
    from builder.lock.model import Lock, LockedDeb
    from builder.recipe.source import RecipeFile
    from builder.store import Store
    from builder.tools import Tools

FIELDS = ("Pre-Depends", "Depends")
SMALLEST = "part of Debian's smallest system (Essential, or Priority: required)"
READERS = 4  # dpkg-deb at a time
_DEPENDENCY = re.compile(r"^\s*(?P<name>[a-z0-9][a-z0-9.+-]*)(?::[a-z0-9]+)?\s*(?:\((?P<bound>[^)]*)\))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """What a .deb says of itself: what it depends on (alternatives in one text), what it provides, its priority."""

    depends: tuple[str, ...]
    provides: tuple[str, ...]
    required: bool


def explain_debian(source: RecipeFile, lock: Lock, name: str, tools: Tools) -> tuple[Explanation, ...]:
    """Return the explanation of a Debian package of a lock; .debs that the store does not have are fetched."""
    debian = lock.file.debian
    if debian is None:
        return _in_image(lock, name)
    part: Part = "image" if any(deb.name == name for deb in debian.base) else "toolchain"
    debs = debian.base if part == "image" else (*debian.base, *debian.toolchain)
    found = next((deb for deb in debs if deb.name == name), None)
    if found is None:
        return ()
    fetch_debs(debs, tools.store, tools.settings)
    controls = read_controls(debs, tools.store)
    asked = lock.file.question["debian"]["base" if part == "image" else "toolchain"]
    wants = wants_of(name, first_of(source, asked, part, controls), controls, {deb.name: deb.version for deb in debs})
    return (
        Explanation(
            world="debian",
            part=part,
            name=name,
            version=found.version,
            bytes=found.size,
            origin=f"Debian {debian.suite}, archive {found.archive}",
            wants=wants,
            remark=SMALLEST if controls[name].required else None,
        ),
    )


def _in_image(lock: Lock, name: str) -> tuple[Explanation, ...]:
    """Return what is known of a package of a base image: its version, and that the image brings it."""
    base = lock.file.base
    if base is None or name not in base.packages:
        return ()
    return (
        Explanation(
            world="debian",
            part="image",
            name=name,
            version=base.packages[name],
            bytes=None,
            origin=base.reference,
            wants=(),
        ),
    )


def first_of(
    source: RecipeFile, asked: Iterable[str], part: Part, controls: Mapping[str, Control]
) -> tuple[Edge[str], ...]:
    """Return what asks first: the recipe's own packages, what every image or toolchain needs, the smallest system."""
    own = set(source.recipe.base.packages)
    ground = "every image of envbuild" if part == "image" else "every toolchain of envbuild"
    place = source.place_of("base", "packages")
    wished = [
        Edge(owner=None, label=place if name in own else ground, text=name, leads_to=(name,))
        for name in asked
        if name in controls
    ]
    smallest = [
        Edge(owner=None, label="Debian's smallest system", text=name, leads_to=(name,))
        for name, control in controls.items()
        if control.required
    ]
    return (*wished, *smallest)


def wants_of(
    name: str, first: Iterable[Edge[str]], controls: Mapping[str, Control], versions: Mapping[str, str]
) -> tuple[Want, ...]:
    """Return everyone who wants a package, with the shortest chains; of alternatives those count that are locked."""
    providers: dict[str, tuple[str, ...]] = {}
    for own, control in controls.items():
        for virtual in control.provides:
            providers[virtual] = (*providers.get(virtual, ()), own)

    def edges_of(owner: str) -> Iterator[Edge[str]]:
        for text in controls[owner].depends:
            names = tuple(dict.fromkeys(_answers(text, controls, providers)))
            yield Edge(owner=owner, label=f"{owner} {versions[owner]}", text=text, leads_to=names)

    chains = chains_to(lambda node: node == name, first, edges_of)
    return tuple(Want(chain=tuple(Link(owner=edge.label, requirement=edge.text) for edge in chain)) for chain in chains)


def read_controls(debs: Iterable[LockedDeb], store: Store) -> dict[str, Control]:
    """Return what each .deb of the store says of itself, by name; raise ResolveError for a file that is no .deb."""
    ordered = tuple(debs)
    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip((deb.name for deb in ordered), pool.map(partial(_control, store), ordered), strict=True))


def _control(store: Store, deb: LockedDeb) -> Control:
    answer = run(["dpkg-deb", "--field", str(store.path(deb.sha256))])
    if answer.code != 0:
        raise ResolveError(
            f"{deb.name} {deb.version} in the store cannot be read as a Debian package",
            evidence=(answer.text.strip(),),
        )
    return read_control(answer.stdout.decode())


def read_control(text: str) -> Control:
    """Read the paragraph of a .deb (deb-control(5)); folded lines belong to the field above."""
    fields = dict(re.findall(r"^([A-Za-z-]+):[ ]?(.*(?:\n[ \t].*)*)$", text, re.MULTILINE))
    return Control(
        depends=tuple(part for field in FIELDS for part in _listed(fields.get(field, ""))),
        provides=tuple(_name(part) for part in _listed(fields.get("Provides", ""))),
        required=fields.get("Essential") == "yes" or fields.get("Priority") == "required",
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(" ".join(part.split()) for part in text.split(",") if part.strip())


def _name(text: str) -> str:
    match = _DEPENDENCY.match(text)
    return match["name"] if match else text


def _answers(text: str, controls: Mapping[str, Control], providers: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    for alternative in text.split("|"):
        name = _name(alternative)
        if name in controls:
            yield name
        yield from providers.get(name, ())
