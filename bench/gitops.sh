#!/usr/bin/env bash
# From git push until all instances run it: by webhook, by polling, and one change among a thousand manifests. See bench/README.md.
#
#   bench/gitops.sh [--instances N] [--pushes N] [--interval-ms N] [--manifests N]     three instances, 20 pushes each, 2 s, 1,000
#   bench/gitops.sh --smoke                                                           three pushes each, 100 manifests, on the test build
#
# Exits with 1 when a change of one manifest touches another unit.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=release
arguments=()
for argument in "$@"; do
    case "$argument" in
        --smoke) profile=dev; arguments+=(--pushes 3 --interval-ms 500 --manifests 100) ;;
        -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) arguments+=("$argument") ;;
    esac
done

VEJAS_TEST_NATS_SERVER="$(realpath "$(tests/services/nats)")"
export VEJAS_TEST_NATS_SERVER
cargo build --locked --quiet --profile "$profile" --bin vejas --example gitops-bench
folder="${CARGO_TARGET_DIR:-target}/$([ "$profile" = dev ] && echo debug || echo release)"
exec "$folder/examples/gitops-bench" --binary "$folder/vejas" "${arguments[@]}"
