"""Who wants a Python package of a lock: chains of requirements, and what overrules them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.explain.graph import Edge, chains_to
from builder.explain.metadata import index_words, requirements_by_name
from builder.explain.model import Explanation, Link, Want
from builder.lock.requirements import built_packages
from builder.lock.sources import declared_projects
from builder.lock.target import target_of
from builder.lock.wishes import compiler_wishes, stack_wishes, toolchain_wishes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from builder.lock.changes import Part
    from builder.lock.model import Lock, LockedWheel
    from builder.lock.target import Target
    from builder.lock.wishes import Wishes
    from builder.recipe.model import Override
    from builder.recipe.source import RecipeFile
    from builder.tools import Tools

Node = tuple[str, str]
"""A package and one of its extras; the empty text stands for the package alone."""


def explain_python(source: RecipeFile, lock: Lock, name: str, tools: Tools) -> tuple[Explanation, ...]:
    """Return the explanations of a package, by canonical name: of the image and of the toolchain, where it is in it."""
    recipe = source.recipe
    projects = declared_projects(source, lock, tools.store, tools.settings)
    found: list[Explanation] = []
    parts: tuple[tuple[Part, tuple[LockedWheel, ...], Wishes], ...] = (
        ("image", lock.wheels, stack_wishes(recipe, projects)),
        ("toolchain", lock.toolchain_wheels, toolchain_wishes(recipe, projects)),
        ("compiler", lock.compiler_wheels, compiler_wishes(recipe, projects)),
    )
    for part, wheels, wishes in parts:
        wheel = next((each for each in wheels if each.name == name), None)
        is_built = part == "image" and name in built_packages(recipe)
        if wheel is None and not is_built:
            continue
        requires = requirements_by_name(wheels, recipe.indexes, tools.store, tools.settings)
        versions = {each.name: each.version for each in wheels}
        graph = _Graph(source=source, requires=requires, versions=versions, target=target_of(recipe, lock.file.base))
        wants = graph.wants(name, wishes)
        found.append(_built(source, name, wants) if wheel is None else _locked(source, part, wheel, wants))
    return tuple(found)


def _locked(source: RecipeFile, part: Part, wheel: LockedWheel, wants: tuple[Want, ...]) -> Explanation:
    return Explanation(
        world="python",
        part=part,
        name=wheel.name,
        version=wheel.version,
        bytes=wheel.size,
        origin=index_words(wheel.name, source.recipe.indexes),
        wants=wants,
    )


def _built(source: RecipeFile, name: str, wants: tuple[Want, ...]) -> Explanation:
    own = next(key for key in source.recipe.stack if canonicalize_name(key) == name)
    package = source.recipe.stack[own]
    return Explanation(
        world="sources",
        part="image",
        name=name,
        version=package.commit or package.version,
        bytes=None,
        origin=f"built from source: {package.git or package.path or 'its source distribution'}",
        wants=(Want(chain=(Link(owner=source.place_of("stack", own), requirement=name),)), *wants),
    )


@dataclass(frozen=True, kw_only=True)
class _Graph:
    """The requirements of one part of a lock."""

    source: RecipeFile
    requires: Mapping[str, tuple[str, ...]]
    versions: Mapping[str, str]
    target: Target

    def wants(self, name: str, wishes: Wishes) -> tuple[Want, ...]:
        chains = chains_to(lambda node: node[0] == name, self._first(wishes), self._edges_of)
        return tuple(self._want(chain, name) for chain in chains)

    def _first(self, wishes: Wishes) -> Iterator[Edge[Node]]:
        for line, places in wishes.items():
            for place in places:
                yield from self._edge(None, self.source.place_of(*place), line)

    def _edges_of(self, node: Node) -> Iterator[Edge[Node]]:
        name, extra = node
        label = " ".join(filter(None, (f"{name}[{extra}]" if extra else name, self.versions.get(name))))
        for line in self.requires.get(name, ()):
            yield from self._edge(node, label, line)

    def _edge(self, owner: Node | None, label: str, line: str) -> Iterator[Edge[Node]]:
        requirement = Requirement(line)
        extra = owner[1] if owner else ""
        if requirement.marker is not None and not self.target.applies(str(requirement.marker), extra):
            return
        requirement.marker = None
        name = canonicalize_name(requirement.name)
        nodes = tuple((name, canonicalize_name(asked) if asked else "") for asked in ("", *sorted(requirement.extras)))
        yield Edge(owner=owner, label=label, text=str(requirement), leads_to=nodes)

    def _want(self, chain: Iterable[Edge[Node]], name: str) -> Want:
        links = tuple(Link(owner=edge.label, requirement=edge.text) for edge in chain)
        return Want(chain=links, overruled=self._overruled(Requirement(links[-1].requirement), name))

    def _overruled(self, requirement: Requirement, name: str) -> str | None:
        version = self.versions.get(name)
        if version is None or requirement.specifier.contains(version, prereleases=True):
            return None
        own, override = _override(self.source.recipe.overrides, name)
        if override is None:
            return None
        return f"{self.source.place_of('overrides', own)}: {override.answer}: {override.reason}"


def _override(overrides: Mapping[str, Override], name: str) -> tuple[str, Override | None]:
    return next(((own, each) for own, each in overrides.items() if canonicalize_name(own) == name), (name, None))
