"""Builds the sdist and a wheel for each platform into dist/, and checks them. Run by `make wheels`.

    python .ci/wheels.py [PLATFORM ...]     # such as manylinux_2_17_x86_64; default: all

The compiler is Zig's, which cross-compiles against an old glibc, musl and macOS without Docker. Each wheel is
built from an unpacked sdist, so that the sdist is known to have all that a build needs. The stable ABI makes
one wheel per platform serve every Python from 3.11 on.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PLATFORMS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
}
"""The tag of a wheel, and the target of Zig's compiler."""
CONFIG_H = re.compile(r"#\s*define SIZEOF_(?:LONG|SIZE_T|VOID_P) 8$", re.MULTILINE)


def python_headers(folder: Path) -> Path:
    """A copy of this Python's headers, with the pyconfig.h that Debian keeps elsewhere for each architecture.

    It serves the other platforms too: all have little-endian words of 64 bits, and the stable ABI uses
    nothing else of it.
    """
    copied = folder / "include"
    shutil.copytree(sysconfig.get_path("include"), copied)
    shutil.copy(sysconfig.get_config_h_filename(), copied / "pyconfig.h")
    for near in Path("/usr/include").glob(f"*/python{sys.version_info[0]}.{sys.version_info[1]}/pyconfig.h"):
        shutil.copy(near, copied / "pyconfig.h")
    if len(CONFIG_H.findall((copied / "pyconfig.h").read_text())) != 3:
        raise SystemExit(
            f"{copied}/pyconfig.h is not of a 64-bit machine: wheels can't be built with this Python"
        )
    return copied


def compiler(folder: Path, target: str, headers: Path) -> Path:
    """A command that compiles for ``target``; it leaves out the paths of this machine."""
    command = folder / "cc"
    command.write_text(
        f"""#!{sys.executable}
import subprocess, sys
given = [one for one in sys.argv[1:] if not one.startswith(("-I/", "-L/", "-Wl,", "-g", "-specs"))]
command = [sys.executable, "-m", "ziglang", "cc", "-target", "{target}", "-I{headers}"]
sys.exit(subprocess.call([*command, "-fno-sanitize=undefined", *given]))
"""
    )
    command.chmod(0o755)
    return command


def run(*command: str, env: dict[str, str] | None = None) -> str:
    """The output of ``command``. Ends the program with it if the command fails."""
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}")
    return done.stdout


def build_sdist() -> Path:
    """The sdist in dist/."""
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(DIST), str(ROOT))
    (found,) = DIST.glob("*.tar.gz")
    return found


def build_wheel(sdist: Path, platform: str, target: str) -> Path:
    """The wheel for ``platform`` in dist/."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (source,) = folder.glob("spark_kafka_native-*")
        command = compiler(folder, target, python_headers(folder))
        shared = "-dynamiclib -undefined dynamic_lookup" if "macos" in target else "-shared"
        env = os.environ | {
            "CC": str(command),
            "CFLAGS": "-fPIC -DNDEBUG",
            "LDSHARED": f"{command} {shared} -s",
            "LDFLAGS": "",
            "SPARK_KAFKA_NATIVE_REQUIRE_KERNELS": "1",
        }
        option = f"-C--build-option=--plat-name={platform}"
        run(
            sys.executable, "-m", "build", "--wheel", "--no-isolation", option,
            "--outdir", str(DIST), str(source), env=env,
        )  # fmt: skip
    (found,) = DIST.glob(f"*-cp311-abi3-{platform}.whl")
    return found


def check(wheel: Path, platform: str) -> None:
    """The tag is true: no newer symbols of libc or Python than it says, and no library of this machine."""
    run("abi3audit", "--strict", str(wheel))
    if platform.startswith("manylinux"):
        said = " ".join(run("auditwheel", "show", str(wheel)).split())
        tags = re.findall(r"manylinux_\d+_\d+_\w+", said.partition("platform tag")[2])
        if not any(version(tag) <= version(platform) for tag in tags):
            raise SystemExit(f"{wheel.name} is not what its name says:\n{said}")
    # auditwheel looks for musl itself, which is on no machine with glibc.
    elif platform.startswith("musllinux") and (needed := libraries(wheel)) != ["libc.so"]:
        raise SystemExit(f"{wheel.name} needs {', '.join(needed)}, instead of musl's libc.so alone")
    print(f"{wheel.name}: {wheel.stat().st_size // 1024} KiB")


def libraries(wheel: Path) -> list[str]:
    """The shared libraries that the kernels in ``wheel`` need."""
    with zipfile.ZipFile(wheel) as archive:
        kernels = [archive.read(name) for name in archive.namelist() if name.endswith(".so")]
    found = set()
    for kernel in kernels:
        dynamic = ELFFile(io.BytesIO(kernel)).get_section_by_name(".dynamic")
        found |= {tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"}
    return sorted(found)


def version(tag: str) -> tuple[int, int]:
    """The version of libc in a tag."""
    _, major, minor, *_ = tag.split("_")
    return int(major), int(minor)


def main() -> None:
    """All platforms, or those of the command line."""
    wanted = sys.argv[1:] or list(PLATFORMS)
    if unknown := set(wanted) - PLATFORMS.keys():
        raise SystemExit(f"No platform {', '.join(unknown)}; there are {', '.join(PLATFORMS)}")
    shutil.rmtree(DIST, ignore_errors=True)
    sdist = build_sdist()
    print(f"{sdist.name}: {sdist.stat().st_size // 1024} KiB")
    for platform in wanted:
        check(build_wheel(sdist, platform, PLATFORMS[platform]), platform)


if __name__ == "__main__":
    main()
