"""Packs the wheel of the Python package: python3 wheel.py LIBRARY VERSION DIRECTORY

LIBRARY is what `cargo build -p tactus-client-python` makes, libtactus_python.so. Prints the path of
the wheel, which is the same for the same library and tree: sorted names, a fixed time, no owner.
"""

import base64
import hashlib
import sys
import sysconfig
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The first Python whose stable interface has buffers.
TAG = "cp311-abi3-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")

WHEEL = f"""\
Wheel-Version: 1.0
Generator: tactus
Root-Is-Purelib: false
Tag: {TAG}
"""

METADATA = """\
Metadata-Version: 2.4
Name: tactus
Version: {version}
Summary: Titles of a Tactus server on the same machine, through shared memory
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-MIT
License-File: LICENSE-APACHE
Requires-Python: >=3.11
"""


def contents(library: Path, version: str) -> dict[str, bytes]:
    """The files of the wheel by name, without the list of them."""
    info = f"tactus-{version}.dist-info"
    files = {"tactus/_native.abi3.so": library.read_bytes()}
    for path in (HERE / "python/tactus").iterdir():
        if path.suffix in (".py", ".pyi") or path.name == "py.typed":
            files[f"tactus/{path.name}"] = path.read_bytes()
    for name in ("LICENSE-MIT", "LICENSE-APACHE"):
        files[f"{info}/licenses/{name}"] = (HERE / "../.." / name).read_bytes()
    files[f"{info}/METADATA"] = METADATA.format(version=version).encode()
    files[f"{info}/WHEEL"] = WHEEL.encode()
    return files


def record(files: dict[str, bytes], own_name: str) -> str:
    """The list of all files with their hashes: RECORD of PEP 376 and PEP 427."""
    lines = []
    for name, data in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join(lines) + f"{own_name},,\n"


def main(library: str, version: str, directory: str) -> None:
    files = contents(Path(library), version)
    own_name = f"tactus-{version}.dist-info/RECORD"
    # The list comes last, as PEP 427 recommends.
    members = [*sorted(files.items()), (own_name, record(files, own_name).encode())]
    wheel = Path(directory) / f"tactus-{version}-{TAG}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in members:
            member = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            member.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, data)
    print(wheel)


main(*sys.argv[1:])
