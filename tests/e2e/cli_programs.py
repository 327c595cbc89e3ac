"""Runs the programs for cli_test.py and cli_cache_test.py, whose first argument is the folder that has them."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

BIN = pathlib.Path(sys.argv.pop(1))
TOOLS = ("headlane-generate", "headlane-perplexity", "headlane-decode-bench", "headlane-info", "headlane-lesson")


def run(tool, *args, stdin=b"", env=None):
    environment = {key: value for key, value in os.environ.items() if key != "HEADLANE_TARGET"}
    environment.update(env or {})
    return subprocess.run([str(BIN / tool), *args], input=stdin, capture_output=True, timeout=240, env=environment)


def generate(*args, **kwargs):
    return run("headlane-generate", "--synthetic", "tiny", "--json", *args, **kwargs)


class CliTest(unittest.TestCase):
    maxDiff = None

    def ok(self, result):
        self.assertEqual(result.returncode, 0, result.stderr.decode(errors="replace"))
        return result

    def ok_json(self, result):
        return json.loads(self.ok(result).stdout)

    def refused(self, result, *parts):
        """Exit code 2, nothing on standard output, one line on standard error that names the program and the parts."""
        text = result.stderr.decode()
        self.assertEqual(result.returncode, 2, text)
        self.assertEqual(result.stdout, b"")
        self.assertEqual(text.count("\n"), 1, text)
        self.assertTrue(text.endswith("\n") and text.startswith("headlane-"), text)
        for part in parts:
            self.assertIn(part, text)
