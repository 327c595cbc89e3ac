#!/usr/bin/env python3
"""The programs on the default model, against vectors computed in double precision.

Usage: cli_model_test.py FOLDER_WITH_PROGRAMS FOLDER_WITH_DATA. HEADLANE_MODEL names the model file. Without it the test says so and is
skipped, unless HEADLANE_REQUIRE_MODEL is 1: then it fails.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

MODEL = os.environ.get("HEADLANE_MODEL", "")
BIN = pathlib.Path()
DATA = pathlib.Path()


def run(tool, *args):
    result = subprocess.run([str(BIN / tool), "--model", MODEL, "--json", *args], capture_output=True, timeout=900, check=False)
    if result.returncode != 0:
        raise AssertionError(f"{tool} {args}: {result.returncode} {result.stderr.decode(errors='replace')}")
    return json.loads(result.stdout)


class ModelTest(unittest.TestCase):
    def setUp(self):
        self.reference = json.loads((DATA / "smollm2_135m_instruct_q4_1.json").read_text(encoding="utf-8"))

    def test_generation(self):
        # Every case is tested in the library; here one that ends by itself, one in chat form, and one with split characters.
        for case in self.reference["generation"]:
            if case["name"] not in ("capital", "chat_sky", "accents"):
                continue
            with self.subTest(case["name"]):
                with tempfile.NamedTemporaryFile() as file:
                    file.write(case["prompt"].encode())
                    file.flush()
                    data = run("headlane-generate", "--raw", "--prompt-file", file.name, "--max-tokens", str(case["count"]))
                self.assertEqual(data["prompt_ids"], case["prompt_ids"])
                self.assertEqual(data["generated_ids"], case["generated_ids"])
                ended = case["text"].endswith("<|im_end|>")
                self.assertEqual(data["stop"], "end" if ended else "length")
                self.assertEqual(data["text"], case["text"].removesuffix("<|im_end|>"))
                for name in ("first_logits", "last_logits"):
                    self.assertEqual(len(data[name]["best"]), 8)
                    for (actual_id, actual), (wanted_id, wanted) in zip(data[name]["best"], case[name]["top"], strict=True):
                        self.assertEqual(actual_id, wanted_id)
                        self.assertAlmostEqual(actual, wanted, delta=2e-4)

    def test_chat_is_the_default(self):
        case = next(case for case in self.reference["generation"] if case["name"] == "chat_sky")
        data = run("headlane-generate", "--prompt", "Why is the sky blue?", "--max-tokens", "2")
        self.assertEqual(data["prompt_ids"], case["prompt_ids"])
        self.assertEqual(data["generated_ids"], case["generated_ids"][:2])

    def test_perplexity(self):
        data = run("headlane-perplexity", "--text-file", str(DATA / "reference_text.txt"))
        expected = self.reference["perplexity"]
        self.assertEqual(data["tokens"], expected["tokens"])
        self.assertAlmostEqual(data["mean_loss"], expected["mean_loss"], delta=1e-4)
        self.assertAlmostEqual(data["perplexity"], expected["perplexity"], delta=1e-3 * expected["perplexity"])


if __name__ == "__main__":
    if not MODEL:
        if os.environ.get("HEADLANE_REQUIRE_MODEL") == "1":
            sys.exit("HEADLANE_MODEL is not set, but required")
        print("model test skipped: HEADLANE_MODEL names no model file")
        sys.exit(0)
    BIN, DATA = pathlib.Path(sys.argv.pop(1)), pathlib.Path(sys.argv.pop(1))
    unittest.main()
