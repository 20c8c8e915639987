"""Out of the house: publish what is proven, verify what others published, promote it."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from builder.commands.complete import complete_targets
from builder.commands.state import RECIPE, json_option
from builder.errors import ExitCode, NotVerifiedError, UsageError

if TYPE_CHECKING:
    from builder.commands.state import State
    from builder.publish.examination import Examination
    from builder.publish.policy import Policy
    from builder.publish.proof import Proof, Signer
    from builder.publish.stage import Published

POLICY = click.option(
    "--policy",
    "policy_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file with what is asked: target, levels, max-age, waivers, signer.",
)
PUBLIC_KEY = click.option("--key", metavar="KEY", help="The public key: a PEM file, or env:NAME.")
IDENTITY = click.option(
    "--identity", metavar="SUBJECT", help="Who signed without a key: an e-mail address or workflow."
)
ISSUER = click.option("--issuer", metavar="URL", help="The OIDC issuer that vouches for the identity.")
TRUST_ROOT = click.option(
    "--trust-root",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A trusted_root.json of sigstore (default: that of the public sigstore, fetched).",
)
MOVE_BACK = click.option("--move-back", is_flag=True, help="Move tags also where a newer image was published.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """Who must have signed, as the command line says it."""

    key: str | None
    identity: str | None
    issuer: str | None
    trust_root: Path | None

    def words(self) -> list[str]:
        """Return it as a person gives it to a command."""
        said = {
            "--key": self.key,
            "--identity": self.identity,
            "--issuer": self.issuer,
            "--trust-root": None if self.trust_root is None else str(self.trust_root),
        }
        return [word for option, value in said.items() if value is not None for word in (option, value)]


@click.command()
@RECIPE
@click.option("--to", "place", required=True, metavar="REGISTRY/REPO", help="The repository to publish to.")
@click.option(
    "--key",
    metavar="KEY",
    help="The private key: a PEM file, env:NAME, or a pkcs11: URI (default: ENVBUILD_SIGNING_KEY).",
)
@click.option("--keyless", is_flag=True, help="Sign as who you are: by an identity token and sigstore, without a key.")
@click.option(
    "--trust-config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A client trust config of sigstore, for --keyless (default: that of the public sigstore, fetched).",
)
@MOVE_BACK
@json_option
@click.pass_obj
def publish(
    state: State,
    *,
    recipe: Path,
    place: str,
    key: str | None,
    keyless: bool,
    trust_config: Path | None,
    move_back: bool,
) -> int:
    """Publish the image of a recipe whose verdict is good, with signature, SBOM, provenance and verdict.

    Exit 10, before anything is sent, if the verdict is not good, or not on exactly this lock, these checks and this
    image; nothing overrules that. All is there before the first tag is; tags that move do so last, and never to an
    older image by accident. With --keyless the token is that of SIGSTORE_ID_TOKEN, of the CI system, or of a login in
    the browser; who signed is written into sigstore's public logs.

    Example: envbuild publish recipes/quickstart.yaml --to registry.example/team/stacks --key envbuild.key
    """
    from builder.publish.stage import publish_recipe
    from builder.recipe.source import read_recipe
    from builder.registry.reference import parse_repository

    source, repository = read_recipe(recipe), parse_repository(place)
    signer = _signer(key, trust_config, keyless=keyless)
    return _told(state, publish_recipe(source, repository, signer, state.tools(), move_back=move_back))


@click.command()
@click.argument("reference")
@PUBLIC_KEY
@IDENTITY
@ISSUER
@TRUST_ROOT
@POLICY
@click.option("--target", metavar="GPU", shell_complete=complete_targets, help="The GPU that the image must be for.")
@click.option("--level", "levels", multiple=True, metavar="CHECK", help="A level of checks that must have passed.")
@click.option("--max-age", metavar="AGE", help="How old the verdict may be: 12h, 30d, 4w.")
@json_option
@click.pass_obj
def verify(
    state: State,
    *,
    reference: str,
    key: str | None,
    identity: str | None,
    issuer: str | None,
    trust_root: Path | None,
    policy_path: Path | None,
    target: str | None,
    levels: tuple[str, ...],
    max_age: str | None,
) -> int:
    """Prove a published image with a key or an identity: signature, SBOM, provenance, verdict, all bytes of all layers.

    Needs no engine and no store; of an OCI layout (oci:FOLDER, oci:FILE.tar) no network either, but for the roots of
    the public sigstore where an identity signed and no --trust-root is given. Exit 0: all that is
    asked for is proven. 8: the newest signed verdict is not good. 10: something is not proven, one sentence for each
    reason. 11: the registry does not give it.

    Example: envbuild verify registry.example/team/stacks:quickstart --key envbuild.pub --target rtx-pro-6000
    """
    from builder.publish.promotion import examine_source, open_source
    from builder.settings import settings_from

    policy = _policy(policy_path, target, levels, max_age)
    proof = _proof(Asked(key=key, identity=identity, issuer=issuer, trust_root=trust_root), policy)
    with open_source(reference, settings_from()) as source:
        report = examine_source(source, proof, policy, state.console).report
    return _judged(state, report)


@click.command()
@click.argument("reference")
@click.argument("place")
@PUBLIC_KEY
@IDENTITY
@ISSUER
@TRUST_ROOT
@POLICY
@MOVE_BACK
@json_option
@click.pass_obj
def promote(
    state: State,
    *,
    reference: str,
    place: str,
    key: str | None,
    identity: str | None,
    issuer: str | None,
    trust_root: Path | None,
    policy_path: Path | None,
    move_back: bool,
) -> int:
    """Copy a published image and its proof to another place, after it was verified; nothing is rebuilt.

    PLACE is a repository, or one with a tag (default: the tag of REFERENCE). Each of both may also be an OCI layout to
    take along, as oci:FOLDER or oci:FILE.tar. Exit 10 if the image is not verified.

    Example: envbuild promote registry.example/team/stacks:quickstart registry.example/prod/stacks --key envbuild.pub
    """
    from builder.publish.promotion import promote_image

    if "@" in place:
        raise UsageError(f"{place} names a digest, which a place cannot", remedy="give a repository, or one with a tag")
    policy = _policy(policy_path, None, (), None)
    asked = Asked(key=key, identity=identity, issuer=issuer, trust_root=trust_root)
    options = shlex.join([*asked.words(), *(["--policy", str(policy_path)] if policy_path is not None else [])])
    proof = _proof(asked, policy)
    done = promote_image(reference, place, proof, policy, state.tools(), move_back=move_back, options=options)
    return _told(state, done)


def _signer(key: str | None, trust_config: Path | None, *, keyless: bool) -> Signer:
    """Return who signs: whoever runs this, by a key or as an identity."""
    from builder.publish.keyless import open_keyless
    from builder.publish.keys import MAKE_A_KEY, load_secret_key
    from builder.publish.proof import KeySigner
    from builder.settings import settings_from

    if key is not None and keyless:
        raise UsageError("--key and --keyless exclude each other", remedy="give one of them")
    if keyless:
        return open_keyless(trust_config, os.environ)
    if trust_config is not None:
        raise UsageError("--trust-config says nothing about a key", remedy="give it with --keyless")
    wanted = key or settings_from().signing_key
    if wanted is None:
        raise UsageError("who signs?", remedy=f"give --key or --keyless, or set ENVBUILD_SIGNING_KEY; {MAKE_A_KEY}")
    return KeySigner(load_secret_key(wanted, os.environ))


def _proof(asked: Asked, policy: Policy) -> Proof:
    """Return what proves that whoever is asked for has signed: as command line or policy, or both alike, say it."""
    from builder.publish.identity import Identity, IdentityProof
    from builder.publish.keys import load_public_key
    from builder.publish.proof import KeyProof
    from builder.publish.trust import load_verifier

    if asked.key is not None:
        if asked.identity is not None or asked.issuer is not None or asked.trust_root is not None:
            raise UsageError("--key excludes --identity, --issuer and --trust-root", remedy="give a key or an identity")
        if policy.signer is not None:
            raise UsageError(f"the policy asks for {policy.signer}, which no key proves", remedy="leave out --key")
        return KeyProof(load_public_key(asked.key, os.environ))
    signer = policy.signer
    if asked.identity is not None or asked.issuer is not None:
        if not asked.identity or not asked.issuer:
            raise UsageError("an identity is only one of an issuer", remedy="give both --identity and --issuer")
        signer = Identity(identity=asked.identity, issuer=asked.issuer)
        if policy.signer not in {None, signer}:
            raise UsageError(f"the policy asks for {policy.signer}, not for {signer}", remedy="leave out one of them")
    if signer is None:
        raise UsageError("who must have signed it?", remedy="give --key, or --identity and --issuer")
    return IdentityProof(signer=signer, verifier=load_verifier(asked.trust_root))


def _policy(path: Path | None, target: str | None, levels: tuple[str, ...], max_age: str | None) -> Policy:
    """Return the policy of a file with what the command line asks for besides."""
    from builder.publish.policy import Policy, read_policy, span_of
    from builder.recipe.targets import find_nearest_target, targets
    from builder.verify.verdict import Level

    policy = read_policy(path) if path is not None else Policy()
    if target is not None and target not in targets():
        raise UsageError(f"--target: no GPU {target!r} is known", remedy=find_nearest_target(target))
    known = get_args(Level)
    unknown = [level for level in levels if level not in known]
    if unknown:
        raise UsageError(f"--level: {unknown[0]!r} is none", remedy=f"one of {', '.join(known)}")
    if max_age is not None:
        span_of(max_age)
    asked = {
        "target": target or policy.target,
        "levels": tuple(dict.fromkeys((*policy.levels, *levels))),
        "max_age": max_age or policy.max_age,
    }
    return policy.model_copy(update=asked)


def _told(state: State, published: Published) -> int:
    if state.console.json:
        state.console.document(published.to_plain())
        return ExitCode.DONE
    for tag, moved in published.moving.items():
        if moved in {"moved", "current"}:
            state.console.say(f"  {tag}{'' if moved == 'moved' else ' (was there)'}")
    if published.tag:
        state.console.say(f"  {published.tag}")
    state.console.output(published.reference)
    return ExitCode.DONE


def _judged(state: State, report: Examination) -> int:
    if state.console.json:
        state.console.document(report.to_plain())
    for remark in report.remarks:
        state.console.warn(remark)
    for reason in report.reasons:
        state.console.say(f"  ✗ {reason}")
    if report.result == "verified":
        proven = f"{', '.join(report.proven)} are signed by {report.signer}, all {report.bytes_read >> 20} MiB read"
        state.console.verdict("good", f"{report.reference} is {report.digest}: {proven}")
    else:
        state.console.verdict("bad", f"{report.reference} is not verified")
    codes = {"verified": ExitCode.DONE, "bad": ExitCode.BAD, "refused": NotVerifiedError.exit_code}
    return codes[report.result]
