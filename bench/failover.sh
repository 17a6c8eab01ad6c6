#!/usr/bin/env bash
# How long an interval source stands still when its owner goes: told to stop, killed, paused, cut off. See bench/README.md.
#
#   bench/failover.sh [--rounds N]          three instances, default timers, each fault N times (10)
#   bench/failover.sh --smoke               one of each of the quick faults on the test build
#
# Exits with 1 when a slot is stored twice or left out.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=release
arguments=()
for argument in "$@"; do
    case "$argument" in
        --smoke) profile=dev; arguments+=(--rounds 1 --quick) ;;
        -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) arguments+=("$argument") ;;
    esac
done

VEJAS_TEST_NATS_SERVER="$(realpath "$(tests/services/nats)")"
export VEJAS_TEST_NATS_SERVER
cargo build --locked --quiet --profile "$profile" --bin vejas --example failover
folder="${CARGO_TARGET_DIR:-target}/$([ "$profile" = dev ] && echo debug || echo release)"
exec "$folder/examples/failover" --binary "$folder/vejas" "${arguments[@]}"
