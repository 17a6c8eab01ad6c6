#!/usr/bin/env bash
# A flow that is changed again and again under load: what is lost, doubled, mixed up, how long a change takes. See bench/README.md.
#
#   bench/converge.sh [instances=3] [messages=40000] [--publications N]     100 publications
#   bench/converge.sh --smoke                                               2,000 messages, ten publications, on the test build
#
# Exits with 1 when a message is lost, doubled, or worked on under another version than its place in the stream names.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=release
arguments=()
for argument in "$@"; do
    case "$argument" in
        --smoke) profile=dev; arguments+=(3 2000 --publications 10) ;;
        -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) arguments+=("$argument") ;;
    esac
done

VEJAS_TEST_NATS_SERVER="$(realpath "$(tests/services/nats)")"
export VEJAS_TEST_NATS_SERVER
cargo build --locked --quiet --profile "$profile" --bin vejas --example converge
folder="${CARGO_TARGET_DIR:-target}/$([ "$profile" = dev ] && echo debug || echo release)"
exec "$folder/examples/converge" --binary "$folder/vejas" "${arguments[@]}"
