#!/usr/bin/env bash
# Plants the mistakes of mutants/*.patch in a copy of the tree, one at a time, and checks that each is
# caught: the test named in the patch, which passes without it, fails by the assertion named there.
# What does not compile, or fails by something else, is not caught. Not part of a normal test run.
#
#   loom-tests/mutants.sh [--list] [--sample N | NAME...]      all of them without names
#
# A patch's first lines say what is wrong and who notices:
#   mistake: ...
#   check: loom | shuttle | test
#   test: [PACKAGE/]TARGET::PATH       TARGET is a file of tests, or `lib` for a crate's unit tests
#   assertion: TEXT
# `--sample N` takes N, of the kinds loom, shuttle, oracle (the assertion is about a hazard), faults
# and other in turn; MUTANTS_SEED=n chooses others of each kind.
#
# What others have built is used again: CARGO_TARGET_DIR (./target), and LOOM_TARGET_DIR and
# SHUTTLE_TARGET_DIR (loom and shuttle in it). Each of these gets a copy of the tree, `planted`; the
# workspace's own crates are built there under another profile, so that nobody ever runs what was
# built from a planted mistake.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
target=${CARGO_TARGET_DIR:-$root/target}
loom_target=${LOOM_TARGET_DIR:-$target/loom}
shuttle_target=${SHUTTLE_TARGET_DIR:-$target/shuttle}
# Seconds after which a test that hangs is ended.
limit=${MUTANTS_LIMIT:-600}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-2}" LOOM_MAX_BRANCHES=10000
export RUST_BACKTRACE=0 CARGO_TERM_COLOR=never CARGO_INCREMENTAL=1

# field NAME FIELD: what a patch says.
field() { sed -n "/^--- /q; s/^$2: *//p" "$here/mutants/$1.patch" | head -n 1; }

# kind NAME: what a sample is drawn from.
kind() {
  case "$(field "$1" check)/$(field "$1" test)/$(field "$1" assertion)" in
    loom/*) echo loom ;;
    shuttle/*) echo shuttle ;;
    *hazard*) echo oracle ;;
    test/faults::*) echo faults ;;
    *) echo other ;;
  esac
}

# sample N: names, of every kind in turn.
sample() {
  local round=0 left=$1 kind of before
  while [ "$left" -gt 0 ]; do
    before=$left
    for kind in loom shuttle oracle faults other; do
      mapfile -t of < <(for name in "${all[@]}"; do
        if [ "$(kind "$name")" = "$kind" ]; then echo "$name"; fi
      done)
      if [ "$left" -gt 0 ] && [ "$round" -lt ${#of[@]} ]; then
        echo "${of[$(((round + ${MUTANTS_SEED:-0}) % ${#of[@]}))]}"
        left=$((left - 1))
      fi
    done
    [ "$left" -lt "$before" ] || break
    round=$((round + 1))
  done
}

# target NAME: the check, package and target of its test, as one word; path NAME: the rest of it.
target() {
  local check test package=millpond
  check=$(field "$1" check) test=$(field "$1" test)
  case $test in */*) package=${test%%/*} test=${test#*/} ;; esac
  case $check in loom) package=loom-tests ;; esac
  echo "$check,$package,${test%%::*}"
}
path() { field "$1" test | sed 's/^[^:]*:://'; }

profiles=()
for package in millpond millpond-simgpu millpond-trace millpond-cli millpond-fuzz loom-tests; do
  for profile in test release; do
    profiles+=(--config "profile.$profile.package.$package.debug=0")
  done
done

# cargo_test TARGET ARGUMENT...: `cargo test` of a target in the copy.
cargo_test() {
  local check package file rest=("${@:2}") flags="${RUSTFLAGS:-}" into=$target how=()
  IFS=, read -r check package file <<<"$1"
  case $check in
    loom)
      flags="--cfg loom --cfg crossbeam_loom -C debug-assertions" into=$loom_target
      how=(-p "$package" --release)
      ;;
    shuttle) flags="--cfg shuttle" into=$shuttle_target ;;
    # With the features that `cargo test --workspace` has built everything with.
    test) how=(--workspace) ;;
  esac
  if [ "$file" = lib ]; then how=(-p "$package" --lib); else how+=(--test "$file"); fi
  (cd "$into/planted" && RUSTFLAGS=$flags CARGO_TARGET_DIR=$into timeout "$limit" \
    cargo "${profiles[@]}" test -q "${how[@]}" "${rest[@]}")
}

# planted TARGET: where its tree is. copy TARGET: makes that what the tree here is. What differs gets a
# new time, also what an earlier run had planted, so that cargo builds it again; the rest stays built.
planted() {
  case $1 in
    loom,*) echo "$loom_target/planted" ;;
    shuttle,*) echo "$shuttle_target/planted" ;;
    test,*) echo "$target/planted" ;;
  esac
}
files() { (cd "$1" && find . \( -path ./target -o -path ./.git -o -path ./shared \) -prune -o -type f -print | sort); }
copy() {
  local tree file
  tree=$(planted "$1")
  mkdir -p "$tree"
  comm -13 <(files "$root") <(files "$tree") | while read -r file; do rm "$tree/$file"; done
  files "$root" | while read -r file; do
    cmp -s "$root/$file" "$tree/$file" && continue
    mkdir -p "$(dirname "$tree/$file")" && rm -f "$tree/$file" && cp "$root/$file" "$tree/$file"
  done
}

now() { date +%s%N; }
# since NANOSECONDS: how long ago that was, in seconds.
since() { printf '%d.%d' $((($(now) - $1) / 1000000000)) $((($(now) - $1) / 100000000 % 10)); }
first_words() { grep -a -m 1 -A 2 -E 'panicked at|^error' "$1" | sed 's/^/    /' || tail -n 3 "$1"; }

all=()
for patch in "$here"/mutants/*.patch; do all+=("$(basename "$patch" .patch)"); done
list=false
[ "${1:-}" != --list ] || { list=true && shift; }
if [ "${1:-}" = --sample ]; then
  case ${2:-} in '' | *[!0-9]* | 0) echo "--sample wants a number" >&2 && exit 2 ;; esac
  mapfile -t names < <(sample "$2")
else
  names=("$@")
  [ $# -gt 0 ] || names=("${all[@]}")
fi
[ ${#names[@]} -gt 0 ] || { echo "no mistakes to plant" >&2 && exit 2; }
for name in "${names[@]}"; do
  [ -f "$here/mutants/$name.patch" ] || { echo "$name: no such patch" >&2 && exit 2; }
  for what in mistake check test assertion; do
    [ -n "$(field "$name" $what)" ] || { echo "$name: the patch has no line '$what: '" >&2 && exit 2; }
  done
  if $list; then printf '%s\t%s\t%s\n' "$name" "$(kind "$name")" "$(field "$name" mistake)"; fi
done
if $list; then exit 0; fi

failed=()
table=$(printf 'mistake | check | assertion | caught after')$'\n'$(printf -- '---|---|---|---')
result() {
  table+=$'\n'$(printf '%s | %s %s | %s | %s' "$1" "$(field "$1" check)" "$(field "$1" test)" "$(field "$1" assertion)" "$2")
}

# Without any mistake each test must pass, or its failing means nothing. A target at a time.
declare -A broken
mapfile -t targets < <(for name in "${names[@]}"; do target "$name"; done | sort -u)
for each in "${targets[@]}"; do
  start=$(now)
  copy "$each"
  mapfile -t paths < <(for name in "${names[@]}"; do
    if [ "$(target "$name")" = "$each" ]; then path "$name"; fi
  done | sort -u)
  status=0
  cargo_test "$each" -- --exact "${paths[@]}" >"$work/log" 2>&1 || status=$?
  passed=$(awk '/^test result: ok/ { passed += $4 } END { print passed + 0 }' "$work/log")
  if [ "$status" -ne 0 ] || [ "$passed" -ne ${#paths[@]} ]; then
    echo "$each: $passed of ${#paths[@]} pass without a mistake:"
    first_words "$work/log"
    broken[$each]=yes
    failed+=("$each")
  else
    echo "$each: $passed pass without a mistake, in $(since "$start") s"
  fi
done

for name in "${names[@]}"; do
  patch=$here/mutants/$name.patch each=$(target "$name") assertion=$(field "$name" assertion)
  tree=$(planted "$each")
  [ -z "${broken[$each]:-}" ] || continue
  if ! (cd "$tree" && patch -s -p1 -F0 --no-backup-if-mismatch --dry-run <"$patch") >"$work/log" 2>&1; then
    echo "$name: THE PATCH NO LONGER APPLIES: the code it changes has changed; plant the mistake anew"
    sed 's/^/    /' "$work/log"
    failed+=("$name") && result "$name" "does not apply"
    continue
  fi
  (cd "$tree" && patch -s -p1 -F0 --no-backup-if-mismatch <"$patch")
  build=$(now)
  if ! cargo_test "$each" --no-run >"$work/log" 2>&1; then
    echo "$name: DOES NOT COMPILE"
    grep -a -m 3 -A 5 '^error' "$work/log" | sed 's/^/    /' || true
    failed+=("$name") && result "$name" "does not compile"
  else
    build=$(since "$build") start=$(now) status=0
    cargo_test "$each" -- --exact "$(path "$name")" --nocapture >"$work/log" 2>&1 || status=$?
    took=$(since "$start")
    if [ "$status" -eq 0 ]; then
      echo "$name: NOT CAUGHT by $(field "$name" test)"
      failed+=("$name") && result "$name" "NOT CAUGHT"
    elif [ "$status" -ne 124 ] && grep -aqF -e "$assertion" "$work/log"; then
      echo "$name: caught after $took s (built in $build s): $assertion"
      result "$name" "$took s"
    else
      echo "$name: $(field "$name" test) failed by something else:"
      if [ "$status" -eq 124 ]; then echo "    no end within $limit s"; fi
      first_words "$work/log"
      failed+=("$name") && result "$name" "FAILED OTHERWISE"
    fi
  fi
  # Back, and newer than what was just built.
  sed -n 's/^+++ b\/\([^\t]*\).*/\1/p' "$patch" | while read -r file; do
    rm -f "$tree/$file" && cp "$root/$file" "$tree/$file"
  done
done

echo
echo "$table" | if command -v column >/dev/null; then column -t -s '|' -o '|'; else cat; fi
echo
if [ ${#failed[@]} -gt 0 ]; then
  echo "not as they should be: ${failed[*]}"
  exit 1
fi
echo "all ${#names[@]} mistakes are caught, in $SECONDS s"
