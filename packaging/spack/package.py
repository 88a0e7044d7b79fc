# Copyright: the Azekura project.
# SPDX-License-Identifier: (Apache-2.0 OR MIT)
"""A recipe for Spack (https://spack.io): builds `aze`, the library of `aze run --door intercept`
and the libraries for C by cargo.

No place to download from is promised yet, so the source is an archive of a clone, in the directory
that Spack is called in. Once, in the clone, for Spack 1.0 and newer:

    spack repo create ~/ours ours
    spack repo add ~/ours/spack_repo/ours
    mkdir ~/ours/spack_repo/ours/packages/azekura
    cp packaging/spack/package.py ~/ours/spack_repo/ours/packages/azekura/

then, as often as needed:

    git archive --prefix=azekura-0.1.0/ -o azekura-0.1.0.tar.gz HEAD
    spack install --no-checksum azekura

or the clone itself: `spack dev-build azekura@0.1.0` in it. Spack 0.23 makes the repository without the
folder spack_repo/ours.
"""

import os

from spack.package import *

try:
    # From Spack 1.0 on, this class comes with the builtin packages.
    from spack_repo.builtin.build_systems.generic import Package
except ImportError:
    pass


class Azekura(Package):
    """A parallel file system that lives on the nodes of a job: started by one command, used like
    any directory."""

    homepage = "file://README.md"
    url = "file://{0}/azekura-0.1.0.tar.gz".format(os.getcwd())
    manual_download = True

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
        jobs = ["--jobs", str(make_jobs)]
        # Each by itself: what both need of a dependency is another build than what one needs.
        for profile, crate in (("release", "aze-cli"), ("guest", "aze-intercept")):
            cargo("build", "--locked", "--profile", profile, "-p", crate, *jobs)
        cargo(
            "build", "--locked", "--profile", "library", "-p", "aze-capi", "-p", "aze-chfs", *jobs
        )
        mkdirp(prefix.bin, prefix.lib.azekura)
        install(join_path("target", "release", "aze"), prefix.bin)
        install(join_path("target", "guest", "libaze_intercept.so"), prefix.lib.azekura)
        linked = join_path(self.stage.path, "linked")
        Executable(join_path("scripts", "link-libs"))(
            join_path("target", "library"), linked, prefix
        )
        for place in ("lib", "include"):
            install_tree(join_path(linked, place), join_path(prefix, place))
        install_tree(join_path(linked, "man"), prefix.share.man)
        # As the other packages have them: hooks of Slurm, and what valgrind must know of the libraries.
        install_tree(join_path("packaging", "slurm"), prefix.share.azekura.slurm)
        install(join_path("crates", "capi", "valgrind.supp"), prefix.share.azekura)
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
