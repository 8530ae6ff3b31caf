#!/usr/bin/env bash
# Every figure, one after the other: tests/bench/papers/run_all.sh [--quick] [--out FOLDER] [--programs FOLDER] [--seed N]
#
# Exit codes: 0 all ran or were skipped (the script says why), 1 one failed.
set -uo pipefail

readonly SCRIPTS=(redsync_fig1 oktopk_fig4_6 gspar_fig1_3 gspar_fig4 deepreduce_fig6 deepreduce_fig8 deepreduce_fig10 deepreduce_table2
  history_bits sparcml_fig1_7 sparcml_fig3 sparcml_table2 oktopk_fig5 oktopk_fig7 oktopk_fig8_12 redsync_fig5
  auto_grid cards oktopk_fig9 oktopk_fig11 oktopk_fig13 redsync_table1 deepreduce_fig11
  time_to_loss kills_loss)
readonly SKIPPED=77

# One line for each script, all together at the end.
table=() failed=()
for script in "${SCRIPTS[@]}"; do
  printf '=== %s\n' "$script"
  started=$SECONDS
  /usr/bin/python3 "$(dirname "$0")/$script.py" "$@"
  case $? in
    0) result=ran ;;
    "$SKIPPED") result=skipped ;;
    *)
      result=FAILED
      failed+=("$script")
      ;;
  esac
  table+=("$(printf 'papers: %-18s %-7s %4d s' "$script" "$result" $((SECONDS - started)))")
done
printf '%s\n' "${table[@]}"
[ "${#failed[@]}" -eq 0 ] || { printf 'failed: %s\n' "${failed[*]}" >&2; exit 1; }
