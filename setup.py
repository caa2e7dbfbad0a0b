"""The C extension; everything else about the package is in pyproject.toml.

The extension is optional: without a compiler or libjpeg's headers the package installs without it, decodes by
torchvision and Pillow, and `wellfed doctor` says so.
"""

import os
import sys
import sysconfig

from setuptools import Extension, setup

# The limited API holds the buffer protocol from 3.11 on, and free-threaded builds have no limited API.
abi3 = sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED")
native = "pipeline/decode/native"
parts = ("files", "jpegcodec", "jpegheader", "jpegcheck", "jpegwrite", "jpegerror", "resample")

setup(
    ext_modules=[
        Extension(
            "wellfed.pipeline.decode._jpeg",
            sources=[f"{native}/{name}.c" for name in ("module", *parts)],
            depends=[f"{native}/{name}.h" for name in ("status", *parts)],
            libraries=["jpeg", "m"],
            # `make sanitize` gives its own; never anything that only the building machine can run.
            extra_compile_args=os.environ.get("WELLFED_NATIVE_FLAGS", "-O3 -g0").split(),
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if abi3 else [],
            py_limited_api=abi3,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if abi3 else {},
)
