#!/usr/bin/python3
"""Installs a build and unpacks its Debian packages in temporary folders, and looks at both as a user does.

usage: package_test.py BUILD [CLASS...]     BUILD: build directory of the preset `package`, with its packages made
"""

import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CONSUMER = Path(__file__).resolve().parent / "consumer"
COMPILER = os.environ.get("CXX", "c++")
BUILD = None  # the first argument
FOLDER = None  # temporary
INSTALLED = None  # prefix of `cmake --install`
UNPACKED = None  # root of the unpacked packages


def run(*command, cwd=None, timeout=240, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MOEBUS_")} | variables
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout, check=False,
                          env=environment, cwd=cwd, stdin=subprocess.DEVNULL)


def must(*command, **options):
    result = run(*command, **options)
    if result.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: status {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def one_file(root, pattern):
    """Returns the only file of that name in the tree."""
    found = sorted(root.rglob(pattern))
    if len(found) != 1:
        raise AssertionError(f"{pattern} below {root}: expected once, found {[str(path) for path in found]}")
    return found[0]


def packages():
    """Returns the package with the library and the one with the headers."""
    names = [sorted(BUILD.glob(pattern)) for pattern in ("moebus_*.deb", "moebus-dev_*.deb")]
    if [len(found) for found in names] != [1, 1]:
        raise AssertionError(f"{BUILD}: expected one package moebus and one moebus-dev, found {names}; remove old ones")
    return names[0][0], names[1][0]


def commands(program, *words):
    """Yields the words of the command and of all subcommands, as --help names them."""
    yield words
    text = must(program, *words, "--help")
    part = re.search(r"^Subcommands:\n((?:  .*\n)*)", text, re.MULTILINE)
    for name in re.findall(r"^  ([a-z][a-z-]*)  ", part[1], re.MULTILINE) if part else ():
        yield from commands(program, *words, name)


class Installed(unittest.TestCase):
    def setUp(self):
        self.prefix = INSTALLED
        self.program = INSTALLED / "bin" / "moebus"

    def build_consumer(self, folder, version):
        source = Path(folder, "source")
        shutil.copytree(CONSUMER, source)
        return run("cmake", "-S", source, "-B", Path(folder, "build"), "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}",
                   f"-DWANTED_VERSION={version}")

    def version(self):
        return must(self.program, "--version").strip()

    def test_a_program_is_built_by_find_package(self):
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            configured = self.build_consumer(folder, self.version())
            self.assertEqual(configured.returncode, 0, configured.stdout + configured.stderr)
            must("cmake", "--build", Path(folder, "build"))
            self.assertIn(f"moebus {self.version()}: 2 of 2 ranks", must(Path(folder, "build", "consumer")))

    def test_another_minor_version_is_refused_by_find_package(self):
        major, minor, _ = map(int, self.version().split("."))
        self.assertEqual(major, 0, "from 1.0 on minor versions are compatible: turn this test round")
        for other in (f"{major}.{minor + 1}", f"{major + 1}.0", *([f"{major}.{minor - 1}"] if minor > 0 else [])):
            with self.subTest(version=other), tempfile.TemporaryDirectory(dir=FOLDER) as folder:
                refused = self.build_consumer(folder, other)
                self.assertNotEqual(refused.returncode, 0)
                self.assertIn(f'requested version "{other}"', refused.stderr)

    def test_a_program_is_built_by_pkg_config(self):
        pc = one_file(self.prefix, "moebus.pc")
        self.assertEqual(must("pkg-config", "--modversion", "moebus", PKG_CONFIG_PATH=str(pc.parent)).strip(),
                         self.version())
        flags = must("pkg-config", "--cflags", "--libs", "moebus", PKG_CONFIG_PATH=str(pc.parent)).split()
        libraries = one_file(self.prefix, "libmoebus.so").parent
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            program = Path(folder, "consumer")
            must(COMPILER, "-std=c++20", "-pthread", CONSUMER / "main.cpp", "-o", program, *flags, f"-Wl,-rpath,{libraries}")
            self.assertIn("2 of 2 ranks", must(program))

    def test_programs_depend_on_the_minor_version(self):
        library = one_file(self.prefix, "libmoebus.so")
        name = re.search(r"SONAME.*\[(.*)\]", must("readelf", "-d", library))[1]
        self.assertEqual(name, "libmoebus.so." + ".".join(self.version().split(".")[:2]))

    def test_the_command_finds_its_models_and_runs(self):
        self.assertIn("deepseek-v3", must(self.program, "bench", "exchange", "--list-models"))
        self.assertIn("equal the oracle", must(self.program, "check", "--cases", "3", "--ranks", "2"))

    def test_the_command_depends_on_no_path_of_the_build(self):
        for line in must("readelf", "-d", self.program).splitlines():
            if "RUNPATH" in line or "RPATH" in line:
                self.assertIn("[$ORIGIN/", line)

    def test_every_command_has_a_page_without_complaints(self):
        manual = one_file(self.prefix, "moebus.1.gz").parent
        pages = {"-".join(("moebus", *words)) + ".1.gz" for words in commands(self.program)}
        self.assertEqual({path.name for path in manual.iterdir()}, pages)
        for page in sorted(pages):
            with self.subTest(page=page):
                text = gzip.decompress((manual / page).read_bytes()).decode()
                name = page.removesuffix(".1.gz")
                self.assertTrue(re.search(rf"^\.TH {name.upper()} ", text, re.MULTILINE), text[:300])
                self.assertIn(f".SH NAME\n{name} \\- ", text)
                shown = run("man", "--warnings", "-E", "UTF-8", "-l", manual / page, MANWIDTH="100", MANROFFSEQ="")
                self.assertEqual((shown.returncode, shown.stderr), (0, ""))
                self.assertIn("--help", shown.stdout)


class Completion(unittest.TestCase):
    def setUp(self):
        self.scripts = {shell: one_file(INSTALLED / "share", pattern) for shell, pattern in
                        (("bash", "completions/moebus"), ("zsh", "_moebus"), ("fish", "moebus.fish"))}

    def complete_in_bash(self, line):
        """Returns what a tab at the end of the line offers."""
        words = line.split(" ")
        script = f"""
            source {self.scripts['bash']}
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${{#COMP_LINE}}
            function=$(complete -p moebus | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
            "$function" moebus "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
            printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        return must("bash", "--norc", "-uec", script, "bash", *words, cwd=FOLDER).split()

    def test_bash_completes_commands(self):
        self.assertEqual(self.complete_in_bash("moebus be"), ["bench"])
        self.assertEqual(self.complete_in_bash("moebus bench ex"), ["exchange"])
        self.assertEqual(self.complete_in_bash("moebus completion "), ["bash", "zsh", "fish", "-h", "--help"])

    def test_bash_completes_options_of_that_command_alone(self):
        self.assertEqual(self.complete_in_bash("moebus bench exchange --la"), ["--layout"])
        self.assertEqual(self.complete_in_bash("moebus check --la"), [])
        self.assertEqual(self.complete_in_bash("moebus bench layer --tokens 4 --list"), ["--list-models"])

    def test_bash_completes_values(self):
        self.assertEqual(self.complete_in_bash("moebus bench exchange --layout expert_"), ["expert_major", "expert_padded"])
        self.assertEqual(self.complete_in_bash("moebus bench exchange --layout rank_major --path l"), ["latency"])
        self.assertEqual(self.complete_in_bash("moebus bench exchange --tokens 1"), [])

    def test_bash_completes_files_where_a_value_may_be_one(self):
        Path(FOLDER, "picture.svg").touch()
        self.assertEqual(self.complete_in_bash("moebus bench exchange --plot pict"), ["picture.svg"])

    @unittest.skipUnless(shutil.which("fish"), "fish is not installed")
    def test_fish_completes_commands_options_and_values(self):
        def complete(line):
            text = must("fish", "--no-config", "-c", f"source {self.scripts['fish']}; complete -C '{line}'", HOME=str(FOLDER))
            return [offer.split("\t")[0] for offer in text.splitlines()]

        self.assertEqual(complete("moebus be"), ["bench"])
        self.assertEqual(complete("moebus bench exchange --la"), ["--layout"])
        self.assertEqual(complete("moebus bench exchange --layout expert_"), ["expert_major", "expert_padded"])
        self.assertEqual(complete("moebus check --la"), [])

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh_loads_the_functions(self):
        load = f"fpath=({self.scripts['zsh'].parent} $fpath); autoload -Uz compinit; compinit -D -u; print -r -- $_comps[moebus]"
        self.assertEqual(must("zsh", "-f", "-c", load).strip(), "_moebus")
        source = f"autoload -Uz compinit; compinit -D -u; source {self.scripts['zsh']}; print -r -- $_comps[moebus]; "
        functions = must("zsh", "-f", "-c", source + "print -rl -- ${(k)functions}").split()
        self.assertEqual(functions[0], "_moebus")
        self.assertIn("_moebus_bench_exchange", functions)


class Debian(unittest.TestCase):
    def setUp(self):
        self.runtime, self.dev = packages()

    def field(self, package, name):
        return must("dpkg-deb", "-f", package, name).strip()

    def test_the_packages_depend_on_what_they_need(self):
        depends = self.field(self.runtime, "Depends")
        for library in ("libc6", "libfmt", "libspdlog", "libsodium", "libhwloc", "libstdc++6"):
            self.assertIn(library, depends)
        self.assertEqual(self.field(self.dev, "Depends"), f"moebus (= {self.field(self.runtime, 'Version')})")

    def test_headers_are_in_the_one_and_the_library_in_the_other(self):
        runtime, dev = must("dpkg-deb", "-c", self.runtime), must("dpkg-deb", "-c", self.dev)
        for pattern in (r"/bin/moebus\n", r"/libmoebus\.so\.\d+\.\d+\.\d+\n", r"/models\.json\n", r"/plot\.py\n",
                        r"/moebus\.1\.gz\n", r"/completions/moebus\n", r"/doc/moebus/copyright\n"):
            self.assertRegex(runtime, pattern)
            self.assertNotRegex(dev, pattern)
        for pattern in (r"/moebus/exchange\.hpp\n", r"/moebusConfig\.cmake\n", r"/moebus\.pc\n", r"/libmoebus\.so -> "):
            self.assertRegex(dev, pattern)
            self.assertNotRegex(runtime, pattern)

    def test_the_command_runs_from_the_unpacked_package(self):
        program = UNPACKED / "usr" / "bin" / "moebus"
        self.assertEqual(must(program, "--version").strip(), self.field(self.runtime, "Version").split("-")[0])
        self.assertIn("deepseek-v3", must(program, "bench", "exchange", "--list-models"))

    @unittest.skipUnless(shutil.which("lintian"), "lintian is not installed")
    def test_lintian_has_nothing_to_say(self):
        said = run("lintian", "--allow-root", "--fail-on", "error,warning", self.runtime, self.dev)
        self.assertEqual((said.returncode, said.stdout), (0, ""), said.stdout + said.stderr)


def main():
    global BUILD, FOLDER, INSTALLED, UNPACKED
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    BUILD = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="moebus-package-") as folder:
        FOLDER, INSTALLED, UNPACKED = Path(folder), Path(folder, "installed"), Path(folder, "unpacked")
        must("cmake", "--install", BUILD, "--prefix", INSTALLED)
        for package in packages():
            must("dpkg-deb", "-x", package, UNPACKED)
        tests = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], exit=False)
    sys.exit(0 if tests.result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
