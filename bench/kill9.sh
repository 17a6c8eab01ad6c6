#!/usr/bin/env bash
# Kills one process with SIGKILL at random moments under load; counts what was lost or doubled. See bench/README.md.
#
#   bench/kill9.sh [messages] [rounds]      or --messages N --rounds N; --seed N repeats the moments of a run
#   bench/kill9.sh --smoke                  small sizes on the test build
#
# Exits with 1 when something acknowledged is lost or anything is on the bus twice.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=release
arguments=()
for argument in "$@"; do
    case "$argument" in
        --smoke) profile=dev; arguments+=(--messages 3000 --rounds 4) ;;
        -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) arguments+=("$argument") ;;
    esac
done

cargo build --locked --quiet --profile "$profile" --bin vejas --example kill9
folder="${CARGO_TARGET_DIR:-target}/$([ "$profile" = dev ] && echo debug || echo release)"
exec "$folder/examples/kill9" --binary "$folder/vejas" "${arguments[@]}"
