"""Build of the native core; everything else is in pyproject.toml.

ROLLFERRY_SANITIZE=1 builds with AddressSanitizer and UndefinedBehaviorSanitizer.
"""

import os

import numpy as np
from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = [
    "module",
    "cpython",
    "copy_kernel",
    "spans",
    "lease",
    "files",
    "memo",
    "rows",
    "views",
    "numbers",
    "text",
    "records",
    "tensors",
]
FLAGS = ["-std=c11", "-O3", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread"]
if os.environ.get("ROLLFERRY_SANITIZE") == "1":
    FLAGS += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g", "-O1"]


class BuildNative(build_ext):
    """Says what to do where there is no C compiler."""

    def build_extension(self, ext: Extension) -> None:
        """Compile one extension module."""
        try:
            super().build_extension(ext)
        except Exception as error:
            raise SystemExit(
                f"rollferry's native core could not be compiled: {error}\n"
                "It needs a C11 compiler and the Python headers (Debian: apt-get install gcc python3-dev)."
            ) from error


class Abi3Wheel(bdist_wheel):
    """One wheel for CPython 3.11 and later."""

    def finalize_options(self) -> None:
        """Set the tag."""
        self.py_limited_api = "cp311"
        super().finalize_options()


setup(
    ext_modules=[
        Extension(
            "rollferry._native",
            [f"native/{name}.c" for name in SOURCES],
            depends=["native/native.h", "native/copy_kernel.h", "native/number_kernels.h"],
            include_dirs=[np.get_include()],
            define_macros=[("Py_LIMITED_API", "0x030B0000"), ("_GNU_SOURCE", "1")],
            extra_compile_args=FLAGS,
            extra_link_args=[flag for flag in FLAGS if flag.startswith(("-fsanitize", "-pthread"))],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": Abi3Wheel},
)
