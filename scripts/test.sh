#!/usr/bin/env bash
# Fetches what the tests need, once, and runs them with `cargo nextest`, or with `cargo test` where
# it is not installed; then runs the examples in the documentation of the code. Arguments go to
# `cargo nextest run`: packages, `--test NAME`, parts of the tests' names. The summary stays in
# target/test-summary.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

# What .config/nextest.toml needs.
NEXTEST=100

need rust cc python3 disk:12
summary="$root/target/test-summary"
rm -f "$summary"
step "ONNX Runtime"
scripts/get-ort.sh
step "pyarrow"
scripts/get-pyarrow.sh
step "the official clients of OpenAI, Anthropic, Cohere, OpenSearch and Ollama, LangChain, npm clients"
scripts/get-sdks.sh
step "the official clients of Triton, KServe and MLServer"
scripts/get-oip-clients.sh
step "Chromium"
scripts/get-chromium.sh
step "Triton's client"
scripts/get-triton.sh
step "the ONNX standard's tests"
scripts/get-onnx.sh
step "the packages of RisingWave and Databend for functions"
scripts/get-udf.sh
step "schemathesis"
scripts/schemathesis.sh --fetch
step "OpenTelemetry's definitions"
scripts/get-otlp.sh
step "lm-eval"
scripts/get-lm-eval.sh
step "the Python client and what its tests need"
scripts/get-python-client.sh
step "LiteLLM"
scripts/get-litellm.sh

chosen=(--workspace --features volley-cli/sql --locked)
outcome=0 documented=0
if runner="$(nextest "$NEXTEST")"; then
  junit="$root/target/nextest/default/junit.xml"
  rm -f "$junit"
  step "building the tests"
  "$runner" nextest run --no-run "${chosen[@]}" "$@"
  step "running the tests"
  # One run names every failure: .config/nextest.toml.
  "$runner" nextest run "${chosen[@]}" "$@" || outcome=$?
  examples="not run, for only some tests were asked for"
  if [ "$#" = 0 ]; then
    step "running the examples in the documentation of the code"
    cargo test --doc "${chosen[@]}" --no-fail-fast || documented=$?
    examples=passed
    [ "$documented" = 0 ] || examples=failed
  fi
  python3 - "$junit" "$examples" >"$summary" <<'PYTHON'
import sys
from xml.etree import ElementTree

junit, examples = sys.argv[1:]
try:
    tests = list(ElementTree.parse(junit).getroot().iter("testcase"))
except OSError:
    sys.exit("Not one test was run.")


def name(test):
    return f"{test.get('classname')} {test.get('name')}"


def seconds(test):
    return float(test.get("time", 0))


failed = [it for it in tests if it.find("failure") is not None or it.find("error") is not None]
slowest = sorted(tests, key=seconds, reverse=True)[:5]
print("Slowest:", *(f"\n  {seconds(it):.0f} s  {name(it)}" for it in slowest))
print(f"Examples in the documentation: {examples}.")
print(f"Tests: {len(tests) - len(failed)} passed, {len(failed)} failed.")
for test in failed:
    print(f"  FAILED  {name(test)}")
PYTHON
else
  step "cargo-nextest 0.9.$NEXTEST or newer is not installed; cargo test runs the tests, without a limit of time. To install it: cargo install --locked cargo-nextest"
  log="$root/target/test.log"
  step "building the tests"
  cargo test --no-run "${chosen[@]}" "$@"
  step "running the tests"
  cargo test --no-fail-fast "${chosen[@]}" "$@" | tee "$log" || outcome=$?
  awk '
    /^test result: / { passed += $4; failed += $6 }
    /^test .* \.\.\. FAILED$/ { names = names "\n  FAILED  " $2 }
    END { print "Tests: " passed + 0 " passed, " failed + 0 " failed." names }' "$log" >"$summary"
fi
cat "$summary" >&2
[ "$outcome" != 0 ] || outcome="$documented"
exit "$outcome"
