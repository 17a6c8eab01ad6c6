#!/usr/bin/env bash
# Interval sources while instances join and leave: what moves, how long it takes, what is missed. See bench/README.md.
#
#   bench/rebalance.sh [--sources N] [--from N] [--to N]     300 sources, from three instances to five and back
#   bench/rebalance.sh --smoke                               30 sources, from two to three and back, on the test build
#
# Exits with 1 when a slot is stored twice or left out.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=release
arguments=()
for argument in "$@"; do
    case "$argument" in
        --smoke) profile=dev; arguments+=(--sources 30 --from 2 --to 3) ;;
        -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) arguments+=("$argument") ;;
    esac
done

VEJAS_TEST_NATS_SERVER="$(realpath "$(tests/services/nats)")"
export VEJAS_TEST_NATS_SERVER
cargo build --locked --quiet --profile "$profile" --bin vejas --example rebalance
folder="${CARGO_TARGET_DIR:-target}/$([ "$profile" = dev ] && echo debug || echo release)"
exec "$folder/examples/rebalance" --binary "$folder/vejas" "${arguments[@]}"
