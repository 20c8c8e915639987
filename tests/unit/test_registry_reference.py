"""References: what is read, and what is refused with which words."""

from __future__ import annotations

import pytest

from builder.errors import UsageError
from builder.registry.reference import Repository, is_loopback, parse_reference, parse_repository

DIGEST = f"sha256:{'0123456789abcdef' * 4}"


@pytest.mark.parametrize(
    ("text", "registry", "name", "tag", "digest"),
    [
        ("registry.example/team/stack:1.0", "registry.example", "team/stack", "1.0", None),
        ("registry.example:5000/stack", "registry.example:5000", "stack", None, None),
        (f"localhost/a/b/c@{DIGEST}", "localhost", "a/b/c", None, DIGEST),
        (f"127.0.0.1:5000/stack:glm5-sm120_x.y@{DIGEST}", "127.0.0.1:5000", "stack", "glm5-sm120_x.y", DIGEST),
        ("[::1]:5000/a__b/c-d.e:latest", "[::1]:5000", "a__b/c-d.e", "latest", None),
    ],
)
def test_a_reference_is_read_and_written_alike(
    text: str, registry: str, name: str, tag: str | None, digest: str | None
) -> None:
    reference = parse_reference(text)
    assert (reference.repository.registry, reference.repository.name) == (registry, name)
    assert (reference.tag, reference.digest) == (tag, digest)
    assert str(reference) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stack:1", "names no registry"),
        ("team/stack:1", "names no registry"),
        ("registry.example", "names no registry"),
        ("https://registry.example/stack", "is a URL"),
        ("registry.example/Stack", "'Stack' is no part of a repository's name"),
        ("registry.example/a//b", "'' is no part of a repository's name"),
        ("registry.example/a:", "'' is no tag"),
        ("registry.example/a:-x", "'-x' is no tag"),
        (f"registry.example/a:{'x' * 129}", "is no tag"),
        ("registry.example/a@sha256:12", "'sha256:12' is no digest"),
        (f"registry.example/a@{DIGEST.upper()}", "is no digest"),
        ("registry.example:70000/a", "'70000' is no port"),
        ("registry.example:/a", "'' is no port"),
        ("-registry.example/a", "'-registry.example' is no host"),
        ("user@registry.example/a", "is no digest"),
        (f"registry.example/{'a' * 250}", "longer than 255"),
    ],
)
def test_a_wrong_reference_is_refused_with_the_part_that_is_wrong(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_reference(text)
    assert said in caught.value.message
    assert caught.value.exit_code == 2
    assert "host[:port]/repository" in caught.value.remedy


def test_the_digest_decides_where_a_reference_has_both() -> None:
    assert parse_reference(f"localhost/a:1@{DIGEST}").identifier == DIGEST
    assert parse_reference("localhost/a:1").identifier == "1"
    with pytest.raises(UsageError, match="no image in it"):
        parse_reference("localhost/a").identifier  # noqa: B018 - the property raises


def test_a_repository_gives_references_by_tag_and_by_digest() -> None:
    repository = parse_repository("localhost:5000/team/stack")
    assert repository == Repository(registry="localhost:5000", name="team/stack")
    assert (repository.at(DIGEST).digest, repository.at(DIGEST).tag) == (DIGEST, None)
    assert (repository.at("v1").digest, repository.at("v1").tag) == (None, "v1")
    with pytest.raises(UsageError, match="no tag"):
        repository.at("a/b")


@pytest.mark.parametrize(
    ("registry", "loopback"),
    [
        ("localhost", True),
        ("localhost:5000", True),
        ("127.8.9.1:1", True),
        ("[::1]:5000", True),
        ("localhost.example", False),
        ("registry.example:443", False),
        ("10.0.0.1:5000", False),
        ("127.0.0.1.example", False),
    ],
)
def test_only_names_of_this_machine_are_loopback(registry: str, loopback: bool) -> None:
    assert is_loopback(registry) is loopback
