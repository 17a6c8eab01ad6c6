#!/usr/bin/env bash
# What one process holds in memory while a receiver is down under load, and that nothing is lost by it. See bench/README.md.
#
#   bench/soak.sh [--minutes N] [--rate MESSAGES_PER_SECOND]      ten minutes without a word
#   bench/soak.sh --smoke                                         some seconds on the test build
#
# Exits with 1 when something acknowledged is lost or memory grew beyond its bound.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=release
arguments=()
for argument in "$@"; do
    case "$argument" in
        --smoke) profile=dev; arguments+=(--minutes 0.08 --rate 60) ;;
        -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) arguments+=("$argument") ;;
    esac
done

cargo build --locked --quiet --profile "$profile" --bin vejas --example soak
folder="${CARGO_TARGET_DIR:-target}/$([ "$profile" = dev ] && echo debug || echo release)"
exec "$folder/examples/soak" --binary "$folder/vejas" "${arguments[@]}"
