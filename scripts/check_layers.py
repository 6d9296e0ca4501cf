#!/usr/bin/python3
"""Checks that every #include, #ifdef and CUDA header stands where the layer rules allow it.

usage: check_layers.py [ROOT]      status 1 and one line per breach if there is any
       check_layers.py --self-test  plants breaches in a temporary tree and expects each to be found
"""

import re
import sys
import tempfile
from pathlib import Path

VOCABULARY = {f"moebus/{name}.hpp" for name in ("types", "tensor", "config", "io", "stats", "error", "placement", "version")}
VERBS = {f"moebus/{name}.hpp" for name in ("group", "exchange", "info", "moebus")}
PUBLIC = VOCABULARY | VERBS
BASE, SYNC, MODEL = r"base/[^/]+", r"sync/[^/]+", r"model/[^/]+"

# Place -> what its files may include of ours, besides what is in `VOCABULARY` or `PUBLIC` as told. First match wins.
# Each pattern must match the whole path of an include.
RULES = [
    ("include/moebus/", PUBLIC, []),
    ("src/base/", VOCABULARY, [BASE]),
    ("src/sync/", VOCABULARY, [BASE, SYNC]),
    ("src/model/", VOCABULARY, [BASE, MODEL]),
    ("src/transport/loopback/", VOCABULARY, [BASE, SYNC, r"transport/[^/]+", r"transport/loopback/.+"]),
    ("src/transport/shm/", VOCABULARY, [BASE, SYNC, r"transport/[^/]+", r"transport/shm/.+"]),
    ("src/transport/unruly/", VOCABULARY, [BASE, SYNC, r"transport/[^/]+", r"transport/unruly/.+"]),
    ("src/transport/", VOCABULARY, [BASE, SYNC, r"transport/[^/]+"]),
    ("src/backend/cpu/", VOCABULARY, [BASE, SYNC, MODEL, r"backend/[^/]+", r"backend/cpu/.+"]),
    ("src/backend/cuda/", VOCABULARY, [BASE, SYNC, MODEL, r"backend/[^/]+", r"backend/cuda/.+"]),
    ("src/backend/", VOCABULARY, [BASE, SYNC, MODEL, r"backend/[^/]+"]),
    ("src/engine/", VOCABULARY,
     [BASE, SYNC, MODEL, r"engine/[^/]+", r"transport/(transport|store)\.hpp", r"backend/(backend|device)\.hpp"]),
    ("src/api/", PUBLIC, [r"(base|sync|model|transport|backend|engine|api)/.+"]),
    ("oracle/", VOCABULARY, [r"oracle/.+"]),
    ("workload/", VOCABULARY, [r"workload/.+"]),
    ("cases/", PUBLIC, [r"(oracle|workload|cases)/.+"]),
    ("cli/", PUBLIC, [r"(oracle|workload|cases|cli)/.+"]),
    ("python/", PUBLIC, [r"(oracle|workload|python)/.+"]),
    ("examples/", PUBLIC, [r"(oracle|workload|examples)/.+"]),
]
# A folder in src/ without a rule of its own is a room that nobody decided on.
CHECKED_ROOTS = ["include", "src", "oracle", "workload", "cases", "cli", "python", "examples"]

OUR_ROOTS = re.compile(r"(moebus|base|sync|model|transport|backend|engine|api|oracle|workload|cases|cli|python|examples|tests|bench)/")
CUDA = re.compile(r"(cuda|nv|cub/|cutlass|cooperative_groups)[\w/]*\.(h|hpp|cuh)$|.*\.cuh$")
# Instructions of one processor: in src/ only where rows are moved and where words are ordered.
INTRINSICS = re.compile(r"(\w*intrin|x86gprintrin|cpuid|arm_\w+)\.h$")
CONDITIONAL_ALLOWED = re.compile(r"src/(base/(hd|assert)\.hpp|sync/.+|backend/(cpu|cuda)/.+|api/.+)$")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CONDITIONAL = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b")


def rule_for(path):
    """Returns (public headers, patterns) of the place that `path` lies in, None if no rule knows it."""
    for place, public, patterns in RULES:
        if path.startswith(place) and (place != "src/transport/" and place != "src/backend/" or path.count("/") == 2):
            return public, patterns
    return None


def include_breach(path, quote, target, rule):
    public, patterns = rule
    if CUDA.match(target) and not path.startswith("src/backend/cuda/"):
        return "CUDA headers belong in src/backend/cuda only"
    if INTRINSICS.match(target) and path.startswith("src/") and not path.startswith(("src/backend/", "src/sync/")):
        return "processor instructions belong in src/backend and src/sync only"
    is_local = quote == '"'
    if not OUR_ROOTS.match(target):
        return f'"{target}" is not a path from a root; write "room/{target}" or <...>' if is_local else None
    if not is_local:
        return f'our own headers are included with quotes: "{target}"'
    if target in public or any(re.fullmatch(pattern, target) for pattern in patterns):
        return None
    if path.startswith("include/"):
        return "public headers include public headers only"
    if target.startswith("moebus/"):
        return "only api includes the verb headers; this room may use the vocabulary only"
    return f"{target.split('/')[0]}/ may not be seen from {path.rsplit('/', 1)[0]}/"


def check_file(root, path):
    """Yields 'path:line: text' for each breach in one file."""
    rule = rule_for(path)
    if rule is None:
        yield f"{path}:1: no layer rule covers this folder; decide its place in scripts/check_layers.py"
        return
    if path.startswith("include/") and path.removeprefix("include/") not in PUBLIC:
        yield f"{path}:1: neither vocabulary nor verb; name it in scripts/check_layers.py"
    # Vocabulary knows no verb: it must stand alone for the rooms below.
    if path.removeprefix("include/") in VOCABULARY:
        rule = (VOCABULARY, [])
    for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
        if match := INCLUDE.match(line):
            if breach := include_breach(path, match[1], match[2], rule):
                yield f"{path}:{number}: {breach}"
        elif CONDITIONAL.match(line) and not CONDITIONAL_ALLOWED.match(path):
            yield f"{path}:{number}: conditional compilation belongs in base/hd.hpp, sync/, backend/cpu/, backend/cuda/ and api/ only"


def check_tree(root):
    suffixes = {".hpp", ".cpp", ".cu", ".cuh", ".h", ".cc"}
    breaches = []
    num_files = 0
    for top in CHECKED_ROOTS:
        for file in sorted((root / top).rglob("*")):
            if file.suffix in suffixes and file.is_file():
                num_files += 1
                breaches += check_file(root, file.relative_to(root).as_posix())
    return num_files, breaches


def self_test():
    """Each pair: a file with one line, and whether that line is a breach."""
    cases = [
        ("src/base/a.hpp", '#include "sync/words.hpp"', True),
        ("src/base/a.hpp", '#include "moebus/types.hpp"', False),
        ("src/base/a.hpp", "#include <spdlog/spdlog.h>", False),
        ("src/base/a.hpp", "#ifdef __linux__", True),
        ("src/sync/a.hpp", "#ifdef __SSE2__", False),
        ("src/sync/a.hpp", '#include "model/plan.hpp"', True),
        ("src/model/a.cpp", '#include "sync/words.hpp"', True),
        ("src/model/a.cpp", '#include "moebus/exchange.hpp"', True),
        ("src/model/a.cpp", "#include <immintrin.h>", True),
        ("src/transport/shm/a.cpp", '#include "transport/transport.hpp"', False),
        ("src/transport/shm/a.cpp", '#include "transport/loopback/a.hpp"', True),
        ("src/transport/unruly/a.cpp", '#include "transport/region_table.hpp"', False),
        ("src/transport/unruly/a.cpp", '#include "transport/shm/a.hpp"', True),
        ("src/transport/a.cpp", '#include "transport/shm/a.hpp"', True),
        ("src/transport/shm/a.cpp", '#include "model/plan.hpp"', True),
        ("src/transport/ucx/a.cpp", "int x;", True),
        ("src/backend/cpu/a.cpp", '#include "transport/transport.hpp"', True),
        ("src/backend/cpu/a.cpp", "#include <immintrin.h>", False),
        ("src/backend/cpu/a.cpp", "#include <cuda_runtime.h>", True),
        ("src/engine/a.cpp", '#include "transport/transport.hpp"', False),
        ("src/engine/a.cpp", '#include "transport/store.hpp"', False),
        ("src/engine/a.cpp", '#include "transport/rendezvous.hpp"', True),
        ("src/engine/a.cpp", '#include "transport/shm/a.hpp"', True),
        ("src/engine/a.cpp", '#include "backend/backend.hpp"', False),
        ("src/engine/a.cpp", '#include "backend/cpu/a.hpp"', True),
        ("src/engine/a.cpp", '#include "moebus/group.hpp"', True),
        ("src/engine/a.cpp", '#include "api/group.hpp"', True),
        ("src/api/a.cpp", '#include "transport/shm/a.hpp"', False),
        ("src/api/a.cpp", '#include "moebus/group.hpp"', False),
        ("src/api/a.cpp", '#include "oracle/a.hpp"', True),
        ("src/misc/a.cpp", "int x;", True),
        ("oracle/a.cpp", '#include "moebus/config.hpp"', False),
        ("oracle/a.cpp", '#include "moebus/group.hpp"', True),
        ("oracle/a.cpp", '#include "base/math.hpp"', True),
        ("oracle/a.cpp", '#include "workload/a.hpp"', True),
        ("workload/a.cpp", '#include "model/plan.hpp"', True),
        ("cases/a.cpp", '#include "moebus/exchange.hpp"', False),
        ("cases/a.cpp", '#include "oracle/a.hpp"', False),
        ("cases/a.cpp", '#include "base/math.hpp"', True),
        ("oracle/a.cpp", '#include "cases/a.hpp"', True),
        ("cli/main.cpp", '#include "cases/a.hpp"', False),
        ("cli/main.cpp", '#include "moebus/moebus.hpp"', False),
        ("cli/main.cpp", '#include "oracle/a.hpp"', False),
        ("cli/main.cpp", '#include "engine/a.hpp"', True),
        ("cli/main.cpp", '#include "options.hpp"', True),
        ("cli/main.cpp", "#include <moebus/moebus.hpp>", True),
        ("examples/01_x/main.cpp", '#include "base/math.hpp"', True),
        ("include/moebus/config.hpp", '#include "moebus/types.hpp"', False),
        ("include/moebus/config.hpp", '#include "moebus/group.hpp"', True),
        ("include/moebus/group.hpp", '#include "base/math.hpp"', True),
        ("include/moebus/group.hpp", '#include "moebus/config.hpp"', False),
        ("include/moebus/misc.hpp", "int x;", True),
    ]
    num_wrong = 0
    for path, line, is_breach in cases:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, path)
            file.parent.mkdir(parents=True)
            file.write_text(line + "\n", encoding="utf-8")
            _, breaches = check_tree(Path(folder))
        if bool(breaches) != is_breach:
            num_wrong += 1
            print(f"self-test: {path}: {line}: expected {'a breach' if is_breach else 'none'}, got {breaches}")
    print(f"layer check, self-test: {len(cases) - num_wrong} of {len(cases)} cases as expected")
    return 1 if num_wrong else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    num_files, breaches = check_tree(root)
    for breach in breaches:
        print(breach)
    print(f"layer check: {num_files} files, {len(breaches)} breaches")
    if num_files == 0:
        print(f"layer check: no source file under {root}: wrong root?")
    return 1 if breaches or num_files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
