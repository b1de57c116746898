"""The compiled kernels; everything else is in pyproject.toml.

They use CPython's stable ABI (3.11, the first with the buffer protocol), so one wheel serves every later
Python. They are optional: where there is no compiler the build goes on without them, their twins serve, and
the wheel is tagged for any platform. A release must not be built that way:
SPARK_KAFKA_NATIVE_REQUIRE_KERNELS=1 makes it fail.
"""

import os
import shutil
from glob import glob
from os.path import dirname

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

KERNELS = {
    "spark_kafka_native.kafka.records._kernel": "spark_kafka_native/kafka/records/_kernel.c",
    "spark_kafka_native.formats.avro._kernel": "spark_kafka_native/formats/avro/_kernel.c",
    "spark_kafka_native.formats.json._write_kernel": "spark_kafka_native/formats/json/_write_kernel.c",
    "spark_kafka_native.formats.json._read_kernel": "spark_kafka_native/formats/json/_read_kernel.c",
}
FOLDERS = {"spark_kafka_native/kernel_headers", "spark_kafka_native/formats", *map(dirname, KERNELS.values())}
HEADERS = sorted(header for folder in FOLDERS for header in glob(f"{folder}/*.h"))
REQUIRED = os.environ.get("SPARK_KAFKA_NATIVE_REQUIRE_KERNELS", "0") not in ("", "0")


class KernelWheel(bdist_wheel):
    def run(self) -> None:
        if not self.skip_build:
            # What an earlier build left there would be in the wheel: modules that are gone, an old kernel.
            # The rest of build/ is not a wheel's: the documentation as a site is there, too.
            build = self.get_finalized_command("build")
            for folder in (build.build_lib, build.build_temp, self.bdist_dir):
                shutil.rmtree(folder, ignore_errors=True)
            self.run_command("build")
        build_ext = self.get_finalized_command("build_ext")
        if not any(map(os.path.exists, build_ext.get_outputs())):
            self.root_is_pure = True
            self.distribution.ext_modules = []  # which would send the modules into a platform's folder
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        return ("cp311", "abi3", platform) if python.startswith("cp") else (python, abi, platform)


setup(
    cmdclass={"bdist_wheel": KernelWheel},
    ext_modules=[
        Extension(
            name,
            [source],
            depends=HEADERS,
            optional=not REQUIRED,
            py_limited_api=True,
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=["-O3"],
        )
        for name, source in KERNELS.items()
    ],
)
