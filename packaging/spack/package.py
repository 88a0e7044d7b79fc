# Copyright: the Azekura project.
# SPDX-License-Identifier: (Apache-2.0 OR MIT)
"""A recipe for Spack (https://spack.io): builds `aze` from a source directory by cargo.

No place to download from is promised yet, so the source is a clone: `spack dev-build azekura@0.1.0` in it, after
`spack repo create` and a copy of this file to packages/azekura/package.py of that repository.
"""

import os

from spack.package import *


class Azekura(Package):
    """A parallel file system that lives on the nodes of a job: started by one command, used like any directory."""

    homepage = "file://README.md"
    has_code = True

    license("Apache-2.0 OR MIT", checked_by="azekura")

    version("0.1.0")

    depends_on("c", type="build")
    depends_on("rust@1.95:", type="build")
    # Users mount through fusermount3; `aze run` and everything else work without it.
    variant("fuse", default=True, description="fusermount3, by which users mount volumes")
    depends_on("libfuse@3:", type="run", when="+fuse")

    conflicts("platform=darwin", msg="Azekura is for Linux")
    conflicts("platform=windows", msg="Azekura is for Linux")

    def setup_build_environment(self, env):
        env.set("CARGO_HOME", os.path.join(self.stage.path, "cargo"))
        # The linker of the Makefile is mold, which Spack need not have.
        env.unset("RUSTFLAGS")

    def install(self, spec, prefix):
        cargo = which("cargo", required=True)
        cargo("build", "--locked", "--release", "-p", "aze-cli", "--jobs", str(make_jobs))
        mkdirp(prefix.bin)
        install(join_path("target", "release", "aze"), prefix.bin)
        aze = Executable(prefix.bin.aze)
        aze("man", prefix.share.man.man1)
        completions = {
            "bash": join_path("bash-completion", "completions", "aze"),
            "zsh": join_path("zsh", "site-functions", "_aze"),
            "fish": join_path("fish", "vendor_completions.d", "aze.fish"),
        }
        for shell, place in completions.items():
            path = join_path(prefix.share, place)
            mkdirp(os.path.dirname(path))
            with open(path, "w") as script:
                aze("completions", shell, output=script)

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_version(self):
        Executable(self.prefix.bin.aze)("version")
