#!/usr/bin/env python3
"""The programs' options of the KV cache: types, pages, windows, saved caches, and several prompts as one batch.

Usage: cli_cache_test.py FOLDER_WITH_PROGRAMS [unittest arguments]. Needs nothing but the programs: models are synthetic.
"""

import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True

from cli_programs import CliTest, generate, run


class CacheTest(CliTest):
    """The KV cache's options of headlane-generate."""

    PROMPT = ("--raw", "--prompt", "The same words, over and over. " * 5, "--max-tokens", "20")
    # Bytes that 16 features of a token take in tiles of 16 tokens.
    TYPES = {"f32": 64, "f16": 32, "bf16": 32, "int8": 20, "fp8": 20, "int4": 12}

    def result(self, *arguments):
        data = self.ok_json(generate(*arguments))
        return {key: data[key] for key in ("prompt_ids", "generated_ids", "text", "first_logits", "last_logits")}

    def test_every_type(self):
        hashes = set()
        for k_type, k_bytes in self.TYPES.items():
            for v_type, v_bytes in self.TYPES.items():
                both = ("--kv-type", k_type) if k_type == v_type else ("--kv-type-k", k_type, "--kv-type-v", v_type)
                data = self.ok_json(generate(*self.PROMPT, *both))
                timings = data["timings"]
                cache = timings["kv_cache"]
                self.assertEqual((cache["k_type"], cache["v_type"]), (k_type, v_type))
                self.assertEqual(cache["bytes_per_token"], 2 * 2 * (k_bytes + v_bytes))  # layers, heads
                self.assertEqual(timings["kv_bytes_per_token"], cache["bytes_per_token"])
                self.assertEqual(cache["kept_tokens"], 155 + 19)
                self.assertEqual(cache["used_bytes"], 2 * cache["page_bytes"])
                self.assertEqual(cache["waste_bytes"], cache["used_bytes"] - 174 * cache["bytes_per_token"])
                self.assertLess(cache["waste_bytes"], cache["page_bytes"])
                hashes.add(data["first_logits"]["hash"])
        self.assertEqual(len(hashes), len(self.TYPES) ** 2)

    def test_rotation(self):
        for kv_type in self.TYPES:
            plain = self.result(*self.PROMPT, "--kv-type", kv_type, "--no-kv-rotate")
            rotated = self.result(*self.PROMPT, "--kv-type", kv_type, "--kv-rotate")
            self.assertNotEqual(plain["first_logits"]["hash"], rotated["first_logits"]["hash"])
            # Where nothing is said, int4 keys are rotated and others are not.
            default = self.result(*self.PROMPT, "--kv-type", kv_type)
            self.assertEqual(default, rotated if kv_type == "int4" else plain)
        self.assertTrue(self.ok_json(generate(*self.PROMPT, "--kv-rotate"))["timings"]["kv_cache"]["rotated"])
        self.assertTrue(self.ok_json(generate(*self.PROMPT, "--kv-type-k", "int4"))["timings"]["kv_cache"]["rotated"])
        self.assertFalse(self.ok_json(generate(*self.PROMPT, "--kv-type-v", "int4"))["timings"]["kv_cache"]["rotated"])
        self.refused(generate(*self.PROMPT, "--kv-rotate", "--no-kv-rotate"), "--kv-rotate", "--no-kv-rotate")

    def test_pages_change_nothing(self):
        for kv_type in ("f32", "int8", "int4"):
            results = [self.result(*self.PROMPT, "--kv-type", kv_type, "--page", page) for page in ("16", "48", "256")]
            self.assertEqual(results[0], results[1])
            self.assertEqual(results[0], results[2])

    def test_window(self):
        whole = self.result(*self.PROMPT)
        self.assertEqual(self.result(*self.PROMPT, "--window", "100000"), whole)
        results = []
        for arguments in ([], ["--chunk", "7", "--page", "16"], ["--threads", "2", "--chunk", "60", "--page", "32"]):
            data = self.ok_json(generate(*self.PROMPT, "--window", "30", *arguments))
            results.append({key: data[key] for key in whole})
        self.assertEqual(results[0], results[1])
        self.assertEqual(results[0], results[2])
        self.assertNotEqual(results[0]["first_logits"]["hash"], whole["first_logits"]["hash"])
        sinks = self.result(*self.PROMPT, "--window", "30", "--sinks", "4")
        self.assertNotEqual(sinks["first_logits"]["hash"], results[0]["first_logits"]["hash"])
        # Bounded memory: ten times the text takes no more.
        allocated = [self.ok_json(generate("--raw", "--prompt", "words " * n, "--window", "30", "--chunk", "16", "--page", "16",
                                           "--max-tokens", "8"))["timings"]["kv_cache"]["allocated_bytes"] for n in (30, 300)]
        self.assertEqual(allocated[0], allocated[1])
        text = self.ok(run("headlane-generate", "--synthetic", "tiny", *self.PROMPT, "--window", "30", "--kv-type", "int8")).stderr.decode()
        self.assertIn("int8, 160 bytes per token", text)

    def test_a_saved_cache_skips_the_prompt(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "cache")
            for arguments in ([], ["--kv-type", "int8"], ["--kv-type", "int4", "--kv-rotate", "--page", "16"], ["--window", "40", "--chunk", "64"]):
                with self.subTest(arguments=arguments):
                    first = self.ok_json(generate(*self.PROMPT, *arguments, "--save-cache", path))
                    self.assertEqual(first["timings"]["prompt"]["tokens"], 155)
                    self.assertEqual(first["timings"]["reused_prompt_tokens"], 0)
                    second = self.ok_json(generate(*self.PROMPT, *arguments, "--load-cache", path))
                    self.assertEqual(second["timings"]["prompt"]["tokens"], 1)
                    self.assertEqual(second["timings"]["reused_prompt_tokens"], 154)
                    for key in ("prompt_ids", "generated_ids", "text", "first_logits", "last_logits"):
                        self.assertEqual(first[key], second[key])
                    # What goes on behind the same beginning, and other ends. The prompt's last token is one of its words'.
                    longer = ("--raw", "--prompt", "The same words, over and over. " * 5 + "And then?", "--max-tokens", "9")
                    third = self.ok_json(generate(*longer, *arguments, "--load-cache", path, "--threads", "2"))
                    self.assertEqual(third["timings"]["prompt"]["tokens"], 9)
                    self.assertEqual(third["last_logits"], self.ok_json(generate(*longer, *arguments))["last_logits"])
            # Saved and loaded in one run, and the other way round.
            both = self.ok_json(generate(*self.PROMPT, "--window", "40", "--chunk", "64", "--load-cache", path, "--save-cache", path))
            self.assertEqual(both["timings"]["reused_prompt_tokens"], 154)
            self.assertEqual(os.listdir(folder), ["cache"])

            self.refused(generate(*self.PROMPT, "--load-cache", path), "window")
            self.refused(generate(*self.PROMPT, "--window", "40", "--chunk", "64", "--kv-type", "f16", "--load-cache", path), "k_dtype")
            self.refused(run("headlane-generate", "--synthetic", "tiny:1", *self.PROMPT, "--window", "40", "--load-cache", path), "another model")
            self.refused(generate(*self.PROMPT, "--load-cache", path + "2"), "cache2")
            for option in ("--save-cache", "--load-cache"):
                self.refused(generate(*self.PROMPT, option, ""), option, "empty")
            self.refused(generate(*self.PROMPT, "--save-cache", folder), "no regular file")
            self.refused(generate(*self.PROMPT, "--save-cache", os.path.join(folder, "no", "cache")), "cache")
            with open(path, "r+b") as file:
                file.truncate(1000)
            self.refused(generate(*self.PROMPT, "--window", "40", "--chunk", "64", "--load-cache", path), "cache")
            with open(path, "wb") as file:
                file.write(b"something else altogether, as long as a header of a cache")
            self.refused(generate(*self.PROMPT, "--load-cache", path), "no saved cache")

    def test_bad_arguments(self):
        cases = [
            (["--kv-type", "int5"], "--kv-type"), (["--kv-type-k", "f64"], "--kv-type-k"), (["--kv-type-v", ""], "--kv-type-v"),
            (["--page", "8"], "--page"), (["--page", "257"], "--page"), (["--page", "24"], "24"), (["--window", "-1"], "--window"),
            (["--sinks", "3"], "num_sinks is 3"), (["--sinks", "-1"], "--sinks"),
        ]
        for arguments, part in cases:
            with self.subTest(arguments=arguments):
                self.refused(generate("--prompt", "abc", *arguments), part)
                self.refused(run("headlane-decode-bench", "--synthetic", "tiny", "-n", "2", "-p", "0", "-d", "0", *arguments, "--json"), part)


class BatchTest(CliTest):
    PROMPTS = ["You are a friendly assistant. Why is the sky blue?", "You are a friendly assistant. Who?", "Something else",
               "You are a friendly assistant. Why is the sky blue? And the sea?", "You are a friendly assistant. Who?"]

    def batch(self, content, *arguments, **kwargs):
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            return generate("--prompts-file", file.name, *arguments, **kwargs)

    def test_each_is_its_solo_run(self):
        content = "\n".join(self.PROMPTS).encode()
        for arguments in (["--raw"], [], ["--kv-type", "int8", "--threads", "2"], ["--window", "20", "--chunk", "32"],
                          ["--literal", "--temperature", "1.3", "--seed", "5", "--page", "16", "--kv-type", "int4", "--kv-rotate"]):
            with self.subTest(arguments=arguments):
                data = self.ok_json(self.batch(content, "--max-tokens", "24", *arguments))
                self.assertEqual(len(data["prompts"]), len(self.PROMPTS))
                computed = 0
                for prompt, actual in zip(self.PROMPTS, data["prompts"], strict=True):
                    solo = self.ok_json(generate("--prompt", prompt, "--max-tokens", "24", *arguments))
                    self.assertEqual(actual, {key: solo[key] for key in actual})
                    computed += solo["timings"]["prompt"]["tokens"]
                timings = data["timings"]
                self.assertEqual(timings["prompt"]["tokens"] + timings["reused_prompt_tokens"], computed)
                # "You are a friendly assistant. Wh", three times; the last one again; and the first within the fourth.
                self.assertGreaterEqual(timings["reused_prompt_tokens"], 3 * 32 + 2 + 18)

    def test_text(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write("\r\n".join(self.PROMPTS[:3]).encode() + b"\r\n")
            file.flush()
            result = self.ok(run("headlane-generate", "--synthetic", "tiny", "--raw", "--prompts-file", file.name, "--max-tokens", "5"))
            texts = [prompt["text"] for prompt in self.ok_json(generate("--raw", "--prompts-file", file.name, "--max-tokens", "5"))["prompts"]]
        expected = "\n".join(f"[{i + 1}] {self.PROMPTS[i]}\n{text}\n" for i, text in enumerate(texts))
        self.assertEqual(result.stdout.decode(), expected)
        for word in ("tokens per second", "KV cache", "reused"):
            self.assertIn(word, result.stderr.decode())

    def test_prompts_only(self):
        data = self.ok_json(self.batch(b"abc\nabd\n", "--raw", "--max-tokens", "0"))
        for prompt in data["prompts"]:
            self.assertEqual(prompt["generated_ids"], [])
            self.assertEqual(prompt["first_logits"], prompt["last_logits"])
        self.assertEqual(data["timings"]["prompt"]["tokens"], 4)

    def test_bad_files(self):
        self.refused(self.batch(b""), "no prompts")
        self.refused(self.batch(b"abc\n\nabd\n"), "line 2", "empty")
        self.refused(generate("--prompts-file", "/no/such/file"), "/no/such/file")
        for option in ("--prompt", "--prompt-file", "--save-cache", "--load-cache"):
            self.refused(self.batch(b"abc\n", option, "x"), option)


if __name__ == "__main__":
    unittest.main()
