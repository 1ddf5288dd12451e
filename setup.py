"""The compiled parts of hetero, which it does without where no C compiler is; see setup.cfg."""

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class Library(build_ext):
    """A library that ctypes loads is no module of Python's, and is not named like one."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so.1"


def library(name: str, source: str, *options: str) -> Extension:
    given = {"extra_compile_args": ["-std=gnu11", "-O3", *options], "extra_link_args": [*options]}
    return Extension(name, [source], optional=True, **given)


setup(
    cmdclass={"build_ext": Library},
    ext_modules=[
        library("hetero.host.copying.libslices", "hetero/host/copying/slices.c", "-pthread"),
        library("hetero.accel.libgate", "hetero/accel/gate.c"),
    ],
)
