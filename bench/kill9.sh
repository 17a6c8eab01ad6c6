#!/usr/bin/env bash
# Kills processes with SIGKILL at random moments under load; counts what was lost or doubled. See bench/README.md.
#
#   bench/kill9.sh [messages] [rounds]      one process; or --messages N --rounds N; --seed N repeats the moments of a run
#   bench/kill9.sh --bus nats               a cluster; or [instances=3] [messages=20000] [rounds=10]
#   bench/kill9.sh --smoke [--bus nats]     small sizes on the test build
#
# Exits with 1 when something acknowledged is lost or anything is on the bus twice.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=release
cluster=0
arguments=()
for argument in "$@"; do
    case "$argument" in nats | --bus=nats | instances=* | --instances*) cluster=1 ;; esac
    case "$argument" in
        --smoke) profile=dev ;;
        -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
        instances=* | messages=* | rounds=*) arguments+=("--$argument") ;;
        *) arguments+=("$argument") ;;
    esac
done
if [ "$profile" = dev ]; then
    if [ "$cluster" = 1 ]; then arguments+=(--messages 1500 --rounds 2); else arguments+=(--messages 3000 --rounds 4); fi
fi
if [ "$cluster" = 1 ]; then
    VEJAS_TEST_NATS_SERVER="$(realpath "$(tests/services/nats)")"
    export VEJAS_TEST_NATS_SERVER
fi

cargo build --locked --quiet --profile "$profile" --bin vejas --example kill9
folder="${CARGO_TARGET_DIR:-target}/$([ "$profile" = dev ] && echo debug || echo release)"
exec "$folder/examples/kill9" --binary "$folder/vejas" "${arguments[@]}"
