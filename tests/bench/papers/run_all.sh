#!/usr/bin/env bash
# Every figure, one after the other: tests/bench/papers/run_all.sh [--quick] [--out FOLDER] [--programs FOLDER] [--seed N]
#
# Exit codes: 0 all ran or were skipped (the script says why), 1 one failed.
set -uo pipefail

readonly SCRIPTS=(redsync_fig1 oktopk_fig4_6 gspar_fig1_3 gspar_fig4 deepreduce_fig6 deepreduce_fig8 deepreduce_fig10 deepreduce_table2
  history_bits sparcml_fig1_7 sparcml_fig3 sparcml_table2 oktopk_fig5 oktopk_fig7 oktopk_fig8_12 redsync_fig5
  auto_grid)
readonly SKIPPED=77

failed=()
for script in "${SCRIPTS[@]}"; do
  printf '=== %s\n' "$script"
  /usr/bin/python3 "$(dirname "$0")/$script.py" "$@"
  result=$?
  [ "$result" = 0 ] || [ "$result" = "$SKIPPED" ] || failed+=("$script")
done
[ "${#failed[@]}" -eq 0 ] || { printf 'failed: %s\n' "${failed[*]}" >&2; exit 1; }
