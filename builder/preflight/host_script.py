"""The commands that bring an Ubuntu 24.04 host to a recipe's driver: printed for a person, never run."""

from __future__ import annotations

_SCRIPT = """\
#!/bin/sh
# Brings an Ubuntu 24.04 host to NVIDIA driver {driver} or newer of its branch, and Docker to the GPUs.
# Read it, run it as root, then reboot. `nvidia-driver-pinning-{branch}` keeps apt within the branch;
# `nvidia-open` are the open kernel modules, the only ones that drive Blackwell.
set -eu
repository=https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64
apt-get update
apt-get install --yes ca-certificates curl "linux-headers-$(uname -r)"
curl --fail --location --output /tmp/cuda-keyring.deb "$repository/cuda-keyring_1.1-1_all.deb"
dpkg --install /tmp/cuda-keyring.deb
apt-get update
apt-get install --yes nvidia-driver-pinning-{branch}
apt-get install --yes nvidia-open nvidia-container-toolkit
nvidia-ctk runtime configure --runtime=docker
systemctl restart docker
echo "reboot, then: nvidia-smi --query-gpu=name,driver_version --format=csv (want {driver} or newer)"
"""


def driver_script(driver: str) -> str:
    """Return a shell script for a driver such as 590.44.01; the package names are those of NVIDIA's CUDA repository."""
    return _SCRIPT.format(driver=driver, branch=driver.partition(".")[0])
