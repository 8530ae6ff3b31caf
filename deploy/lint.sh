#!/usr/bin/env bash
# Everything that reads the code without running it: Millrace's own lint, the format, clang-tidy.
#
#   deploy/lint.sh                 all three; needs a configured build/dev for clang-tidy (cmake --preset dev).
#   deploy/lint.sh --only NAME     rules | format | tidy [--all]; tidy checks the changes since the last green commit.
#   deploy/lint.sh --format-fix    rewrites the sources with clang-format instead of checking.
set -euo pipefail
cd "$(dirname "$0")/.."

sources() {
  local folders=() folder
  for folder in kernels protocol monitoring server worker switch_agg tests; do
    [ ! -d "$folder" ] || folders+=("$folder")
  done
  find "${folders[@]}" \( -name '*.h' -o -name '*.cc' \) -print | sort
}

rules() {
  /usr/bin/python3 tests/lint/lint_test.py && /usr/bin/python3 tests/lint/lint.py
}

format() {
  local unformatted
  unformatted=$(sources | xargs -r clang-format-19 --dry-run 2>&1 | sed -n 's/^\([^ :]*\):[0-9]*:[0-9]*: warning:.*/\1/p' | sort -u)
  if [ -n "$unformatted" ]; then
    printf '%s\n' "$unformatted"
    echo "format: the files above differ from clang-format-19's output: deploy/lint.sh --format-fix"
    return 1
  fi
  echo "format: clean"
}

# tidy [--all]
tidy() {
  [ -f build/dev/compile_commands.json ] || { echo "lint: build/dev is not configured: cmake --preset dev" >&2; return 2; }
  /usr/bin/python3 tests/lint/tidy.py --build build/dev "$@"
}

case "${1:-}" in
  "") failed=0; rules || failed=1; format || failed=1; tidy || failed=1; exit "$failed" ;;
  --only) case "${2:-}" in rules | format | tidy) "${@:2}" ;; *) echo "lint: --only rules | format | tidy" >&2; exit 2 ;; esac ;;
  --format-fix) sources | xargs -r clang-format-19 -i ;;
  -h | --help) sed -n '2,/^set -/{/^#/p}' "$0" | sed 's/^# \{0,1\}//' ;;
  *) echo "lint: unknown option '$1'" >&2; exit 2 ;;
esac
