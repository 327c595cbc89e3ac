#!/usr/bin/env python3
"""The programs as a user or another program meets them: what they print, where, and with which exit code.

Usage: cli_test.py FOLDER_WITH_PROGRAMS [unittest arguments]. Needs nothing but the programs: models are synthetic.
"""

import json
import struct
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True

from cli_programs import BIN, TOOLS, CliTest, generate, run


class HelpTest(CliTest):
    def test_help_says_it_all(self):
        for tool in TOOLS:
            result = self.ok(run(tool, "--help"))
            text = result.stdout.decode()
            self.assertIn("Examples:", text, tool)
            self.assertIn("Exit code", text, tool)
            self.assertIn("--json", text, tool)
            self.assertEqual(result.stderr, b"", tool)

    def test_generate_names_every_option(self):
        text = run("headlane-generate", "--help").stdout.decode()
        for option in ("--model", "--synthetic", "--prompt", "--prompt-file", "--chat", "--system", "--raw", "--literal",
                       "--max-tokens", "--temperature", "--top-k", "--top-p", "--seed", "--threads", "--chunk", "--linear", "--numerics", "--precision", "--json",
                       "--prompts-file", "--kv-type", "--kv-type-k", "--kv-type-v", "--kv-rotate", "--no-kv-rotate", "--page", "--window", "--sinks",
                       "--save-cache", "--load-cache"):
            self.assertIn(option, text)

    def test_unknown_arguments(self):
        for tool in TOOLS:
            self.refused(run(tool, "--no-such-option"), tool)
            self.refused(run(tool, "no-such-argument"), tool)

    def test_unknown_target_of_the_environment(self):
        self.refused(run("headlane-info", env={"HEADLANE_TARGET": "MMX"}), "MMX")


class LessonTest(CliTest):
    EXPECTED = "4 2.0 1.0\n1024 32.0 1.0\n[[5.    5.   ]\n [1.956 8.044]]\n"

    def test_output_to_the_byte(self):
        result = self.ok(run("headlane-lesson"))
        self.assertEqual(result.stdout.decode(), self.EXPECTED)
        self.assertEqual(result.stderr, b"")

    def test_weights(self):
        text = self.ok(run("headlane-lesson", "--weights")).stdout.decode()
        self.assertEqual(text, self.EXPECTED + "[[0.5   0.5  ]\n [0.196 0.804]]\n")

    def test_causal_hides_the_second_key_from_the_first_query(self):
        text = self.ok(run("headlane-lesson", "--causal")).stdout.decode()
        self.assertEqual(text.splitlines()[2:], ["[[10.     0.   ]", " [ 1.956  8.044]]", "[[1.    0.   ]", " [0.196 0.804]]"])

    def test_json_is_not_rounded(self):
        data = self.ok_json(run("headlane-lesson", "--json", "--seed", "5"))
        for spread, dim in zip(data["spread"], (4, 1024), strict=True):
            self.assertEqual(spread["d"], dim)
            # 10000 draws: one standard deviation of the error is 0.7 %. Real draws hit the round number never.
            self.assertAlmostEqual(spread["unscaled"], dim ** 0.5, delta=0.03 * dim ** 0.5)
            self.assertNotEqual(spread["unscaled"], dim ** 0.5)
            self.assertAlmostEqual(spread["scaled"], spread["unscaled"] / dim ** 0.5, delta=1e-6)
        for row in data["weights"]:
            self.assertAlmostEqual(sum(row), 1, delta=1e-6)

    def test_seed_moves_the_draws(self):
        spreads = [self.ok_json(run("headlane-lesson", "--json", "--seed", seed))["spread"] for seed in ("1", "1", "2")]
        self.assertEqual(spreads[0], spreads[1])
        self.assertNotEqual(spreads[0], spreads[2])
        self.refused(run("headlane-lesson", "--seed", "x"), "--seed")


class GenerateTest(CliTest):
    def test_json(self):
        data = self.ok_json(generate("--prompt", "abc", "--raw", "--max-tokens", "7", "--threads", "1"))
        self.assertEqual(data["prompt_ids"], [3 + ord(c) for c in "abc"])
        self.assertEqual(len(data["generated_ids"]), 7)
        self.assertEqual(data["stop"], "length")
        self.assertIsInstance(data["text"], str)
        for name in ("first_logits", "last_logits"):
            self.assertRegex(data[name]["hash"], "^[0-9a-f]{16}$")
            best = data[name]["best"]
            self.assertEqual(len(best), 8)
            self.assertEqual(best, sorted(best, key=lambda pair: (-pair[1], pair[0])))
            for token, logit in best:
                self.assertIsInstance(token, int)
                self.assertEqual(logit, round(logit, 6))
        self.assertEqual(data["first_logits"]["best"][0][0], data["generated_ids"][0])
        self.assertEqual(data["last_logits"]["best"][0][0], data["generated_ids"][-1])
        timings = data["timings"]
        self.assertEqual(timings["threads"], 1)
        self.assertEqual(timings["prompt"]["tokens"], 3)
        self.assertEqual(timings["decode"]["tokens"], 6)
        for phase in ("prompt", "decode"):
            shares = [timings[phase][f"{part}_share"] for part in ("attention", "linear", "append", "rest")]
            self.assertAlmostEqual(sum(shares), 1, delta=1e-6)
            self.assertGreater(timings[phase]["tokens_per_second"], 0)
        self.assertEqual(timings["kv_bytes"], 9 * timings["kv_bytes_per_token"])

    def test_same_bits_for_threads_and_chunks(self):
        prompt = "The same words, over and over. " * 9
        results = []
        for arguments in (["--threads", "1"], ["--threads", "2"], ["--chunk", "1"], ["--chunk", "32"], ["--threads", "2", "--chunk", "100000"]):
            data = self.ok_json(generate("--prompt", prompt, "--max-tokens", "12", *arguments))
            results.append({key: data[key] for key in ("prompt_ids", "generated_ids", "text", "first_logits", "last_logits")})
        for other in results[1:]:
            self.assertEqual(results[0], other)

    def test_fastest_says_what_it_chose(self):
        exact = self.ok_json(generate("--prompt", "abc", "--max-tokens", "4"))["model"]
        self.assertEqual(exact["layer_choices"], [])
        self.assertEqual(exact["weight_copy_bytes"], 0)
        result = self.ok(generate("--prompt", "abc", "--max-tokens", "4", "--numerics", "fastest", "--threads", "1"))
        model = json.loads(result.stdout)["model"]
        choices = model["layer_choices"]
        self.assertEqual([choice["layer"] for choice in choices], ["qkv", "o", "gate_up", "down"])
        for choice in choices:
            self.assertEqual([candidate["backend"] for candidate in choice["candidates"]], ["tile", "onednn", "onednn-bf16"])
            self.assertIn(choice["many_rows"], ("tile", "onednn", "onednn-bf16"))
            self.assertEqual(choice["copy_bytes"] > 0, choice["many_rows"] != "tile")
            self.assertEqual(choice["from_rows"] > 0, choice["many_rows"] != "tile")
            for candidate in choice["candidates"]:
                self.assertNotIn("ref:", candidate.get("implementation", ""))
        self.assertEqual(model["weight_copy_bytes"], sum(choice["copy_bytes"] for choice in choices))
        self.assertEqual(model["weight_bytes"], exact["weight_bytes"] + model["weight_copy_bytes"])
        text = result.stderr.decode()
        for part in ("qkv", "gate_up", "512 rows, tile", "512 rows, onednn", "many rows"):
            self.assertIn(part, text)

    def test_sampling_follows_the_seed(self):
        def ids(*arguments):
            return self.ok_json(generate("--prompt", "abc", "--max-tokens", "24", *arguments))["generated_ids"]
        drawn = [ids("--temperature", "1.5", "--seed", seed) for seed in ("1", "1", "2")]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])
        greedy = ids()
        self.assertNotEqual(drawn[0], greedy)
        self.assertEqual(ids("--temperature", "1.5", "--top-k", "1"), greedy)
        self.assertEqual(ids("--temperature", "1.5", "--top-p", "0.000001"), greedy)

    def test_prompt_modes(self):
        text = "a<|im_end|>b"
        raw = self.ok_json(generate("--raw", "--prompt", text, "--max-tokens", "0"))["prompt_ids"]
        literal = self.ok_json(generate("--literal", "--prompt", text, "--max-tokens", "0"))["prompt_ids"]
        chat = self.ok_json(generate("--prompt", text, "--max-tokens", "0"))["prompt_ids"]
        self.assertEqual(raw, [3 + ord("a"), 2, 3 + ord("b")])
        self.assertEqual(literal, [3 + byte for byte in text.encode()])
        self.assertEqual(chat, self.ok_json(generate("--chat", "--prompt", text, "--max-tokens", "0"))["prompt_ids"])
        joined = ",".join(map(str, chat))
        # The message is the user's, and cannot end its own turn.
        self.assertIn(",".join(map(str, literal)), joined)
        system = self.ok_json(generate("--system", "Be brief.", "--prompt", text, "--max-tokens", "0"))["prompt_ids"]
        self.assertIn(",".join(str(3 + byte) for byte in b"Be brief."), ",".join(map(str, system)))

    def test_awkward_prompts_arrive_as_they_are(self):
        for text in ("-5", "[1,2]", "{}", "%%", "'q'", '"', "\\", "a\nb\tc", "é🦙", "--", "x=y", " ", "[]", "{{x}}", "#"):
            data = self.ok_json(generate("--literal", f"--prompt={text}", "--max-tokens", "0"))
            self.assertEqual(data["prompt_ids"], [3 + byte for byte in text.encode()], text)

    def test_prompt_file_and_standard_input(self):
        content = b"a\0b\xff\n"
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            data = self.ok_json(generate("--literal", "--prompt-file", file.name, "--max-tokens", "0"))
        self.assertEqual(data["prompt_ids"], [3 + byte for byte in content])
        data = self.ok_json(generate("--literal", "--prompt-file", "-", "--max-tokens", "0", stdin=content))
        self.assertEqual(data["prompt_ids"], [3 + byte for byte in content])

    def test_empty_prompt(self):
        # A shape whose weights would not fit: nothing is loaded for it.
        data = self.ok_json(run("headlane-generate", "--synthetic", "llama-3-8b:512", "--json", "--literal", "--prompt", "", "--max-tokens", "0"))
        self.assertEqual((data["prompt_ids"], data["generated_ids"], data["text"]), ([], [], ""))
        self.assertIsNone(data["first_logits"])
        self.assertIsNone(data["last_logits"])
        self.assertEqual(data["model"]["weight_bytes"], 0)
        for mode in ("--raw", "--literal", "--chat"):
            self.refused(run("headlane-generate", "--synthetic", "tiny", mode, "--prompt", ""), "prompt is empty")

    def test_prompt_only(self):
        data = self.ok_json(generate("--raw", "--prompt", "abc", "--max-tokens", "0"))
        self.assertEqual(data["generated_ids"], [])
        self.assertEqual(data["stop"], "length")
        self.assertEqual(data["first_logits"], data["last_logits"])

    def test_the_end_token_ends(self):
        # Drawn at random from 512 tokens, of which two end a text: some seed meets one early.
        for seed in range(40):
            data = self.ok_json(generate("--raw", "--prompt", "abc", "--max-tokens", "60", "--temperature", "50", "--seed", str(seed)))
            if data["stop"] == "end":
                self.assertIn(data["generated_ids"][-1], (0, 2))
                self.assertNotIn("<|im_end|>", data["text"])
                return
        self.fail("no text ended")

    def test_text_and_table_are_apart(self):
        arguments = ("--synthetic", "tiny", "--raw", "--prompt", "abc", "--max-tokens", "40", "--temperature", "2", "--seed", "3")
        result = self.ok(run("headlane-generate", *arguments))
        text = self.ok_json(run("headlane-generate", "--json", *arguments))["text"]
        self.assertEqual(result.stdout.decode("utf-8"), text + "\n")
        table = result.stderr.decode()
        for word in ("tokens per second", "attention", "linear", "rest", "KV cache", "GB/s", "threads", "SIMD target", "prompt", "decode"):
            self.assertIn(word, table)

    def test_output_is_utf8_whatever_the_model_says(self):
        # Half of the tiny vocabulary are single bytes: hot draws give broken characters all the time.
        arguments = ("--synthetic", "tiny", "--raw", "--prompt", "abc", "--max-tokens", "300", "--temperature", "100", "--seed", "8")
        text = self.ok(run("headlane-generate", *arguments)).stdout.decode("utf-8")
        self.assertIn("\ufffd", text)
        self.assertEqual(self.ok_json(run("headlane-generate", "--json", *arguments))["text"] + "\n", text)

    def test_streams(self):
        # The text is longer than a pipe holds, so that the program can't have ended when its first bytes are read.
        process = subprocess.Popen([str(BIN / "headlane-generate"), "--synthetic", "tiny", "--raw", "--prompt", "abc", "--max-tokens", "60000",
                                    "--temperature", "1", "--top-k", "40", "--threads", "1"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            self.assertNotEqual(process.stdout.read(1), b"")
            self.assertIsNone(process.poll())
        finally:
            process.kill()
            process.stdout.close()
            process.wait()

    def test_bad_arguments(self):
        cases = [
            (["--threads", "x"], "--threads"), (["--threads", "-1"], "--threads"), (["--threads", "5000"], "--threads"),
            (["--max-tokens", "-1"], "--max-tokens"), (["--max-tokens", "99999999999999999999"], "--max-tokens"),
            (["--chunk", "0"], "--chunk"), (["--temperature", "-1"], "--temperature"), (["--temperature", "nan"], "temperature"),
            (["--top-p", "0"], "top_p"), (["--top-p", "1.5"], "--top-p"), (["--top-k", "-1"], "--top-k"),
            (["--seed", "-1"], "--seed"), (["--linear", "mkl"], "--linear"), (["--numerics", "fast"], "--numerics"),
            (["--precision", "int4"], "--precision"), (["--precision", "int8"], "synthetic"),
            (["--numerics", "fastest", "--linear", "onednn"], "onednn"), (["--raw", "--literal"], "--literal"),
            (["--raw", "--system", "x"], "--system"), (["--prompt-file", "/no/such/file"], "--prompt"),
        ]
        for arguments, part in cases:
            with self.subTest(arguments=arguments):
                self.refused(generate("--prompt", "abc", *arguments), part)
        self.refused(generate(), "--prompt")
        self.refused(generate("--prompt-file", "/no/such/file"), "/no/such/file")
        self.refused(generate("--prompt-file", "/"), "/")
        self.refused(run("headlane-generate", "--prompt", "abc"), "--model")
        self.refused(run("headlane-generate", "--model", "a", "--synthetic", "tiny", "--prompt", "abc"))
        self.refused(run("headlane-generate", "--synthetic", "gpt-5", "--prompt", "abc"), "smollm2-135m")

    def test_more_than_the_machine_has(self):
        self.refused(run("headlane-generate", "--synthetic", "llama-3-8b:512", "--prompt", "abc"), "GB", "parameters")


class FileTest(CliTest):
    """Model files that are none, through every program that takes one."""

    def refused_file(self, content, *parts):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file, tempfile.NamedTemporaryFile() as text:
            file.write(content)
            file.flush()
            text.write(b"some text")
            text.flush()
            self.refused(run("headlane-generate", "--model", file.name, "--prompt", "abc"), *parts)
            self.refused(run("headlane-perplexity", "--model", file.name, "--text-file", text.name), *parts)
            self.refused(run("headlane-decode-bench", "--model", file.name), *parts)

    def test_no_model(self):
        self.refused_file(b"")
        self.refused_file(b"GGUF")
        self.refused_file(b"not a model at all, but long enough to have a header")
        self.refused(run("headlane-generate", "--model", "/no/such/model.gguf", "--prompt", "abc"), "/no/such/model.gguf")
        self.refused(run("headlane-generate", "--model", "/", "--prompt", "abc"))

    def test_an_error_is_one_line_whatever_the_file_says(self):
        def text(value):
            return struct.pack("<Q", len(value)) + value
        key = text(b"general.architecture") + struct.pack("<I", 8) + text(b"bad\nname\r\x1b[31m")
        self.refused_file(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key, "bad name", "supported: llama")

    def test_huge_counts(self):
        self.refused_file(b"GGUF" + struct.pack("<IQQ", 3, 1 << 63, 1 << 63))


class PerplexityTest(CliTest):
    def test_json_and_table(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write("Ein Text, nicht länger als nötig.".encode() * 8)
            file.flush()
            results = []
            for arguments in ([], ["--chunk", "5"], ["--threads", "2", "--chunk", "1000"]):
                results.append(self.ok_json(run("headlane-perplexity", "--synthetic", "tiny", "--text-file", file.name, "--json", *arguments)))
            table = self.ok(run("headlane-perplexity", "--synthetic", "tiny", "--text-file", file.name)).stdout.decode()
        self.assertEqual(results[0]["tokens"], len("Ein Text, nicht länger als nötig.".encode()) * 8)
        # Random weights know nothing: about as bad as guessing among 512.
        self.assertGreater(results[0]["mean_loss"], 4)
        self.assertLess(results[0]["mean_loss"], 9)
        self.assertAlmostEqual(results[0]["perplexity"], 2.718281828459045 ** results[0]["mean_loss"], delta=1e-6 * results[0]["perplexity"])
        for other in results[1:]:
            self.assertEqual(results[0]["mean_loss"], other["mean_loss"])
        self.assertIn("perplexity", table)

    TEXT = "Ein Text, nicht länger als nötig.".encode() * 8

    def test_types_of_the_cache(self):
        arguments = ("headlane-perplexity", "--synthetic", "tiny", "--text-file", "-")
        data = self.ok_json(run(*arguments, "--json", "--kv-type", "all", stdin=self.TEXT))
        types = data["kv_types"]
        self.assertEqual([(t["k_type"], t["rotated"]) for t in types],
                         [(name, False) for name in ("f32", "f16", "bf16", "int8", "fp8", "int4")] + [("int4", True)])
        self.assertEqual([t["bytes_per_token"] for t in types], [512, 256, 256, 160, 160, 96, 96])
        self.assertEqual(data["mean_loss"], types[0]["mean_loss"])
        for t in types:
            self.assertEqual(t["k_type"], t["v_type"])
            self.assertAlmostEqual(t["loss_change_percent"], 100 * (t["mean_loss"] / types[0]["mean_loss"] - 1), delta=1e-9)
            self.assertAlmostEqual(t["perplexity_change_percent"], 100 * (t["perplexity"] / types[0]["perplexity"] - 1), delta=1e-9)
        self.assertEqual(len({t["mean_loss"] for t in types}), 7)
        # One alone, two apart, and f32 to compare with where there are several.
        one = self.ok_json(run(*arguments, "--json", "--kv-type", "int8", "--page", "16", "--chunk", "9", stdin=self.TEXT))
        self.assertEqual(one["mean_loss"], types[3]["mean_loss"])
        self.assertEqual(len(one["kv_types"]), 1)
        two = self.ok_json(run(*arguments, "--json", "--kv-type", "int8/int4,int4+rotate", stdin=self.TEXT))["kv_types"]
        self.assertEqual([(t["k_type"], t["v_type"], t["rotated"]) for t in two],
                         [("f32", "f32", False), ("int8", "int4", False), ("int4", "int4", True)])
        self.assertEqual(two[1]["bytes_per_token"], 128)
        more = self.ok_json(run(*arguments, "--json", "--kv-type", "int8/int4,all", stdin=self.TEXT))["kv_types"]
        self.assertEqual([(t["k_type"], t["v_type"]) for t in more],
                         [("f32", "f32"), ("int8", "int4")] + [(t["k_type"], t["v_type"]) for t in types[1:]])
        table = self.ok(run(*arguments, "--kv-type", "all", stdin=self.TEXT)).stdout.decode()
        for word in ("bf16", "int4 rotated", "change", "bytes per token", "perplexity"):
            self.assertIn(word, table)
        window = self.ok_json(run(*arguments, "--json", "--window", "20", stdin=self.TEXT))
        self.assertNotEqual(window["mean_loss"], types[0]["mean_loss"])

    def test_errors_of_attention(self):
        arguments = ("headlane-perplexity", "--synthetic", "tiny", "--text-file", "-", "--attention-error", "--kv-type", "all")
        errors = self.ok_json(run(*arguments, "--json", stdin=self.TEXT))["attention_errors"]
        self.assertEqual([e["k_type"] for e in errors], ["f16", "bf16", "int8", "fp8", "int4", "int4"])
        for e in errors:
            for kind in ("text", "random"):
                self.assertGreater(e[kind]["rms"], 0)
                self.assertLess(e[kind]["rms"], 0.5)
                self.assertGreaterEqual(e[kind]["largest"], e[kind]["rms"])
            self.assertGreaterEqual(e["text"]["worst_layer_rms"], e["text"]["rms"] * 0.5)
        # More bits, smaller errors: by 3 bits from f16 to bf16, 4 from int8 to int4.
        self.assertLess(4 * errors[0]["random"]["rms"], errors[1]["random"]["rms"])
        self.assertLess(4 * errors[2]["random"]["rms"], errors[4]["random"]["rms"])
        table = self.ok(run(*arguments, stdin=self.TEXT)).stdout.decode()
        self.assertIn("worst layer", table)

    def test_bad_types(self):
        for types in ("int5", "f16,", "f16,,f32", "f16/", "f16/f16/f16", "int4+turn"):
            self.refused(run("headlane-perplexity", "--synthetic", "tiny", "--text-file", "-", f"--kv-type={types}", stdin=self.TEXT), "no type of a KV cache")
        self.refused(run("headlane-perplexity", "--synthetic", "tiny", "--text-file", "-", "--kv-type=", stdin=self.TEXT), "--kv-type")
        self.refused(run("headlane-perplexity", "--synthetic", "tiny", "--text-file", "-", "--page", "24", stdin=self.TEXT), "24")

    def test_bad_arguments(self):
        self.refused(run("headlane-perplexity", "--synthetic", "tiny"), "--text-file")
        self.refused(run("headlane-perplexity", "--synthetic", "tiny", "--text-file", "/no/such/file"), "/no/such/file")
        self.refused(run("headlane-perplexity", "--synthetic", "tiny", "--text-file", "-", stdin=b"a"), "1 tokens")
        self.refused(run("headlane-perplexity", "--synthetic", "tiny", "--text-file", "-", stdin=b""), "0 tokens")


class BenchTest(CliTest):
    ARGUMENTS = ("--synthetic", "tiny", "-p", "8,0", "-n", "4", "--depth", "0,40", "--threads", "1,2", "-r", "3")

    def test_json(self):
        for fill in ("random", "prompt"):
            data = self.ok_json(run("headlane-decode-bench", *self.ARGUMENTS, "--json", "--fill", fill))
            self.assertEqual([(r["test"], r["n_threads"]) for r in data["results"]],
                             [(name, threads) for threads in (1, 2) for name in ("pp8", "tg4", "pp8 @ d40", "tg4 @ d40")])
            for result in data["results"]:
                self.assertEqual(len(result["samples_tokens_per_second"]), 3)
                self.assertLessEqual(result["tokens_per_second_min"], result["tokens_per_second"])
                self.assertLessEqual(result["tokens_per_second"], result["tokens_per_second_max"])
                if result["n_gen"]:
                    self.assertLessEqual(result["step_p50_ms"], result["step_p99_ms"])
                    self.assertEqual(result["phase"]["tokens"], 12)
                else:
                    self.assertGreater(result["time_to_first_token_ms"], 0)
                self.assertGreater(result["phase"]["attention_share"], 0)
            deep = data["results"][3]["phase"]["kv_bytes_read"]
            self.assertGreater(deep, 2 * data["results"][1]["phase"]["kv_bytes_read"])

    def test_cache(self):
        data = self.ok_json(run("headlane-decode-bench", *self.ARGUMENTS, "--json", "--kv-type", "f16", "--kv-type-v", "int8", "--page", "32"))
        cache = data["kv_cache"]
        self.assertEqual((cache["k_type"], cache["v_type"], cache["page_tokens"], cache["bytes_per_token"]), ("f16", "int8", 32, 208))
        self.assertEqual(cache["allocated_bytes"], 2 * 32 * 208)
        for result in data["results"]:
            tokens = result["n_depth"] + result["n_prompt"] + result["n_gen"]
            self.assertEqual(result["kv_kept_tokens"], tokens)
            self.assertEqual(result["kv_used_bytes"], (tokens + 31) // 32 * 32 * 208)
            self.assertEqual(result["kv_waste_bytes"], result["kv_used_bytes"] - tokens * 208)
            self.assertLess(result["kv_waste_bytes"], cache["page_bytes"])
        text = self.ok(run("headlane-decode-bench", *self.ARGUMENTS, "--kv-type", "int4", "--kv-rotate", "--window", "16", "--sinks", "2",
                           "--page", "16")).stdout.decode()
        for words in ("int4 rotated: 96 bytes per token (f32 512, f16 256, bf16 256, int8 160, fp8 160, int4 96)", "waste", "window of 16 tokens"):
            self.assertIn(words, text)

    def test_window_bounds_what_is_read(self):
        arguments = ("--synthetic", "tiny", "-p", "0", "-n", "4", "--depth", "400,40", "-r", "2", "--chunk", "32", "--page", "16", "--json")
        full = self.ok_json(run("headlane-decode-bench", *arguments))
        ring = self.ok_json(run("headlane-decode-bench", *arguments, "--window", "32"))
        self.assertLess(3 * ring["results"][0]["phase"]["kv_bytes_read"], full["results"][0]["phase"]["kv_bytes_read"])
        self.assertLess(2 * ring["kv_cache_bytes"], full["kv_cache_bytes"])

    def test_table(self):
        text = self.ok(run("headlane-decode-bench", *self.ARGUMENTS)).stdout.decode()
        for word in ("tg4 @ d40", "pp8", "tokens/s", "TTFT", "p50", "p99", "attention", "KV GB/s"):
            self.assertIn(word, text)

    def test_bad_arguments(self):
        self.refused(run("headlane-decode-bench", "--synthetic", "tiny", "--depth", "0,x"), "--depth")
        self.refused(run("headlane-decode-bench", "--synthetic", "tiny", "-p", "0", "-n", "0"), "nothing to measure")
        self.refused(run("headlane-decode-bench", "--synthetic", "tiny", "-r", "0"), "repetitions")
        self.refused(run("headlane-decode-bench"), "--model")


class InfoTest(CliTest):
    def test_json(self):
        data = self.ok_json(run("headlane-info", "--no-measure", "--json", "--q-heads", "9", "--kv-heads", "3", "--dim", "64", "--q-len", "1,512", "--kv-len", "600"))
        active = [target for target in data["targets"] if target["active"]]
        self.assertEqual(len(active), 1)
        self.assertTrue(active[0]["supported"])
        self.assertEqual([shape["kernel"] for shape in data["shapes"]], ["decode", "tile"])
        for shape in data["shapes"]:
            self.assertEqual(shape["target"], active[0]["name"])
            self.assertTrue(shape["why"])
        self.assertGreaterEqual(data["default_threads"], 1)

    def test_every_target_can_be_forced(self):
        for target in self.ok_json(run("headlane-info", "--no-measure", "--json"))["targets"]:
            result = run("headlane-info", "--no-measure", "--json", env={"HEADLANE_TARGET": target["name"]})
            if target["supported"]:
                active = [t["name"] for t in self.ok_json(result)["targets"] if t["active"]]
                self.assertEqual(active, [target["name"]])
            else:
                self.refused(result, target["name"])

    def test_targets(self):
        targets = self.ok_json(run("headlane-info", "--no-measure", "--json"))["targets"]
        self.assertIn(True, [target["supported"] for target in targets])
        for target in targets:
            self.assertEqual(set(target), {"name", "vector_bytes", "fma", "supported", "active", "registers", "block_rows", "block_cols"})
            if not target["supported"]:
                self.assertEqual((target["vector_bytes"], target["registers"], target["block_rows"], target["block_cols"]), (0, 0, 0, 0))
                continue
            self.assertIn(target["vector_bytes"], (16, 32, 64, 128, 256))
            self.assertIn(target["registers"], (16, 32))
            self.assertGreaterEqual(target["block_rows"] * target["block_cols"], 8)
            self.assertLess(target["block_rows"] * target["block_cols"], target["registers"])
            if target["name"].startswith("AVX3"):
                self.assertEqual((target["vector_bytes"], target["registers"]), (64, 32))
            if target["name"] == "AVX2":
                self.assertEqual((target["vector_bytes"], target["registers"]), (32, 16))
        # The table has a line of each, with the same figures.
        lines = self.ok(run("headlane-info", "--no-measure")).stdout.decode().splitlines()
        for target in targets:
            line, = [line for line in lines if line.split() and line.split()[0] == target["name"]]
            if target["supported"]:
                self.assertIn(f"{target['block_rows']} rows x {target['block_cols']} vectors", line)
                self.assertIn(str(8 * target["vector_bytes"]), line.split())
                self.assertIn(str(target["registers"]), line.split())
                self.assertIn("in use" if target["active"] else "can", line)
            else:
                self.assertIn("cannot", line)

    def test_text(self):
        text = self.ok(run("headlane-info")).stdout.decode()
        for word in ("SIMD target", "in use", "threads", "decode", "tile", "measured"):
            self.assertIn(word, text)

    def test_measured_limits(self):
        limits = self.ok_json(run("headlane-info", "--json"))["limits"]
        if limits is not None:  # a build without the benchmarks can't measure
            self.assertGreater(limits["fma_gflops"], 0)
            self.assertGreater(limits["read_gb_per_second"], 0)

    def test_bad_shapes(self):
        self.refused(run("headlane-info", "--q-heads", "9", "--kv-heads", "7"), "9", "7")
        self.refused(run("headlane-info", "--dim", "0"), "--dim")


if __name__ == "__main__":
    unittest.main()
