"""The compiled kernels; everything else is in pyproject.toml.

Both are optional: where there is no compiler the build goes on without them and their NumPy twins serve.
They use CPython's stable ABI (3.11, the first with the buffer protocol), so one wheel serves every later
Python.
"""

from glob import glob
from os.path import dirname

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

KERNELS = {
    "spark_kafka_native.kafka.records._kernel": "spark_kafka_native/kafka/records/_kernel.c",
    "spark_kafka_native.kafka.producer._hashing": "spark_kafka_native/kafka/producer/_hashing.c",
}


class StableAbiWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        return ("cp311", "abi3", platform) if python.startswith("cp") else (python, abi, platform)


setup(
    cmdclass={"bdist_wheel": StableAbiWheel},
    ext_modules=[
        Extension(
            name,
            [source],
            depends=sorted(glob(f"{dirname(source)}/*.h")),
            optional=True,
            py_limited_api=True,
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=["-O3"],
        )
        for name, source in KERNELS.items()
    ],
)
