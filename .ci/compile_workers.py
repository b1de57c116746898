"""Put compiled modules into the zips from which Spark's Python workers import PySpark.

There they are sources only, and nothing is written back into a zip: each of the hundreds of processes that
tests start would compile PySpark for more than a second. Harmless when repeated.
"""

import importlib.util
import os
import py_compile
import sys
import tempfile
import zipfile
from pathlib import Path


def compile_into(archive: Path) -> None:
    """Beside each source its compiled module, which is believed for any time of the source."""
    with zipfile.ZipFile(archive) as old, tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        if any(name.endswith(".pyc") for name in old.namelist()):
            return
        made, source, compiled = (Path(folder, name) for name in ("made.zip", "source", "compiled"))
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
            for name in old.namelist():
                content = old.read(name)
                new.writestr(name, content)
                if name.endswith(".py") and "/tests/" not in name:
                    source.write_bytes(content)
                    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
                    py_compile.compile(str(source), str(compiled), str(archive / name), True, -1, mode)
                    new.writestr(f"{name}c", compiled.read_bytes(), zipfile.ZIP_STORED)
        os.replace(made, archive)


spec = importlib.util.find_spec("pyspark")
if spec is None or spec.origin is None:
    sys.exit("PySpark is not installed.")
for found in (Path(spec.origin).parent / "python" / "lib").glob("*.zip"):
    compile_into(found)
