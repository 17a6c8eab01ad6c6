#!/usr/bin/env bash
# How fast one process is, each figure beside the limit of this machine. See bench/README.md.
#
#   bench/throughput.sh [--messages N] [--seconds S] [--connections C] [--flows N]
#   bench/throughput.sh --bus nats [--messages N] [--rounds N] [--seconds S]
#                       a hop over a NATS server that it starts, beside a program with nothing but the client library
#   bench/throughput.sh --smoke     small sizes on the test build: shows that it works, says nothing about speed
set -euo pipefail
cd "$(dirname "$0")/.."

profile=release
arguments=()
for argument in "$@"; do
    case "$argument" in
        nats | --bus=nats) VEJAS_TEST_NATS_SERVER="$(realpath "$(tests/services/nats)")"; export VEJAS_TEST_NATS_SERVER; arguments+=("$argument") ;;
        --smoke) profile=dev; arguments+=(--messages 20000 --rounds 1 --seconds 1 --connections 16 --flows 50) ;;
        -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) arguments+=("$argument") ;;
    esac
done

cargo build --locked --quiet --profile "$profile" --bin vejas --example throughput --example load
folder="${CARGO_TARGET_DIR:-target}/$([ "$profile" = dev ] && echo debug || echo release)"
exec "$folder/examples/throughput" --binary "$folder/vejas" --load "$folder/examples/load" "${arguments[@]}"
