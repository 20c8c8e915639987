"""What belongs to the machine and never to a recipe: the store, mirrors, the engine's address."""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

SIZE = re.compile(r"([0-9]{1,7})([mg])i?b?")
COUNT = re.compile(r"[1-9][0-9]{0,5}")
MIRROR = re.compile(r"ENVBUILD_INDEX_[A-Z0-9_]+_URL")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The user's own machine settings, from the environment.

    `debian_mirror` and `debian_security_mirror` are base URLs of a Debian archive (default: those of the
    machine's apt, else those of mmdebstrap); `index_url` is a PEP 503 index (default: that of uv and pip's settings);
    `index_mirrors` are the addresses to take instead of those of a recipe's indexes, by `mirror_setting`.
    `registry_mirrors` are the `host[:port][/path]` to ask instead of a registry, by the registry's own `host[:port]`.
    `engine_certificates` is the folder of the keys for an engine behind TLS.
    `docker_config` is the folder of Docker's config.json, `insecure_registries` are `host[:port]` that are spoken to
    without encryption, `share` is the `host/repository` where machines share wheels and layers, filled if `share_push`.
    `signing_key` names the key that signs what is published: a file, a variable or a token, never the key itself.
    `gpus` are the GPUs of the engine's machine that may be used, by index or UUID (empty: those that it has).
    A compilation holds at most `memory` bytes and compiles `jobs` files at a time; `low_priority` lets others go first.
    """

    store: Path
    debian_mirror: str | None
    debian_security_mirror: str | None
    index_url: str | None
    engine_host: str | None
    ca_bundle: Path | None
    docker_config: Path
    engine_certificates: Path | None = None
    insecure_registries: tuple[str, ...] = ()
    share: str | None = None
    share_push: bool = False
    signing_key: str | None = None
    index_mirrors: Mapping[str, str] = field(default_factory=dict)
    memory: int | None = None
    jobs: int | None = None
    low_priority: bool = False
    registry_mirrors: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    verbose: bool = False


def settings_from(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings from `environment`; nothing here touches the disk or the network."""

    def get(*names: str) -> str | None:
        return next((environment[name] for name in names if environment.get(name)), None)

    home = _home(environment)
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    ca_bundle = get("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
    return Settings(
        store=Path(get("ENVBUILD_STORE") or cache / "envbuild").absolute(),
        debian_mirror=get("ENVBUILD_DEBIAN_MIRROR"),
        debian_security_mirror=get("ENVBUILD_DEBIAN_SECURITY_MIRROR"),
        index_url=get("ENVBUILD_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"),
        engine_host=get("DOCKER_HOST"),
        engine_certificates=Path(environment.get("DOCKER_CERT_PATH") or home / ".docker")
        if get("DOCKER_TLS_VERIFY", "DOCKER_TLS")
        else None,
        ca_bundle=Path(ca_bundle) if ca_bundle else None,
        index_mirrors={name: url for name, url in environment.items() if MIRROR.fullmatch(name) and url},
        docker_config=Path(get("DOCKER_CONFIG") or home / ".docker"),
        insecure_registries=tuple((get("ENVBUILD_INSECURE_REGISTRIES") or "").replace(",", " ").split()),
        registry_mirrors=dict(_mirror(pair) for pair in (get("ENVBUILD_REGISTRY_MIRRORS") or "").split()),
        share=get("ENVBUILD_SHARE"),
        share_push=_is_on(get("ENVBUILD_SHARE_PUSH")),
        signing_key=get("ENVBUILD_SIGNING_KEY"),
        gpus=tuple((get("ENVBUILD_GPUS") or "").replace(",", " ").split()),
        memory=bytes_of(get("ENVBUILD_MEMORY"), "ENVBUILD_MEMORY"),
        jobs=count_of(get("ENVBUILD_JOBS"), "ENVBUILD_JOBS"),
        low_priority=_is_low(get("ENVBUILD_PRIORITY")),
    )


def mirror_setting(index: str) -> str:
    """Return the variable that gives a mirror of a recipe's index, such as `ENVBUILD_INDEX_TORCH_CU130_URL`."""
    return f"ENVBUILD_INDEX_{re.sub('[^A-Z0-9]', '_', index.upper())}_URL"


def _home(environment: Mapping[str, str]) -> Path:
    """Return the user's own folder, where the environment does not say it by the system's list of users."""
    if environment.get("HOME"):
        return Path(environment["HOME"])
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a container that runs as a user whom nobody knows
        return Path("/")


def _mirror(pair: str) -> tuple[str, str]:
    registry, _, mirror = pair.partition("=")
    if not registry or not mirror:
        raise UsageError(
            f"ENVBUILD_REGISTRY_MIRRORS: {pair!r} names no mirror",
            remedy="give pairs such as docker.io=mirror.local:5000",
        )
    return registry, mirror


def _is_on(switch: str | None) -> bool:
    if switch not in {None, "0", "1"}:
        raise UsageError(f"ENVBUILD_SHARE_PUSH: {switch!r} is neither 0 nor 1", remedy="give 1 to push, else nothing")
    return switch == "1"


def _is_low(priority: str | None) -> bool:
    if priority not in {None, "low", "normal"}:
        raise UsageError(f"ENVBUILD_PRIORITY: {priority!r} is no priority", remedy="give low or normal")
    return priority == "low"


def bytes_of(text: str | None, place: str) -> int | None:
    """Return the bytes in a text such as `512m` or `8g`; `place` names it in the error."""
    if text is None:
        return None
    found = SIZE.fullmatch(text.strip().lower())
    if found is None or int(found[1]) == 0:
        raise UsageError(f"{place}: {text!r} is no amount of memory", remedy="give MiB or GiB, such as 512m or 8g")
    return int(found[1]) << (20 if found[2] == "m" else 30)


def count_of(text: str | None, place: str) -> int | None:
    """Return the positive number in a text; `place` names it in the error."""
    if text is None:
        return None
    if not COUNT.fullmatch(text.strip()):
        raise UsageError(f"{place}: {text!r} is no number of jobs", remedy="give a number from 1 on")
    return int(text)
