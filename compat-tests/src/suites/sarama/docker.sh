#!/bin/bash
# Stands in for `docker compose` of sarama's tests: brokers are stopped and started by whoever reads the requests in
# $SUITE_CONTROL, and what would run in a broker's container runs here, with Kafka's tools of $SUITE_TOOLS.
set -u

request() {
    local name=$SUITE_CONTROL/$$
    printf '%s %s\n' "$1" "${2#kafka-}" > "$name.new"
    mv "$name.new" "$name.request"
    until [ -e "$name.answer" ]; do sleep 0.05; done
    local answer
    answer=$(cat "$name.answer")
    rm -f "$name.answer"
    [ -z "$answer" ] || { echo "$answer" >&2; exit 1; }
}

# As the container has it, to as it is here.
translated() {
    local text=${1//kafka-1:9091/$SUITE_BROKER}
    while [[ $text =~ /opt/kafka-[0-9.]+/bin ]]; do text=${text//${BASH_REMATCH[0]}/$SUITE_TOOLS}; done
    printf '%s' "$text"
}

[ "$1" = compose ] || { echo "docker $1 is not known here" >&2; exit 1; }
shift
[ "$1" = --profile ] && shift 2
command=$1
shift
case $command in
up | down | rm) ;;
stop | start) request "$command" "$1" ;;
logs) cat "$SUITE_LOGS/broker-${!##kafka-}.log" ;;
exec)
    [ "$1" = -T ] && shift
    shift
    words=()
    for word in "$@"; do words+=("$(translated "$word")"); done
    exec "${words[@]}"
    ;;
*)
    echo "docker compose $command is not known here" >&2
    exit 1
    ;;
esac
