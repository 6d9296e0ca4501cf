#!/usr/bin/python3
"""Runs the command as a user does and looks at statuses, messages, JSON and pictures.

usage: command_test.py MOEBUS [CLASS...]
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOEBUS = None  # path of the command, the first argument
OUTER = ("OMPI_", "PMIX_", "SLURM_", "MOEBUS_")
SMALL = ["--tokens", "5", "--hidden", "64", "--topk", "2", "--experts", "6", "--iterations", "12"]


def run(*arguments, before=(), timeout=120):
    """Runs the command; variables of an outer launcher do not reach it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OUTER)}
    return subprocess.run([*before, MOEBUS, *arguments], capture_output=True, text=True, timeout=timeout, check=False,
                          env=environment, stdin=subprocess.DEVNULL)


def has_module(name):
    return subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, check=False).returncode == 0


class Usage(unittest.TestCase):
    def assert_refused(self, arguments, *fragments):
        result = run(*arguments)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(result.stdout, "")
        for fragment in fragments:
            self.assertIn(fragment, result.stderr)

    def test_topk_beyond_experts_is_refused_with_both_values(self):
        self.assert_refused(["bench", "exchange", "--topk", "9", "--experts", "8"], "--topk 9", "--experts 8")

    def test_an_unknown_layout_is_refused_with_those_that_exist(self):
        self.assert_refused(["bench", "dispatch", "--layout", "round"], "--layout", "round", "expert_padded")

    def test_a_number_out_of_range_is_refused_with_the_range(self):
        self.assert_refused(["bench", "combine", "--ranks", "65"], "--ranks", "65", "1 to 64")

    def test_an_unknown_option_is_refused(self):
        self.assert_refused(["bench", "layer", "--speed", "9"], "--speed")

    def test_an_unknown_model_is_refused_with_the_known_ones(self):
        self.assert_refused(["bench", "exchange", "--model", "gpt-9"], "gpt-9", "deepseek-v3")

    def test_an_unknown_mutant_is_refused_with_the_known_ones(self):
        self.assert_refused(["check", "--mutant", "bitrot"], "bitrot", "swapped-rows")

    def test_nodes_that_cannot_be_are_refused_with_the_forms(self):
        self.assert_refused(["bench", "exchange", "--nodes", "two"], "--nodes two", "3+1", "0,1,0,1")
        self.assert_refused(["bench", "exchange", "--nodes", "3+1", "--ranks", "2"], "--nodes 3+1", "4 ranks, not 2")
        self.assert_refused(["check", "--nodes", "0,1+1"], "--nodes 0,1+1", "3+1")

    def test_an_unknown_mapping_or_way_is_refused_with_those_that_exist(self):
        self.assert_refused(["bench", "exchange", "--map", "some"], "--map", "some", "reachable")
        self.assert_refused(["check", "--inter-node", "train"], "--inter-node", "train", "gateway")
        self.assert_refused(["bench", "layer", "--levels", "3"], "--levels", "3", "0 to 2")

    def test_a_comparison_with_itself_is_refused(self):
        self.assert_refused(["bench", "exchange", "--compare-map"], "--compare-map", "--map none")

    def test_overlap_is_an_option_of_layers_alone(self):
        self.assert_refused(["bench", "exchange", "--overlap"], "--overlap")

    def test_iterations_and_time_exclude_each_other(self):
        self.assert_refused(["bench", "exchange", "--iterations", "5", "--time", "1"], "--iterations", "--time")

    def test_the_command_alone_teaches(self):
        self.assert_refused([], "moebus bench exchange --model deepseek-v3")

    def test_help_has_examples_everywhere(self):
        for arguments in ([], ["bench"], ["bench", "dispatch"], ["check"]):
            result = run(*arguments, "--help")
            self.assertEqual(result.returncode, 0)
            self.assertIn("  moebus ", result.stdout)

    def test_version_is_three_numbers(self):
        self.assertRegex(run("--version").stdout, r"^\d+\.\d+\.\d+\n$")

    def test_models_are_listed_one_a_line(self):
        result = run("bench", "exchange", "--list-models")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertGreater(len(result.stdout.splitlines()), 20)
        self.assertIn("deepseek-v3 ", result.stdout)


class Info(unittest.TestCase):
    def test_json_names_backends_transports_and_simd(self):
        result = run("info", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertIn("cpu", [one["name"] for one in report["backends"] if one["is_available"]])
        self.assertLessEqual({"loopback", "shm"}, {one["name"] for one in report["transports"]})
        self.assertIn(report["simd_level"], [one["name"] for one in report["simd_levels"] if one["is_available"]])
        self.assertGreater(report["machine"]["memory_bytes"], 0)

    def test_cuda_is_available_with_devices_or_says_why_not(self):
        report = json.loads(run("info", "--json").stdout)
        cuda = next(one for one in report["backends"] if one["name"] == "cuda")
        self.assertEqual(cuda["is_available"], len(report["devices"]) > 0, cuda)
        self.assertTrue(cuda["remark"])
        for device in report["devices"]:
            self.assertRegex(device["compute_capability"], r"^\d+\.\d$")
            self.assertGreater(device["memory_bytes"], 0)

    def test_a_cuda_library_that_is_not_there_is_named(self):
        result = run("info", before=["env", "MOEBUS_CUDA_LIBRARY=/nowhere/libmoebus_cuda.so"])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"cuda +no +/nowhere/libmoebus_cuda\.so cannot be loaded")

    def test_text_says_the_same(self):
        result = run("info")
        self.assertEqual(result.returncode, 0, result.stderr)
        for word in ("backends", "transports", "SIMD", "machine", "node", "map:", "levels:"):
            self.assertIn(word, result.stdout)

    def test_the_node_is_the_boot_id_unless_it_is_named(self):
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        self.assertEqual(json.loads(run("info", "--json").stdout)["node"], {"name": boot_id, "source": "boot_id"})
        self.assertIn(boot_id[:8], run("info").stdout)
        named = json.loads(run("info", "--json", before=["env", "MOEBUS_HOST_ID=rack 3"]).stdout)["node"]
        self.assertEqual(named, {"name": "rack 3", "source": "MOEBUS_HOST_ID"})


class Bench(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.schema = json.loads((ROOT / "cli" / "bench.schema.json").read_text(encoding="utf-8"))

    def report(self, *arguments, before=()):
        result = run("bench", *arguments, "--json", before=before)
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        if has_module("jsonschema"):
            import jsonschema
            jsonschema.validate(report, self.schema)
        self.assertTrue(report["verified"])
        return report

    def assert_bytes_are_least(self, report):
        for name, phase in report["phases"].items():
            for part in (phase, phase["between_nodes"], phase["inside_nodes"]):
                self.assertAlmostEqual(part["bytes_sent"], part["bytes_minimum"], places=6, msg=name)

    def test_every_kind_reports_its_phases(self):
        for kind, phases in (("dispatch", ["dispatch"]), ("combine", ["combine"]),
                             ("exchange", ["dispatch", "combine", "exchange"]),
                             ("layer", ["dispatch", "experts", "combine", "layer"])):
            with self.subTest(kind=kind):
                report = self.report(kind, *SMALL)
                self.assertEqual(list(report["phases"]), phases)
                self.assertEqual(report["iterations"], 12)

    def test_every_layout_and_path_sends_the_least_bytes(self):
        for layout in ("rank_major", "expert_major", "expert_padded"):
            for path in (["latency"], ["throughput"], ["throughput", "--delivery", "staged"]):
                with self.subTest(layout=layout, path=path):
                    report = self.report("exchange", *SMALL, "--ranks", "3", "--layout", layout, "--path", *path)
                    self.assert_bytes_are_least(report)

    def test_every_topology_sends_the_least_bytes_between_nodes(self):
        for nodes, ranks in (("2", ["--ranks", "5"]), ("3+1", []), ("1+1+2", []), ("0,1,0,1", [])):
            for way in (["--inter-node", "direct"], ["--inter-node", "gateway", "--map", "node"], ["--map", "none"]):
                with self.subTest(nodes=nodes, way=way):
                    report = self.report("exchange", *SMALL, "--nodes", nodes, *ranks, *way)
                    self.assert_bytes_are_least(report)
                    self.assertEqual(report["shape"]["levels"], 2)
                    self.assertEqual(len(report["shape"]["nodes"]), report["shape"]["ranks"])
                    self.assertGreater(report["phases"]["dispatch"]["between_nodes"]["bytes_sent"], 0)

    def test_a_gateway_takes_a_token_once_for_all_its_node(self):
        shape = ["--tokens", "20", "--hidden", "64", "--topk", "4", "--experts", "8", "--iterations", "10"]
        sent = {way: self.report("exchange", *shape, "--nodes", "2+2", "--inter-node", way)["phases"]["dispatch"]
                for way in ("gateway", "direct")}
        self.assertLess(sent["gateway"]["between_nodes"]["bytes_sent"], sent["direct"]["between_nodes"]["bytes_sent"])
        self.assertGreater(sent["gateway"]["inside_nodes"]["bytes_sent"], sent["direct"]["inside_nodes"]["bytes_sent"])

    def test_a_floor_is_given_where_rows_go_straight(self):
        phases = {way: self.report("exchange", *SMALL, "--nodes", "1+1", "--inter-node", way)["phases"]["exchange"]
                  for way in ("gateway", "direct")}
        self.assertIsNone(phases["gateway"]["floor_us"])
        self.assertIsNotNone(phases["direct"]["floor_us"])

    def test_what_the_environment_says_of_nodes_changes_nothing(self):
        report = self.report("exchange", *SMALL, before=["env", "MOEBUS_HOST_ID=rack"])
        self.assertEqual(report["shape"]["nodes"], [0, 0])

    def test_one_node_has_nothing_between_nodes(self):
        report = self.report("exchange", *SMALL, "--levels", "2")
        self.assertEqual(report["phases"]["exchange"]["between_nodes"], {"bytes_sent": 0, "bytes_minimum": 0})
        self.assertEqual((report["shape"]["nodes"], report["shape"]["levels"]), ([0, 0], 2))

    def test_the_same_calls_are_made_in_a_mapped_group_too(self):
        for transport in ("loopback", "shm"):
            report = self.report("exchange", *SMALL, "--map", "none", "--compare-map", "--transport", transport)
            self.assertGreater(report["mapped"]["ratio_of_medians"], 0)

    def test_overlap_is_verified_and_reported_on_every_path(self):
        for path in (["latency"], ["throughput"], ["throughput", "--delivery", "staged"]):
            for more in ([], ["--layout", "expert_padded"], ["--ranks", "4", "--nodes", "2", "--layout", "expert_major"]):
                with self.subTest(path=path, more=more):
                    overlap = self.report("layer", *SMALL, "--overlap", "--path", *path, *more)["overlap"]
                    self.assertEqual(overlap["rounds"], 12)
                    self.assertIn("cores", overlap["remark"])
        self.report("layer", *SMALL[2:], "--tokens", "1", "--overlap")

    def test_the_table_says_the_topology_and_what_was_hidden(self):
        text = run("bench", "layer", *SMALL, "--overlap", "--nodes", "2+1").stdout
        for words in ("2 nodes (0-1 | 2)", "gateway", "mapped: reachable", "between", "hidden:", "no floor"):
            self.assertIn(words, text)

    def test_every_element_type_is_verified(self):
        for dtype in (["bf16"], ["f16"], ["f32"], ["fp8"], ["fp8", "--scales", "ue8m0"], ["fp8", "--cast"],
                      ["fp8", "--cast", "--scales", "ue8m0"]):
            with self.subTest(dtype=dtype):
                self.assert_bytes_are_least(self.report("exchange", *SMALL, "--dtype", *dtype))

    def test_ranks_run_as_threads_over_loopback(self):
        report = self.report("exchange", *SMALL, "--transport", "loopback")
        self.assertEqual(report["shape"]["transport"], "loopback")

    def test_one_rank_and_no_tokens_are_fine(self):
        self.report("exchange", *SMALL, "--ranks", "1")
        self.report("exchange", *SMALL[2:], "--tokens", "0")

    def test_the_same_seed_has_the_same_inputs(self):
        first, second = (self.report("dispatch", *SMALL, "--seed", "7")["shape"]["input_hash"] for _ in range(2))
        other = self.report("dispatch", *SMALL, "--seed", "8")["shape"]["input_hash"]
        self.assertEqual(first, second)
        self.assertNotEqual(first, other)

    def test_recorded_routing_is_read_and_checked(self):
        with tempfile.TemporaryDirectory() as folder:
            good, bad = Path(folder) / "good.jsonl", Path(folder) / "bad.jsonl"
            good.write_text("[0, 5]\n[3, -1]\n", encoding="utf-8")
            bad.write_text("[0, 5]\n[3, 6]\n", encoding="utf-8")
            self.report("exchange", *SMALL, "--routing", f"file:{good}")
            result = run("bench", "exchange", *SMALL, "--routing", f"file:{bad}")
            self.assertEqual(result.returncode, 2)
            self.assertIn("bad.jsonl", result.stderr)

    def test_the_table_says_that_it_was_verified_and_has_no_bar_in_a_pipe(self):
        result = run("bench", "exchange", *SMALL)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("verified", result.stdout)
        self.assertEqual(result.stderr, "")


class OuterLauncher(unittest.TestCase):
    def setUp(self):
        if shutil.which("mpirun") is None:
            self.skipTest("mpirun is not installed")

    def test_ranks_of_mpirun_form_one_group_and_rank_zero_reports(self):
        mpirun = ["mpirun", "-n", "3", "--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            mpirun.append("--allow-run-as-root")
        result = run("bench", "exchange", *SMALL, "--json", before=mpirun)
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(report["shape"]["ranks"], 3)
        self.assertTrue(report["verified"])

    def test_ranks_of_mpirun_live_on_pretended_nodes_too(self):
        mpirun = ["mpirun", "-n", "3", "--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            mpirun.append("--allow-run-as-root")
        result = run("bench", "layer", *SMALL, "--json", "--nodes", "0,1,0", "--overlap", before=mpirun)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["shape"]["nodes"], [0, 1, 0])
        result = run("bench", "exchange", *SMALL, "--map", "none", "--compare-map", before=mpirun)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("--compare-map under mpirun", result.stderr)


class Check(unittest.TestCase):
    def test_random_cases_equal_the_oracle(self):
        result = run("check", "--cases", "60", "--seed", "3", timeout=280)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("60 cases", result.stdout)

    def test_what_is_said_of_the_group_is_kept_and_repeated(self):
        group = ["--nodes", "3+1", "--map", "none", "--inter-node", "gateway", "--levels", "2"]
        result = run("check", "--cases", "20", *group)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        result = run("check", "--mutant", "dropped-row", *group)
        self.assertEqual(result.returncode, 1, result.stderr)
        for words in (" ".join(group), "--ranks 4"):
            self.assertIn(words, result.stdout)
        for words in ("nodes 0 0 0 1", "mapped none"):
            self.assertIn(words, result.stderr)

    def test_a_failure_prints_the_line_that_runs_it_again(self):
        first = run("check", "--mutant", "dropped-row", "--seed", "4")
        self.assertEqual(first.returncode, 1, first.stderr)
        line = first.stdout.strip().split()
        self.assertEqual(line[:2], ["moebus", "check"])
        again = run(*line[1:])
        self.assertEqual((again.returncode, again.stdout, again.stderr), (1, first.stdout, first.stderr))

    def test_a_difference_names_where_it_is(self):
        result = run("check", "--mutant", "swapped-rows", "--ranks", "2,3")
        for word in ("source rank", "token", "column", "expected", "seen"):
            self.assertIn(word, result.stderr)

    def test_json_holds_the_failure(self):
        report = json.loads(run("check", "--mutant", "dropped-row", "--json").stdout)
        self.assertFalse(report["passed"])
        self.assertIn("--case", report["failure"]["line"])


class Mutants(unittest.TestCase):
    def test_every_planted_fault_is_found(self):
        for name in ("swapped-rows", "dropped-row", "order", "stale-epoch", "skipped-fence"):
            with self.subTest(mutant=name):
                result = run("check", "--mutant", name, "--cases", "60", timeout=280)
                self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
                self.assertIn(f"--mutant {name}", result.stdout)


class Plot(unittest.TestCase):
    def test_a_picture_is_drawn_or_the_missing_package_named(self):
        with tempfile.TemporaryDirectory() as folder:
            for suffix, begin in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
                target = Path(folder) / ("picture" + suffix)
                result = run("bench", "exchange", *SMALL, "--plot", str(target))
                if not has_module("matplotlib"):
                    self.assertEqual(result.returncode, 12)
                    self.assertIn("python3-matplotlib", result.stderr)
                    continue
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertTrue(target.read_bytes().startswith(begin))

    def test_a_result_that_is_none_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "x.json"
            source.write_text("[1, 2]", encoding="utf-8")
            result = subprocess.run([sys.executable, ROOT / "scripts" / "plot.py", Path(folder) / "x.svg", source],
                                    capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 2)
            self.assertIn("x.json", result.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    MOEBUS = os.path.abspath(sys.argv[1])
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
