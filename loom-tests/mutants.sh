#!/bin/sh
# Plants the mistakes of mutants/*.patch in copies of the tree, one at a time, and checks that the
# model named in each patch fails by the assertion named there. Not part of a normal test run.
#
#   loom-tests/mutants.sh [PATCH...]       all of them without arguments
#
# A patch's first lines say what is wrong and who notices:
#   mistake: ...    model: TEST_FILE::TEST    assertion: TEXT
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export RUSTFLAGS="--cfg loom --cfg crossbeam_loom -C debug-assertions"
export LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-2}" LOOM_MAX_BRANCHES=10000 RUST_BACKTRACE=0
target=${CARGO_TARGET_DIR:-$work/target}

[ $# -gt 0 ] || set -- "$here"/mutants/*.patch
missed=0
for patch in "$@"; do
    name=$(basename "$patch" .patch)
    field() { sed -n "s/^$1: *//p" "$patch" | head -n 1; }
    model=$(field model)
    assertion=$(field assertion)
    rm -rf "$work/tree"
    mkdir "$work/tree"
    (cd "$root" && tar cf - --exclude=./target --exclude=./.git --exclude=./shared .) |
        (cd "$work/tree" && tar xf -)
    if ! (cd "$work/tree" && patch -s -p1 <"$patch"); then
        echo "$name: the patch does not apply"
        missed=$((missed + 1))
        continue
    fi
    if ! (cd "$work/tree" && cargo test -q -p loom-tests --release --target-dir "$target" \
        --test "${model%%::*}" --no-run) >"$work/build" 2>&1; then
        echo "$name: does not compile"
        missed=$((missed + 1))
        continue
    fi
    if (cd "$work/tree" && cargo test -q -p loom-tests --release --target-dir "$target" \
        --test "${model%%::*}" -- --exact "${model##*::}" --nocapture) >"$work/log" 2>&1; then
        echo "$name: NOT CAUGHT by $model"
        missed=$((missed + 1))
    elif grep -qF "$assertion" "$work/log"; then
        echo "$name: caught by $model: $assertion"
    else
        echo "$name: $model failed by something else:"
        grep -A 2 'panicked at' "$work/log" | head -n 6
        missed=$((missed + 1))
    fi
done
[ "$missed" -eq 0 ] || { echo "$missed mistakes were not caught as they should be"; exit 1; }
