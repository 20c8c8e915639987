"""The Python world of a lock: requirements in, the wheels that answer them out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from builder.errors import InvalidDocumentError
from builder.lock.choice import chosen_wheels, locked_wheels, refuse_other_index
from builder.lock.extras import declared_requirements, refuse_unknown_extras, with_extras
from builder.lock.index import mirrored
from builder.lock.needs import asked_extras
from builder.lock.pylock import write_pylock
from builder.lock.requirements import built_packages
from builder.lock.target import target_of
from builder.lock.uv import Question, ask_uv

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.lock.choice import ChosenWheel
    from builder.lock.model import LockedImage, LockedWheel
    from builder.lock.target import Target
    from builder.recipe.model import Index, Recipe
    from builder.recipe.source import RecipeFile
    from builder.settings import Settings
    from builder.store import Store


def resolve_wheels(
    recipe: Recipe,
    requirements: tuple[str, ...],
    store: Store,
    settings: Settings,
    *,
    base: LockedImage | None = None,
    preferred: Iterable[LockedWheel] = (),
    overruled: bool = True,
    absent: Iterable[str] = (),
) -> tuple[LockedWheel, ...]:
    """Return the wheels that satisfy requirements of a recipe's image or toolchain, by name.

    `base` is the locked base where that is an image of a registry; `preferred` are wheels of a lock before, kept where
    they can be. `overruled`: the versions of the recipe's overrides hold; `absent` packages are left out.
    """
    indexes = mirrored(recipe.indexes, settings)
    return resolve_python(
        requirements,
        target=target_of(recipe, base),
        store=store,
        settings=settings,
        overrides=_overrides(recipe) if overruled else (),
        excluded=(*built_packages(recipe), *absent),
        indexes=indexes,
        as_of=recipe.as_of,
        preferred=preferred,
        extras={canonicalize_name(name): package.extras for name, package in recipe.stack.items()},
    )


def resolve_python(
    requirements: Iterable[str],
    *,
    target: Target,
    store: Store,
    settings: Settings,
    overrides: Iterable[str] = (),
    excluded: Iterable[str] = (),
    indexes: Mapping[str, Index] | None = None,
    as_of: str | None = None,
    preferred: Iterable[LockedWheel] = (),
    extras: Mapping[str, Iterable[str]] | None = None,
) -> tuple[LockedWheel, ...]:
    """Return one wheel for each package that some requirements need on a target, by name.

    `overrides` are requirements that replace all others of their package, but for the extras; `excluded` packages are
    left out; `as_of` is an ISO date after which no file counts; a wheel must have the `extras` of its package. Raise
    ResolveError, with uv's explanation as evidence, if there is no answer. Files whose size the index does not say are
    fetched into the store.
    """
    question = Question(
        requirements=tuple(sorted(requirements)),
        target=target,
        overrides=tuple(sorted(overrides)),
        excluded=tuple(sorted(excluded)),
        indexes=indexes or {},
        as_of=as_of,
    )
    if not question.requirements:
        return ()
    chosen = _chosen(question, write_pylock(preferred, python=target.python), store, settings)
    refuse_other_index(chosen, question.requirements, question.indexes)
    refuse_unknown_extras(chosen, extras or {}, question.indexes, store, settings)
    return locked_wheels(chosen, question.indexes, store, settings)


def _chosen(question: Question, previous: bytes, store: Store, settings: Settings) -> tuple[ChosenWheel, ...]:
    """Ask uv, again as long as an overruled package turns out to be asked for more extras than its override has."""
    requires: dict[str, tuple[str, ...]] = {}
    while True:
        chosen = chosen_wheels(ask_uv(question, previous, store, settings), question.target)
        if not question.overrides:
            return chosen
        unread = [wheel for wheel in chosen if wheel.sha256 not in requires]
        requires |= declared_requirements(unread, question.indexes, store, settings)
        by_name = {wheel.name: requires[wheel.sha256] for wheel in chosen}
        widened = with_extras(question.overrides, asked_extras(question.requirements, by_name, question.target.applies))
        if widened == question.overrides:
            return chosen
        question = replace(question, overrides=widened)


def refuse_contradictions(source: RecipeFile) -> None:
    """Raise InvalidDocumentError where the stack has a package that is left out, or pins it with another version."""
    pins = {canonicalize_name(name): (name, package) for name, package in source.recipe.stack.items()}
    for name, override in source.recipe.overrides.items():
        pin, package = pins.get(canonicalize_name(name), (name, None))
        if package is None or not override.contradicts(package):
            continue
        contradiction = f"{source.place_of('overrides', name)}: {override.answer} contradicts stack.{pin}"
        if override.absent:
            raise InvalidDocumentError(contradiction, remedy="remove one of the two")
        raise InvalidDocumentError(f"{contradiction}: {package.version}", remedy="give both the same version")


def _overrides(recipe: Recipe) -> tuple[str, ...]:
    return tuple(f"{name}=={override.version}" for name, override in recipe.overrides.items() if override.version)
