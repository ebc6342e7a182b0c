#!/bin/sh
# Starts a cluster of three nodes on this machine, or stops it:
#
#     ./cluster.sh start [DIRECTORY]     default directory: ./odradek-cluster
#     ./cluster.sh stop  [DIRECTORY]
#
# Each node gets a property file, a data directory and a log in DIRECTORY. Clients connect to
# 127.0.0.1:9092, :9094 or :9096. ODRADEK names the program; without it the release build is used.
set -eu

command=${1:-start}
directory=${2:-./odradek-cluster}
program=${ODRADEK:-./target/release/odradek}
voters=1@127.0.0.1:9093,2@127.0.0.1:9095,3@127.0.0.1:9097

start() {
    [ -x "$program" ] || { echo "$program is missing: cargo build --release" >&2; exit 1; }
    mkdir -p "$directory"
    for id in 1 2 3; do
        client=$((9090 + 2 * id))
        file=$directory/node$id.properties
        [ -e "$file" ] || cat > "$file" <<PROPERTIES
process.roles=broker,controller
node.id=$id
controller.quorum.voters=$voters
listeners=PLAINTEXT://127.0.0.1:$client,CONTROLLER://127.0.0.1:$((client + 1))
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
broker.rack=rack$id
log.dirs=$directory/data$id
default.replication.factor=3
min.insync.replicas=2
PROPERTIES
        "$program" start "$file" >> "$directory/node$id.log" 2>&1 &
        echo $! > "$directory/node$id.pid"
    done
    waited=0
    until [ "$(cat "$directory"/node?.log | grep -c ' listens on ')" -ge 3 ]; do
        waited=$((waited + 1))
        [ $waited -le 300 ] || { tail -n 5 "$directory"/node?.log >&2; exit 1; }
        sleep 0.1
    done
    echo "three nodes run; try: kcat -b 127.0.0.1:9092 -L, and: $0 stop $directory"
}

stop() {
    for file in "$directory"/node?.pid; do
        [ -e "$file" ] || continue
        pid=$(cat "$file")
        kill "$pid" 2>/dev/null || true
        while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
        rm -f "$file" "${file%.pid}.log.old"
        mv "${file%.pid}.log" "${file%.pid}.log.old"
    done
}

case $command in
    start) start ;;
    stop) stop ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
