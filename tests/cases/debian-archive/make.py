"""Writes this folder's tiny Debian archive, signed with a key that is thrown away: `python make.py` (needs gpg)."""

import hashlib
import lzma
import os
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent

PACKAGES = {
    ("debian", "trixie"): """
base-files 13 Essential:yes Priority:required Depends:libtiny,mawk|gawk
mawk 1.3 Provides:awk
gawk 5.2 Provides:awk
libtiny 1.0
apt 3.0 Priority:required Depends:libtiny
python3 3.13.5-1 Depends:libtiny(>=1.0) Recommends:extra
extra 1.0
gcc 4:14.2.0-1 Depends:gcc-14,gawk|mawk
gcc-14 14.2.0-19 Depends:libtiny Recommends:extra
broken 1.0 Depends:nowhere
""",
    ("debian", "trixie-updates"): "libtiny 1.1",
    ("debian-security", "trixie-security"): "python3 3.13.5-1+deb13u1 Depends:libtiny(>=1.0)",
}
CLOCK = "20250901T000000"  # long ago, so that the signatures are never from the future
DATES = {
    "trixie": "Sat, 06 Sep 2025 10:00:00 UTC",
    "trixie-updates": "Sun, 07 Sep 2025 08:15:00 UTC",
    "trixie-security": "Mon, 08 Sep 2025 21:30:59 UTC",
}


def stanza(archive: str, line: str) -> str:
    name, version, *fields = line.split()
    pool = "pool/main" if archive == "debian" else "pool/updates/main"
    filename = f"{pool}/{name[0]}/{name}/{name}_{version.rpartition(':')[2]}_amd64.deb"
    body = f"{name} {version}\n".encode()
    path = HERE / archive / filename
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    lines = [f"Package: {name}", "Architecture: amd64", f"Version: {version}"]
    lines += [field.replace(":", ": ", 1).replace("(>=", " (>= ") for field in fields]
    lines += [f"Filename: {filename}", f"Size: {len(body)}", f"SHA256: {hashlib.sha256(body).hexdigest()}"]
    return "\n".join(lines) + "\n"


def write_suite(archive: str, suite: str, text: str, home: str) -> None:
    folder = HERE / archive / "dists" / suite
    plain = "\n".join(stanza(archive, line) for line in text.split("\n") if line).encode()
    index = lzma.compress(plain)
    sha256 = hashlib.sha256(index).hexdigest()
    by_hash = archive == "debian-security" or suite == "trixie"
    name = f"by-hash/SHA256/{sha256}" if by_hash else "Packages.xz"
    path = folder / "main/binary-amd64" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(index)
    release = (
        f"Origin: Debian\nSuite: stable\nCodename: {suite}\nDate: {DATES[suite]}\n"
        f"Acquire-By-Hash: {'yes' if by_hash else 'no'}\nArchitectures: all amd64\nComponents: main\n"
        f"SHA256:\n {hashlib.sha256(plain).hexdigest()} {len(plain):8} main/binary-amd64/Packages\n"
        f" {sha256} {len(index):8} main/binary-amd64/Packages.xz\n"
    )
    gpg(home, "--clear-sign", "--output", str(folder / "InRelease"), stdin=release.encode())


def gpg(home: str, *arguments: str, stdin: bytes = b"") -> None:
    command = ["gpg", "--batch", "--quiet", "--yes", "--faked-system-time", f"{CLOCK}!"]
    command += ["--pinentry-mode", "loopback", "--passphrase", "", *arguments]
    subprocess.run(command, input=stdin, check=True, env={**os.environ, "GNUPGHOME": home})


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        gpg(home, "--quick-generate-key", "A tiny archive for tests", "ed25519", "sign", "never")
        gpg(home, "--output", str(HERE / "keyring.gpg"), "--export")
        for (archive, suite), text in PACKAGES.items():
            write_suite(archive, suite, text, home)
        subprocess.run(["gpgconf", "--kill", "all"], check=True, env={**os.environ, "GNUPGHOME": home})


if __name__ == "__main__":
    main()
