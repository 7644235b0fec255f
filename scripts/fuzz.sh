#!/usr/bin/env bash
# Throws made-up bytes at everything that reads the bytes of servers and callers: `fuzz.sh` for a
# minute at each target, `fuzz.sh 600 events tensors` for ten minutes at two of them, `fuzz.sh --list`
# for their names. What breaks one is kept in target/fuzz/findings, and is tried first from then on.
# Needs a C++ compiler; the stable compiler of the project does.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

mapfile -t all < <(cd fuzz/fuzz_targets && ls -- *.rs | sed 's/\.rs$//')
if [ "${1:-}" = "--list" ]; then
  printf '%s\n' "${all[@]}"
  exit 0
fi
seconds=60
case "${1:-}" in
  '') ;;
  *[!0-9]*) ;;
  *)
    seconds="$1"
    shift
    ;;
esac
chosen=("$@")
[ "$#" -gt 0 ] || chosen=("${all[@]}")
for name in "${chosen[@]}"; do
  [ -f "fuzz/fuzz_targets/$name.rs" ] || give_up \
    "There is no target '$name'; there are: ${all[*]}."
done

need rust c++

# The compiler's own flags of coverage, which the stable one takes: a counter for each edge, a
# table of where they are, and a word for each comparison. A target is named so that they are for
# what runs, not for what builds it. The lock file may lag behind the crates that it is for, and
# follows them.
host="$(rustc -vV | sed -n 's/^host: //p')"
flags=(
  -Cpasses=sancov-module
  -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
  -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares
  --cfg fuzzing
)
step "building the fuzzers (minutes the first time)"
RUSTFLAGS="${flags[*]}" CARGO_TARGET_DIR="$root/target/fuzz" cargo build \
  --manifest-path fuzz/Cargo.toml --release --quiet --bins --target "$host"

# Begins of a corpus: the transcripts of the project's own tests, under the two bytes that tell the
# target whose they are and in what pieces they come.
seed() {
  local name="$1" seeds="$root/target/fuzz/seeds/$1" at=0
  mkdir -p "$seeds"
  case "$name" in
    answer)
      local folder dialect
      # The glob sorts by name, as the target sorts the providers.
      for folder in crates/backend-remote/tests/fixtures/*/; do
        dialect="$(basename "$folder")"
        local file
        for file in "$folder"*.{sse,ndjson}; do
          [ -f "$file" ] || continue
          { printf "\\x$(printf %02x "$at")\\x07"; cat "$file"; } \
            >"$seeds/$dialect-$(basename "$file")"
        done
        at=$((at + 1))
      done
      ;;
    events)
      local file
      for file in crates/backend-remote/tests/fixtures/*/*.{sse,ndjson}; do
        case "$file" in
          *.sse) printf '\x00\x05' ;;
          *) printf '\x01\x05' ;;
        esac >"$seeds/$(basename "$(dirname "$file")")-$(basename "$file")"
        cat "$file" >>"$seeds/$(basename "$(dirname "$file")")-$(basename "$file")"
      done
      ;;
    *) [ ! -d "fuzz/seeds/$name" ] || cp fuzz/seeds/"$name"/* "$seeds/" ;;
  esac
  printf '%s\n' "$seeds"
}

broken=()
for name in "${chosen[@]}"; do
  step "$name, for $seconds s"
  seeds="$(seed "$name")"
  corpus="$root/target/fuzz/corpus/$name"
  findings="$root/target/fuzz/findings/$name"
  mkdir -p "$corpus" "$findings"
  log="$root/target/fuzz/$name.log"
  fuzzer="target/fuzz/$host/release/$name"
  # What broke it once is tried by itself first.
  old=("$findings"/*)
  if [ -e "${old[0]}" ] && ! "$fuzzer" "${old[@]}" >"$log" 2>&1; then
    tail -n 30 "$log"
    broken+=("$name")
    continue
  fi
  if "$fuzzer" "$corpus" "$seeds" "-artifact_prefix=$findings/" "-max_total_time=$seconds" \
    -dict=fuzz/events.dict -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024 -max_len=65536 \
    -print_final_stats=1 >"$log" 2>&1; then
    grep -E '^(Done|stat::(number_of_executed_units|peak_rss_mb))|INITED' "$log" || true
  else
    tail -n 30 "$log"
    broken+=("$name")
  fi
done
[ "${#broken[@]}" = 0 ] || give_up \
  "Broken: ${broken[*]}. The inputs are in target/fuzz/findings; mend what they show, and run this again."
